"""Saving with hooks, states in memory, pickling and forking."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from unienv_data import ReplayBuffer
from unienv_data.datasets import ExperienceReplay, TensorDictStorage
from unienv_data.samplers import PrioritizedSampler, RandomSampler, SamplerWithoutReplacement
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace, DictSpace


def numbers(count: int, *, start: int = 0) -> TensorDict:
    x = torch.arange(start, start + count)
    return TensorDict({"x": x, "next": {"y": x.to(torch.float32)[:, None]}}, [count])


def make(storage: Any = 8, **options: Any) -> ExperienceReplay:
    return ExperienceReplay(**{"storage": storage, "sampler": RandomSampler(seed=1), "batch_size": 3, **options})


SPACE = DictSpace(NumpyComputeBackend, {"x": BoxSpace(NumpyComputeBackend, -999, 999, "int64", shape=())})


def a_buffer(lanes: int, *, is_filled: bool) -> ReplayBuffer:
    """A ring that has gone around, with episodes of several lengths, the last of which are open."""
    buffer = ReplayBuffer.create(SPACE, capacity=12, keep_episodes=True, lanes=lanes)
    if is_filled and lanes == 1:
        for start, length in ((0, 5), (5, 3), (8, 6), (14, 1)):
            buffer.extend({"x": np.arange(start, start + length)})
    elif is_filled:
        ended = np.zeros((8, lanes), bool)
        ended[[2, 5, 6], [0, 1, 0]] = True
        buffer.extend_lanes({"x": np.arange(8 * lanes).reshape(8, lanes)}, ended)
    return buffer


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("way", ["state", "folder"])
def test_a_buffer_keeps_numbers_and_episodes(way: str, lanes: int, used: bool, tmp_path: Path) -> None:
    buffer, other = a_buffer(lanes, is_filled=True), a_buffer(lanes, is_filled=used)
    replay = make(buffer, sampler=PrioritizedSampler(seed=0))
    replay.update_priority([0, 1], torch.tensor([90.0, 0.1]))
    if way == "state" and lanes == 1:
        buffer.append({"x": np.int64(70)})  # an open episode, which dumps refuses
    restored = make(other, sampler=PrioritizedSampler(seed=7))
    if way == "state":
        restored.load_state_dict(replay.state_dict())
    else:
        replay.dumps(tmp_path / "saved")
        restored.loads(tmp_path / "saved")
    assert (restored[:] == replay[:]).all()
    assert other.get_segments() == buffer.get_segments()
    assert other.has_open_segment == buffer.has_open_segment
    assert restored.storage.sample_numbers == replay.storage.sample_numbers == buffer.sample_numbers
    for _ in range(4):  # the priorities are those of the same samples
        assert (restored.sample() == replay.sample()).all()


def test_a_load_hook_leaves_the_episodes_of_a_buffer(tmp_path: Path) -> None:
    replay, restored = make(a_buffer(1, is_filled=True)), make(a_buffer(1, is_filled=False))
    replay.dumps(tmp_path / "saved")
    restored.register_load_hook(lambda data: data.set("x", data["x"] + 100))
    restored.loads(tmp_path / "saved")
    assert restored[:]["x"].tolist() == (replay[:]["x"] + 100).tolist()
    assert restored.storage.batch.get_segments() == replay.storage.batch.get_segments()  # type: ignore[attr-defined]


# -- hooks -------------------------------------------------------------------------------------------------


def drop_next(data: TensorDict) -> TensorDict:
    return data.exclude("next")


def restore_next(data: TensorDict) -> TensorDict:
    return data.set(("next", "y"), data["x"].to(torch.float32)[:, None])


@pytest.mark.parametrize("written", [3, 8, 20])
def test_a_dump_with_hooks_loads_with_them(written: int, tmp_path: Path) -> None:
    replay = make(sampler=PrioritizedSampler(seed=0))
    for start in range(0, written, 5):
        replay.extend(numbers(min(5, written - start), start=start))
    replay.sample()
    replay.update_priority([0, 1], torch.tensor([9.0, 0.1]))
    replay.register_save_hook(drop_next)
    replay.dumps(tmp_path / "saved")
    other = make(sampler=PrioritizedSampler(seed=5))
    other.register_load_hook(restore_next)
    other.loads(tmp_path / "saved")
    assert (other[:] == replay[:]).all()
    assert other.write_count == written
    for _ in range(3):
        assert (other.sample() == replay.sample()).all()
    assert other.extend(numbers(2)).tolist() == replay.extend(numbers(2)).tolist()


def test_a_dump_with_hooks_loads_without_them_or_says_why_not(tmp_path: Path) -> None:
    replay = make()
    replay.extend(numbers(5))
    replay.register_save_hook(drop_next)
    replay.dumps(tmp_path / "saved")
    plain = make()
    plain.loads(tmp_path / "saved")
    assert set(plain[:].keys()) == {"x"}  # what the hook saved
    filled = make()
    filled.extend(numbers(2, start=50))
    with pytest.raises(ValueError, match=r"the data of its save hook does not fit .* register_load_hook"):
        filled.loads(tmp_path / "saved")
    assert filled["x"].tolist() == [50, 51]
    small = make(storage=4)
    with pytest.raises(ValueError, match="5 samples, the storage has room for 4"):
        small.loads(tmp_path / "saved")


def test_hooks_may_change_the_number_and_the_axes_of_samples(tmp_path: Path) -> None:
    replay = make(storage=None)
    replay.extend(numbers(6))
    replay.register_save_hook(lambda data: TensorDict({"all": data["x"]}, []))
    replay.dumps(tmp_path / "saved")
    other = make(storage=None)
    other.register_load_hook(lambda data: numbers(len(data["all"]) * 2))
    other.loads(tmp_path / "saved")
    assert len(other) == 12
    assert other.extend(numbers(1)).tolist() == [12]
    with pytest.raises(ValueError, match="has no axis for the samples"):
        make(storage=None).loads(tmp_path / "saved")


def test_a_plain_dump_passes_load_hooks(tmp_path: Path) -> None:
    replay = make()
    replay.extend(numbers(5))
    replay.dumps(tmp_path / "saved")
    other = make()
    other.register_load_hook(lambda data: data.set("x", data["x"] + 1))
    other.loads(tmp_path / "saved")
    assert other["x"].tolist() == [1, 2, 3, 4, 5]


def test_hooks_of_an_empty_replay_are_not_called(tmp_path: Path) -> None:
    replay = make()
    replay.register_save_hook(drop_next)
    replay.register_load_hook(restore_next)
    replay.dumps(tmp_path / "saved")
    replay.loads(tmp_path / "saved")
    assert len(replay) == 0


def test_a_hook_that_returns_no_tensordict_is_an_error(tmp_path: Path) -> None:
    replay = make()
    replay.extend(numbers(5))
    replay.dumps(tmp_path / "saved")
    replay.register_save_hook(lambda data: None)
    with pytest.raises(TypeError, match=r"save hook .* returned NoneType, it must return a TensorDict"):
        replay.dumps(tmp_path / "saved")
    replay.register_load_hook(lambda data: data["x"])
    with pytest.raises(TypeError, match=r"load hook .* returned Tensor"):
        replay.loads(tmp_path / "saved")


# -- states ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [None, 2])
@pytest.mark.parametrize("kind", [RandomSampler, SamplerWithoutReplacement, PrioritizedSampler])
def test_a_state_goes_on_as_the_replay_would_have(kind: Any, prefetch: int | None, tmp_path: Path) -> None:
    with make(sampler=kind(seed=1), prefetch=prefetch) as one, make(sampler=kind(seed=7), prefetch=prefetch) as other:
        for start in range(0, 20, 5):
            one.extend(numbers(5, start=start))
            one.sample()
        torch.save(one.state_dict(), tmp_path / "state.pt")
        wanted = [one.sample() for _ in range(5)]
        other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=False))
        assert (other[:] == one[:]).all()
        for batch in wanted:
            assert other.sample()["index"].tolist() == batch["index"].tolist()
        assert other.extend(numbers(2)).tolist() == one.extend(numbers(2)).tolist()
        assert other.write_count == one.write_count


def test_a_state_of_other_parts_is_refused() -> None:
    replay = make()
    replay.extend(numbers(5))
    state = replay.state_dict()
    with pytest.raises(ValueError, match="max_size of 8, this is a TensorDictStorage with a max_size of 4"):
        make(storage=4).load_state_dict(state)
    with pytest.raises(ValueError, match="saved with a RandomSampler, this replay has a PrioritizedSampler"):
        make(sampler=PrioritizedSampler()).load_state_dict(state)
    replay.set_("x", 0)
    make().load_state_dict(state)
    assert state["storage"]["samples"]["x"].tolist() == [0, 1, 2, 3, 4]  # a copy
    empty = make().state_dict()
    replay.load_state_dict(empty)
    assert len(replay) == 0


class Scale:
    """A transform with a state."""

    factor = 1

    def __call__(self, data: Any) -> Any:
        return data.set("x", data["x"] * self.factor)

    def state_dict(self) -> dict[str, int]:
        return {"factor": self.factor}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.factor = state["factor"]


def test_the_state_has_that_of_transforms() -> None:
    one, other = make(transform=Scale()), make(transform=Scale())
    one.extend(numbers(3))
    one.transform[0].factor = 5
    other.load_state_dict(one.state_dict())
    assert other[:]["x"].tolist() == [0, 5, 10]
    with pytest.raises(ValueError, match="states of 1 transforms, this replay has 0"):
        make().load_state_dict(one.state_dict())


# -- other processes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [None, 2])
def test_a_pickled_replay_goes_on_by_itself(prefetch: int | None) -> None:
    with make(prefetch=prefetch, transform=lambda data: data.set("z", data["x"] + 1)) as replay:
        replay.extend(numbers(5))
        replay.sample()
        with pickle.loads(pickle.dumps(replay)) as copy:
            for _ in range(4):
                assert (copy.sample() == replay.sample()).all()
            copy.extend(numbers(1))
            assert (len(copy), len(replay)) == (6, 5)


def test_a_storage_on_disk_is_opened_again_or_has_one_writer(tmp_path: Path) -> None:
    with make(storage=TensorDictStorage(8, cache_path=tmp_path / "storage")) as replay:
        replay.extend(numbers(5))
        with pytest.raises(TypeError, match="only this process can write"):
            pickle.dumps(replay)
    with make(storage=TensorDictStorage.open(tmp_path / "storage")) as replay:
        content = pickle.dumps(replay)
        assert (pickle.loads(content)[:] == replay[:]).all()


def _samples(replay: ExperienceReplay, connection: Any) -> None:
    connection.send([replay.sample()["x"].tolist() for _ in range(4)])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*os.fork.* was called:RuntimeWarning")  # JAX, which the child does not use
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_a_forked_process_draws_from_a_replay_that_reads_ahead() -> None:
    context = multiprocessing.get_context("fork")
    with make(prefetch=2) as replay:
        replay.extend(numbers(5))
        replay.sample()  # starts threads, which the child does not have
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_samples, args=(replay, sender))
        process.start()
        assert receiver.poll(60), "the child hangs"
        assert receiver.recv() == [replay.sample()["x"].tolist() for _ in range(4)]
        process.join(60)
        assert process.exitcode == 0


# -- a replay buffer as storage ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["hooks", "state"])
def test_a_replay_buffer_holds_what_was_saved_or_stays_as_it_was(way: str, tmp_path: Path) -> None:
    def make_buffer(**options: Any) -> ReplayBuffer:
        space = DictSpace(NumpyComputeBackend, {"x": BoxSpace(NumpyComputeBackend, -99, 99, "int64", shape=(2,))})
        return ReplayBuffer.create(space, **{"capacity": 6, **options})

    def move(source: ExperienceReplay, target: ExperienceReplay) -> None:
        if way == "state":
            target.load_state_dict(source.state_dict())
        else:
            source.register_save_hook(lambda data: data)
            source.dumps(tmp_path / "saved")
            target.loads(tmp_path / "saved")

    data = TensorDict({"x": torch.arange(16).reshape(8, 2)}, [8])
    with make_buffer() as one, make_buffer() as two, make_buffer(capacity=3) as small:
        source = make(storage=one)
        source.extend(data)
        target = make(storage=two)
        target.extend(data[:3])
        move(source, target)
        assert (target[:] == data[2:]).all()
        few = make(storage=small)
        few.extend(data[:2])
        with pytest.raises(ValueError, match="the storage has room for 3"):
            move(source, few)
        assert (few[:] == data[:2]).all()
        source.register_load_hook(lambda saved: saved.set("x", saved["x"] * 100))
        if way == "hooks":
            with pytest.raises(ValueError, match="does not fit this replay: x"):
                move(target, source)
            assert (source[:] == data[2:]).all()
