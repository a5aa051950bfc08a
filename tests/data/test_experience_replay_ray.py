"""Experience replays in actors of a real Ray cluster of two nodes."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from minari_cases import BOXES, boxes, minari_folder, write
from tensordict import TensorDict

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(180)]

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # else whatever else runs here starves its workers
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

from unienv_data.datasets import ExperienceReplay, MinariExperienceReplay  # noqa: E402
from unienv_data.integrations.ray import RemoteReplayError, ReplayActor, Ticket, packed, unpacked  # noqa: E402
from unienv_data.samplers import RandomSampler, SamplerWithoutReplacement  # noqa: E402


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine; the second has the resource `other`."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        node = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **node})
        made.add_node(num_cpus=2, resources={"other": 1}, object_store_memory=100 * 2**20)
        ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


def numbers(*values: int) -> TensorDict:
    x = torch.tensor(values)
    return TensorDict({"x": x, "next": {"y": x.to(torch.float32)[:, None]}}, [len(values)])


def test_a_batch_is_one_buffer() -> None:
    data = numbers(1, 2, 3)
    _, buffer = packed(data)
    assert (type(buffer), buffer.dtype, buffer.ndim) == (np.ndarray, np.uint8, 1)
    assert (unpacked(packed(data)) == data).all()
    assert unpacked(packed((torch.arange(3), {"a": data})))[0].tolist() == [0, 1, 2]


@ray.remote(num_cpus=0, resources={"other": 1})
def record(replay: Any, start: int) -> tuple[str, list[int]]:
    """Add samples from a process on the other node, and draw some."""
    for x in range(start, start + 20):
        replay.extend(numbers(x))
    return ray.get_runtime_context().get_node_id(), replay.sample(8)["x"].tolist()


def test_processes_on_two_nodes_share_a_replay(cluster: Any, tmp_path: Path) -> None:
    make = ExperienceReplay.as_remote({"num_cpus": 1})
    with make(storage=100, batch_size=40, sampler=SamplerWithoutReplacement(seed=0)) as replay:
        for node, drawn in ray.get([record.remote(replay, start) for start in (0, 20, 40)]):
            assert node != ray.get_runtime_context().get_node_id()
            assert set(drawn) <= set(range(60))
        assert sorted(replay["x"].tolist()) == list(range(60))
        assert (len(replay), replay.write_count, replay.batch_size) == (60, 60, 40)
        replay.set_sampler(SamplerWithoutReplacement(seed=0))
        batch, info = replay.sample(return_info=True)
        assert torch.equal(batch["next", "y"][:, 0], batch["x"].to(torch.float32))
        assert info["index"].tolist() == batch["index"].tolist()
        batch["x"] += 1  # what arrives is the receiver's own
        _use_every_kind_of_method(replay, tmp_path)
    replay.close()
    with pytest.raises(RemoteReplayError, match="is gone"):
        len(replay)


def _use_every_kind_of_method(replay: Any, tmp_path: Path) -> None:
    replay.empty()
    assert replay.add(numbers(5)[0]) == 0
    assert replay.extend(numbers(6, 7, 8, 9)).tolist() == [1, 2, 3, 4]
    assert replay.set_at_("x", 50, 0) is replay
    assert [len(batch) for batch in replay] == [5]
    replay[1] = numbers(60)[0]
    assert replay[:]["x"].tolist() == [50, 60, 7, 8, 9]
    replay.append_transform(lambda data: data.set("twice", data["x"] * 2))
    assert replay[2]["twice"] == 14
    storage = replay.preprocess(lambda data: data.select("x"), dest=tmp_path / "new")
    assert storage.get(np.arange(2))["x"].tolist() == [50, 60]
    with pytest.raises(ValueError, match="batch_size is 0"):
        replay.sample(0)
    with pytest.raises(AttributeError, match="no attribute 'smaple'"):
        replay.smaple()


def test_a_dataset_in_an_actor_that_is_killed(cluster: Any, tmp_path: Path) -> None:
    """It goes on from where it was saved, as often as it may; then it is reported by name."""
    with minari_folder(tmp_path / "minari"):
        write("some-v0", [boxes(5), boxes(3)], *BOXES)
        options: Any = {"root": tmp_path / "converted", "progress": False}
        MinariExperienceReplay("some-v0", 4, load_from_local_minari=True, **options).close()
    make = MinariExperienceReplay.as_remote({"max_restarts": 1, "name": "offline-data"})
    replay = make("some-v0", 4, download=False, sampler=RandomSampler(seed=3), **options)
    with pytest.raises(PermissionError, match="recorded dataset"):
        replay.extend(replay[:1])
    replay.set_(("next", "reward"), 7.0)
    replay.dumps(tmp_path / "saved")
    replay.set_(("next", "reward"), 8.0)
    wanted = replay.sample()["index"].tolist()
    ray.kill(replay._handle, no_restart=False)
    assert _eventually(lambda: replay["next", "reward"].unique().tolist()) == [7.0]
    assert replay.sample()["index"].tolist() == wanted
    assert replay["episode"].tolist() == [0] * 5 + [1] * 3
    ray.kill(replay._handle, no_restart=False)
    with pytest.raises(RemoteReplayError, match=r"'offline-data' is gone.*max_restarts"):
        _eventually(lambda: replay["next", "reward"].unique().tolist(), [7.0])


def _eventually(ask: Any, before: Any = (8.0,)) -> Any:
    """The first answer that is not the one from before the kill."""
    deadline = time.monotonic() + 90
    while True:
        try:
            found = ask()
        except RemoteReplayError as error:
            if "restarting" not in str(error) and "unavailable" not in str(error):
                raise
            found = list(before)
        if found != list(before):
            return found
        assert time.monotonic() < deadline, "nothing has changed"


def test_what_goes_wrong_in_the_constructor_is_not_taken_for_a_death() -> None:
    actor = ReplayActor(None)
    with pytest.raises(TypeError, match="storage is str"):
        actor.make(ExperienceReplay, (), {"storage": "somewhere"})


def test_a_call_that_ray_repeats_happens_once() -> None:
    actor = ReplayActor(None)
    actor.make(ExperienceReplay, (), {"storage": 8})
    call = ("extend", packed((numbers(1, 2),)), {}, Ticket("client", 0))
    first, again = (unpacked(actor.call(*call)) for _ in range(2))
    assert first.tolist() == again.tolist() == [0, 1]
    assert actor.call("__len__", (), {}) == 2
    actor.call("extend", packed((numbers(1, 2),)), {}, Ticket("client", 1))
    assert actor.call("__len__", (), {}) == 4


def test_an_actor_that_outlives_its_closing_answers_nobody() -> None:
    """Ray ends it some time after it was told to, and calls of others arrive until then."""
    actor = ReplayActor(None)
    actor.make(ExperienceReplay, (), {"storage": 8})
    actor.call("extend", packed((numbers(1, 2),)), {}, Ticket("client", 0))
    actor.call("close", (), {})
    for late in (
        lambda: actor.call("__len__", (), {}),
        lambda: actor.call("extend", packed((numbers(1, 2),)), {}, Ticket("client", 0)),
        lambda: actor.get("batch_size"),
    ):
        with pytest.raises(RemoteReplayError, match="closed it"):
            late()
