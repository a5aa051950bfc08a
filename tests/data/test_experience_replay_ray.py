"""Experience replays in actors of a real Ray cluster of two nodes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
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

from unienv_data import ReplayBuffer  # noqa: E402
from unienv_data.datasets import ExperienceReplay, MinariExperienceReplay  # noqa: E402
from unienv_data.integrations.ray import (  # noqa: E402
    RemoteReplay,
    RemoteReplayError,
    ReplayActor,
    ReplayRestartedError,
    ReplayRestartedWarning,
    Ticket,
    packed,
    unpacked,
)
from unienv_data.samplers import PrioritizedSampler, RandomSampler, SamplerWithoutReplacement  # noqa: E402
from unienv_interface.backends import NumpyComputeBackend  # noqa: E402
from unienv_interface.space import BoxSpace, DictSpace  # noqa: E402


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


def made_of(cls: Any, **options: Any) -> bytes:
    """What an actor makes its replay of."""
    return cloudpickle.dumps((cls, (), packed(options)))


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


def kill(handle: Any) -> None:
    ray.kill(handle, no_restart=False)


def _generation(replay: Any, wanted: int) -> None:
    """Block until the actor has begun anew so often."""
    deadline = time.monotonic() + 90
    while True:
        try:
            if replay.generation >= wanted:
                return
        except RemoteReplayError:
            pass
        assert time.monotonic() < deadline, f"the actor is not in generation {wanted}"
        time.sleep(0.05)


def test_priorities_in_an_actor(cluster: Any) -> None:
    """The sampler is the actor's own; of a batch only the priorities go back."""
    make = ExperienceReplay.as_remote({"num_cpus": 0})
    with make(storage=50, batch_size=8, sampler=PrioritizedSampler(alpha=1.0, seed=0), priority_key="error") as replay:
        replay.extend(numbers(*range(20)))
        batch = replay.sample()
        assert "weight" in set(batch.keys())
        batch["error"] = torch.full((8,), 1e-6)
        sent = []
        call = replay._call
        replay._call = lambda *args: (sent.append(args), call(*args))[1]
        replay.update_tensordict_priority(batch)
        assert set(sent[0][1].keys()) == {"index", "number", "error"}
        replay.update_priority(np.arange(20), torch.tensor([1e-6] * 19 + [9.0]))
        assert replay.sample(30)["x"].unique().tolist() == [19]
        replay.set_sampler(PrioritizedSampler(seed=1))
        assert len(replay.sample()) == 8
        state = replay.state_dict()
        replay.empty()
        replay.load_state_dict(state)
        assert replay["x"].tolist() == list(range(20))


def test_a_living_replay_is_attached_to_and_not_emptied(cluster: Any) -> None:
    options = {"num_cpus": 0, "name": "shared", "get_if_exists": True, "max_restarts": 1}
    make = ExperienceReplay.as_remote(options)
    with make(storage=50, batch_size=4) as replay:
        replay.extend(numbers(1, 2, 3))
        other = make(storage=7)
        assert other["x"].tolist() == [1, 2, 3]
        other.extend(numbers(4))
        connected = RemoteReplay.connect("shared")
        assert connected["x"].tolist() == replay["x"].tolist() == [1, 2, 3, 4]
        assert connected.generation == 0
        with pytest.raises(TypeError, match="has a ExperienceReplay: give another name"):
            MinariExperienceReplay.as_remote(options)("some-v0", 4)
        assert len(replay) == 4
    with pytest.raises(RemoteReplayError, match=r"no actor 'nobody' in the namespace .* lifetime='detached'"):
        RemoteReplay.connect("nobody")


_DRIVER = """
import sys, warnings
warnings.simplefilter("ignore")
import ray, torch
from tensordict import TensorDict
from unienv_data.datasets import ExperienceReplay

ray.init(address=sys.argv[1], namespace="lab", log_to_driver=False)
options = {"name": "detached", "lifetime": "detached", "num_cpus": 0, "max_restarts": 1}
ExperienceReplay.as_remote(options)(storage=9).extend(TensorDict({"x": torch.arange(3)}, [3]))
"""


def test_a_driver_that_comes_later_connects_to_a_detached_replay(cluster: Any) -> None:
    command = [sys.executable, "-c", _DRIVER, cluster.address]
    subprocess.run(command, check=True, capture_output=True, timeout=90)
    with RemoteReplay.connect("detached", "lab") as replay:
        assert replay["x"].tolist() == [0, 1, 2]
    with pytest.raises(RemoteReplayError, match="no actor 'detached'"):
        RemoteReplay.connect("detached", "lab")


def test_a_restart_is_told_of_once(cluster: Any, tmp_path: Path) -> None:
    """Where everything is lost by an error, and where a dump is left by a warning."""
    make = ExperienceReplay.as_remote({"num_cpus": 0, "max_restarts": 2})
    with make(storage=9) as replay:
        replay.extend(numbers(1, 2))
        kill(replay._handle)
        _generation(replay, 1)
        with pytest.raises(ReplayRestartedError, match="all samples are lost, since nothing was saved"):
            replay.extend(numbers(3))
        assert replay.extend(numbers(4)).tolist() == [0]
        assert replay["x"].tolist() == [4]
        replay.dumps(tmp_path / "saved")
        replay.extend(numbers(5))
        kill(replay._handle)
        _generation(replay, 2)
        with pytest.warns(ReplayRestartedWarning, match=r"continues with the samples saved in .*saved: later"):
            assert replay["x"].tolist() == [4]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(replay) == 1


def _process_of(keeper: Any) -> int:
    return int(ray.get(keeper.__ray_call__.remote(lambda _: os.getpid()), timeout=60))


def _restarted(keeper: Any, before: int) -> None:
    """Block until the keeper runs in another process: what is killed answers calls for some time."""
    deadline = time.monotonic() + 90
    while _process_of(keeper) == before:
        assert time.monotonic() < deadline, "the keeper is still the same process"
        time.sleep(0.05)


def test_a_keeper_that_dies_does_not_take_the_replay_with_it(cluster: Any, tmp_path: Path) -> None:
    make = ExperienceReplay.as_remote({"num_cpus": 0, "max_restarts": 3})
    with make(storage=9) as replay:
        replay.extend(numbers(1, 2))
        replay.dumps(tmp_path / "saved")
        keeper = ray.get_actor(replay._about.keeper_name, replay._about.namespace)
        process = _process_of(keeper)
        kill(keeper)
        _restarted(keeper, process)
        assert ray.get(keeper.get.remote(), timeout=60).saved == str(tmp_path / "saved")
        kill(replay._handle)
        _generation(replay, 1)
        assert replay["x"].tolist() == [1, 2]
        process = _process_of(keeper)
        kill(keeper)
        replay.extend(numbers(3))
        replay.dumps(tmp_path / "again")  # while the keeper restarts
        _restarted(keeper, process)
        assert ray.get(keeper.get.remote(), timeout=60).saved == str(tmp_path / "again")
        kill(replay._handle)
        _generation(replay, 2)
        assert replay["x"].tolist() == [1, 2, 3]


def test_a_buffer_on_disk_loses_nothing_when_its_actor_dies(cluster: Any, tmp_path: Path) -> None:
    path = tmp_path / "buffer"

    def storage() -> ReplayBuffer:
        if path.exists():
            return ReplayBuffer.load_from(path, backend=NumpyComputeBackend, read_only=False)
        space = DictSpace(NumpyComputeBackend, {"x": BoxSpace(NumpyComputeBackend, -99, 99, "int64", shape=())})
        return ReplayBuffer.create(space, capacity=6, cache_path=path)

    make = ExperienceReplay.as_remote({"num_cpus": 0, "max_restarts": 2})
    with make(storage=storage, batch_size=4) as replay:
        for x in range(9):
            replay.extend(TensorDict({"x": torch.tensor([x])}, [1]))
            if x == 3:
                replay.dumps(tmp_path / "saved")
        kill(replay._handle)
        _generation(replay, 1)
        with pytest.warns(ReplayRestartedWarning, match="its storage has kept 6 samples"):
            assert replay["x"].tolist() == [3, 4, 5, 6, 7, 8]
        replay.extend(TensorDict({"x": torch.tensor([9])}, [1]))
    with ReplayBuffer.load_from(path, backend=NumpyComputeBackend) as buffer:
        assert buffer.get_at(...)["x"].tolist() == [4, 5, 6, 7, 8, 9]


def test_what_goes_wrong_in_the_constructor_is_not_taken_for_a_death() -> None:
    actor = ReplayActor(None)
    with pytest.raises(TypeError, match="storage is str"):
        actor.make(made_of(ExperienceReplay, storage="somewhere"))


def test_an_actor_that_knows_nothing_says_so() -> None:
    actor = ReplayActor(None)  # as after its keeper has died with it
    for ask in (lambda: actor.call("__len__", (), {}), lambda: actor.get("batch_size"), actor.about):
        with pytest.raises(RemoteReplayError, match="make the replay again, and load the last save"):
            ask()


def test_a_call_that_ray_repeats_happens_once() -> None:
    actor = ReplayActor(None)
    actor.make(made_of(ExperienceReplay, storage=8))
    call = ("extend", packed((numbers(1, 2),)), {}, Ticket("client", 0))
    first, again = (unpacked(actor.call(*call).result) for _ in range(2))
    assert first.tolist() == again.tolist() == [0, 1]
    assert actor.call("__len__", (), {}) == (0, 2)
    actor.call("extend", packed((numbers(1, 2),)), {}, Ticket("client", 1))
    assert actor.call("__len__", (), {}) == (0, 4)


def test_an_actor_that_outlives_its_closing_answers_nobody() -> None:
    """Ray ends it some time after it was told to, and calls of others arrive until then."""
    actor = ReplayActor(None)
    actor.make(made_of(ExperienceReplay, storage=8))
    actor.call("extend", packed((numbers(1, 2),)), {}, Ticket("client", 0))
    actor.call("close", (), {})
    for late in (
        lambda: actor.call("__len__", (), {}),
        lambda: actor.call("extend", packed((numbers(1, 2),)), {}, Ticket("client", 0)),
        lambda: actor.get("batch_size"),
    ):
        with pytest.raises(RemoteReplayError, match="closed it"):
            late()
