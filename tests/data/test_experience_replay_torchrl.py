"""TorchRL's storages in a replay of ours, storages of ours in TorchRL's replay, and preprocessing for both."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import signal
import warnings
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, lazy_stack

from unienv_data import ReplayBuffer
from unienv_data.datasets import ExperienceReplay, TensorDictStorage
from unienv_data.samplers import PrioritizedSampler, RandomSampler, SamplerWithoutReplacement
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace, DictSpace

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torchrl", minversion="0.14", reason="older ones read storages of others in other ways")
    torchrl: Any = pytest.importorskip("torchrl.data")

pytestmark = pytest.mark.filterwarnings("ignore")


def numbers(count: int, *, start: int = 0) -> TensorDict:
    x = torch.arange(start, start + count)
    image = (x[:, None] % 251).to(torch.uint8).expand(count, 5000)  # more than a page: kept beside the rows
    half = x.to(torch.bfloat16)[:, None].expand(count, 3)
    data = {"x": x, "image": image, "next": {"half": half, "done": x % 3 == 0}}
    return TensorDict(data, [count])


# -- TorchRL's storages in our replay ----------------------------------------------------------------------


@pytest.fixture(params=["LazyMemmapStorage", "LazyTensorStorage", "ListStorage"])
def storage(request: Any, tmp_path: Path) -> Any:
    return make_torchrl(request.param, tmp_path / "memmap")


def make_torchrl(kind: str, path: Path) -> Any:
    options = {"scratch_dir": path} if kind == "LazyMemmapStorage" else {}
    return getattr(torchrl, kind)(10, **options)


def test_a_storage_of_torchrl_is_a_ring(storage: Any) -> None:
    ours = ExperienceReplay(storage=10, sampler=RandomSampler(seed=0), batch_size=6)
    theirs = ExperienceReplay(storage=storage, sampler=RandomSampler(seed=0), batch_size=6)
    assert theirs.write_count == len(theirs) == 0
    for start, count in ((0, 3), (3, 5), (8, 1), (9, 7), (16, 23)):
        data = numbers(count, start=start)
        assert theirs.extend(data).tolist() == ours.extend(data).tolist()
        assert (theirs[:] == ours[:]).all()
        assert (theirs.sample() == ours.sample()).all()
        assert torch.equal(storage[:]["x"] if torch.is_tensor(storage[:]) else theirs["x"], ours["x"])
    for replay in (ours, theirs):
        replay.set_at_("x", 7, [1, 2])
        replay[3] = numbers(1, start=50)[0]
        replay.set_(("next", "done"), True)
    assert (theirs[:] == ours[:]).all()
    theirs[:]["x"] += 100  # what was read is the reader's own
    assert (theirs[:] == ours[:]).all()
    with pytest.raises(ValueError, match=r"new: a \w+Storage keeps the entries of its first samples"):
        theirs.set_("new", 1.0)
    theirs.empty()
    assert len(theirs) == 0
    assert theirs.add(numbers(1)[0]) == 0


@pytest.mark.parametrize("kind", ["LazyMemmapStorage", "LazyTensorStorage"])
@pytest.mark.parametrize("written", [4, 25])
def test_a_storage_of_torchrl_is_saved_and_goes_on(kind: str, written: int, tmp_path: Path) -> None:
    def make(name: str) -> ExperienceReplay:
        inner = make_torchrl(kind, tmp_path / name)
        return ExperienceReplay(storage=inner, sampler=PrioritizedSampler(seed=0), batch_size=4)

    replay, loaded, restored = make("one"), make("two"), make("three")
    for start in range(0, written, 4):
        replay.extend(numbers(min(4, written - start), start=start))
    replay.sample()
    replay.update_priority([0, 1], torch.tensor([5.0, 0.1]))
    replay.dumps(tmp_path / "saved")
    state = replay.state_dict()
    loaded.loads(tmp_path / "saved")
    restored.load_state_dict(state)
    for _ in range(3):
        wanted = replay.sample()
        assert (loaded.sample() == wanted).all()
        assert (restored.sample() == wanted).all()
    assert (
        loaded.extend(numbers(3)).tolist() == restored.extend(numbers(3)).tolist() == replay.extend(numbers(3)).tolist()
    )
    assert (loaded[:] == replay[:]).all()
    with pytest.raises(ValueError, match=rf"samples are of a '{kind}', this replay has a TensorDictStorage"):
        ExperienceReplay(storage=10, sampler=PrioritizedSampler()).loads(tmp_path / "saved")


def test_what_lies_in_a_storage_of_torchrl_is_there(tmp_path: Path) -> None:
    inner = torchrl.LazyMemmapStorage(10, scratch_dir=tmp_path / "memmap")
    theirs = torchrl.ReplayBuffer(storage=inner, batch_size=4)
    theirs.extend(numbers(6))
    ours = ExperienceReplay(storage=inner, sampler=SamplerWithoutReplacement(), batch_size=3)
    assert sorted(torch.cat([batch["x"] for batch in ours]).tolist()) == list(range(6))
    ours.extend(numbers(2, start=6))
    assert theirs[:]["x"].tolist() == list(range(8))
    with pytest.raises(ValueError, match="has 2 axes"):
        ExperienceReplay(storage=torchrl.LazyTensorStorage(10, ndim=2))


# -- our storages in TorchRL's replay ----------------------------------------------------------------------


@pytest.fixture(params=["memory", "ring", "disk", "buffer"])
def ours(request: Any, tmp_path: Path) -> Iterator[ExperienceReplay]:
    """A replay of ours with samples."""
    if request.param == "buffer":
        space = DictSpace(NumpyComputeBackend, {"x": BoxSpace(NumpyComputeBackend, -99, 99, "int64", shape=(2,))})
        buffer = ReplayBuffer.create(space, capacity=8)
        buffer.extend({"x": np.arange(20).reshape(10, 2)})
        replay = ExperienceReplay(storage=buffer)
    else:
        path = tmp_path / "storage" if request.param == "disk" else None
        replay = ExperienceReplay(storage=TensorDictStorage(8 if request.param == "ring" else None, cache_path=path))
        for start in range(0, 12, 3):
            replay.extend(numbers(3, start=start))
    with replay:
        yield replay


def test_a_replay_of_torchrl_takes_a_storage_of_ours(ours: ExperienceReplay) -> None:
    wanted = ours[:]
    theirs = torchrl.ReplayBuffer(storage=ours.storage, batch_size=5)
    assert len(theirs) == len(ours)
    assert (theirs[:] == wanted).all()
    sample, info = theirs.sample(return_info=True)
    assert (sample.exclude("index") == wanted[info["index"]]).all()
    theirs.set_("x", torch.zeros_like(wanted["x"]))
    theirs.extend(wanted[:2].apply(torch.zeros_like))
    assert not theirs[:]["x"].any()
    assert (ours[:] == wanted).all()  # what TorchRL changes is its own
    with_dicts = torchrl.TensorDictReplayBuffer(
        storage=ours.storage, batch_size=5, sampler=torchrl.SamplerWithoutReplacement()
    )
    assert sorted(torch.cat([batch["index"] for batch in with_dicts]).tolist()) == list(range(len(ours)))


def test_samples_on_disk_stay_there(tmp_path: Path) -> None:
    """TorchRL reads from our files: its tensors lie in mapped memory, not in a copy."""
    with ExperienceReplay(storage=TensorDictStorage(cache_path=tmp_path / "storage")) as ours:
        ours.extend(numbers(10))
        data = torchrl.ReplayBuffer(storage=ours.storage)[:]
        mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "block-0.bin" in line]
        ranges = [tuple(int(bound, 16) for bound in line[0].split("-")) for line in mapped]
        assert any(start <= data["image"].data_ptr() < end for start, end in ranges)


def test_an_empty_storage_that_grows_has_nothing_to_adapt() -> None:
    with pytest.raises(ValueError, match="the storage is empty"):
        torchrl.ReplayBuffer(storage=TensorDictStorage())


# -- an empty storage of ours, which TorchRL writes to -----------------------------------------------------


@pytest.fixture(params=["memory", "disk"])
def empty(request: Any, tmp_path: Path) -> TensorDictStorage:
    return TensorDictStorage(10, cache_path=tmp_path / "storage" if request.param == "disk" else None)


def plain(count: int, *, start: int = 0) -> TensorDict:
    x = torch.arange(start, start + count)
    return TensorDict({"x": x, "next": {"y": x[:, None] * torch.ones(3)}}, [count])


def test_what_torchrl_writes_lies_in_our_storage(empty: TensorDictStorage) -> None:
    ours, theirs = ExperienceReplay(storage=empty), torchrl.ReplayBuffer(storage=empty, batch_size=4)
    known = torchrl.ReplayBuffer(storage=torchrl.LazyTensorStorage(10), batch_size=4)
    assert empty.max_size == theirs.storage.max_size == 10  # which a PrioritizedReplayBuffer asks for
    with pytest.raises(RuntimeError, match="empty storage"):
        theirs.sample()
    for start, count in ((0, 3), (3, 4), (7, 1), (8, 9), (17, 10), (27, 13)):
        for buffer in (theirs, known):
            buffer.extend(plain(count, start=start)) if count > 1 else buffer.add(plain(1, start=start)[0])
        assert (theirs[:] == known[:]).all()
        assert (ours[:] == known[:]).all()
        assert len(ours) == len(theirs) == len(known)
    newest = empty.index_of(np.arange(10))  # from the oldest on
    assert ours["x"][newest].tolist() == list(range(30, 40))
    assert theirs.sample()["x"].shape == (4,)
    theirs.empty()
    assert len(ours) == len(theirs) == 0
    theirs.extend(plain(2))
    assert ours["x"].tolist() == [0, 1]


def test_what_torchrl_sets_is_set_in_our_storage(empty: TensorDictStorage) -> None:
    ours, theirs = ExperienceReplay(storage=empty), torchrl.TensorDictReplayBuffer(storage=empty, batch_size=4)
    theirs.extend(plain(6))
    theirs.set_at_("x", torch.tensor([70, 80]), torch.tensor([1, 2]))
    theirs.set_(("next", "y"), torch.full((6, 3), 5.0))
    theirs.update_(TensorDict({"x": theirs[:]["x"] + 1}, [6]))
    theirs[3:5] = theirs[0:2]
    theirs[[5], ...] = theirs[[0]]
    assert ours["x"].tolist() == theirs["x"].tolist() == [1, 71, 81, 1, 71, 1]
    assert (ours["next", "y"] == 5).all()
    data = theirs.read_all_in_order()
    data["value"] = data["x"] * 2
    theirs.write_all(data)
    assert ours["value"].tolist() == [2, 142, 162, 2, 142, 2]
    data["x"].zero_()  # what was read is the reader's own
    assert ours["x"].tolist() == [1, 71, 81, 1, 71, 1]
    with pytest.raises(TypeError, match="Tensor, a TensorDictStorage keeps TensorDicts"):
        torchrl.ReplayBuffer(storage=TensorDictStorage(4)).extend(torch.zeros(3))


@pytest.mark.parametrize("written", [4, 10, 13])
def test_what_torchrl_saves_of_our_storage_it_loads(empty: TensorDictStorage, written: int, tmp_path: Path) -> None:
    theirs, loaded, restored = (
        torchrl.ReplayBuffer(storage=storage, batch_size=4)
        for storage in (empty, TensorDictStorage(10), TensorDictStorage(10))
    )
    theirs.extend(plain(written))
    for _ in range(2):
        theirs.dumps(tmp_path / "saved")
    loaded.loads(tmp_path / "saved")
    restored.load_state_dict(theirs.state_dict())
    for buffer in (loaded, restored):
        assert (buffer[:] == theirs[:]).all()
        assert buffer.write_count == written
        assert buffer.extend(plain(3)).tolist() == (np.arange(written, written + 3) % 10).tolist()
    copied = pickle.loads(pickle.dumps(loaded))
    assert (copied[:] == loaded[:]).all()
    observed = []
    theirs.register_save_hook(lambda data, path=None: observed.append(len(data)) or data)
    theirs.dumps(tmp_path / "hooked")
    assert observed == [min(written, 10)]


def steps(count: int) -> TensorDict:
    """Steps of episodes of four, in TED form; the last episode is under way."""
    x, flag = torch.arange(count), torch.arange(count)[:, None] % 4 == 3
    flags = {"done": flag, "terminated": flag, "truncated": flag & False}
    rest = {name: torch.zeros_like(flag) for name in flags}
    after = {"observation": x + 1, "reward": torch.ones(count, 1), **flags}
    return TensorDict({"observation": x, "action": x, **rest, "next": after}, [count])


@pytest.mark.parametrize("kind", ["TensorStorage", "FlatStorage", "NestedStorage", "H5Storage"])
@pytest.mark.parametrize("written", [6, 10, 14])
def test_checkpointers_of_torchrl_save_our_storage(kind: str, written: int, tmp_path: Path) -> None:
    def make(storage: Any) -> Any:
        buffer = torchrl.ReplayBuffer(storage=storage)
        buffer.storage.checkpointer = getattr(torchrl, f"{kind}Checkpointer")()
        return buffer

    ours, loaded, theirs = make(TensorDictStorage(10)), make(TensorDictStorage(10)), make(torchrl.LazyTensorStorage(10))
    for name, buffer in (("ours", ours), ("theirs", theirs)):
        buffer.extend(steps(written))
        buffer.dumps(tmp_path / name)
        loaded.loads(tmp_path / name)
        assert (loaded[:].select(*ours[:].keys(True, True)) == ours[:]).all()
        assert len(loaded) == len(ours)


def test_samplers_of_torchrl_draw_from_our_storage(empty: TensorDictStorage) -> None:
    sampler = torchrl.SliceSampler(slice_len=3, end_key=("next", "done"))
    theirs = torchrl.TensorDictReplayBuffer(storage=empty, sampler=sampler, batch_size=6)
    done = torch.arange(10)[:, None] % 3 == 2
    theirs.extend(plain(9).set(("next", "done"), done[:9]))
    for _ in range(3):
        slices = theirs.sample()["x"].reshape(2, 3)
        assert (slices[:, 0] % 3 == 0).all()
        assert (slices.diff(dim=1) == 1).all()
    theirs.set_sampler(torchrl.SamplerWithoutReplacement())
    theirs.set_writer(torchrl.TensorDictMaxValueWriter(rank_key="x"))
    theirs.empty()
    theirs.extend(plain(9).set(("next", "done"), done[:9]))
    theirs.add(plain(1, start=9).set(("next", "done"), done[9:])[0])  # to which the writer adds an entry
    theirs.extend(plain(5, start=-5).set(("next", "done"), done[:5]))
    assert sorted(torch.cat([batch["x"] for batch in theirs]).tolist()) == list(range(10))


# -- preprocessing -----------------------------------------------------------------------------------------


def changed(data: TensorDict) -> TensorDict:
    """Other keys and dtypes, and which process has made them."""
    pair = torch.stack([data["x"], data["x"] + 1], -1).to(torch.float64)
    return TensorDict({"pair": pair, "pid": torch.full((len(data),), os.getpid())}, data.batch_size)


def test_the_result_of_preprocess_in_a_replay_of_torchrl(tmp_path: Path) -> None:
    replay = ExperienceReplay(storage=12)
    replay.extend(numbers(12))
    storage = replay.preprocess(changed, num_workers=2, chunksize=3, mp_start_method="fork", dest=tmp_path / "new")
    theirs = torchrl.ReplayBuffer(storage=storage, batch_size=4)
    assert theirs[:]["pair"].tolist() == [[x, x + 1] for x in range(12)]
    assert theirs.sample()["pair"].dtype == torch.float64
    assert pickle.loads(pickle.dumps(theirs.storage))[:]["pair"].tolist() == theirs[:]["pair"].tolist()
    storage.close()


def test_forked_processes_are_replaced_after_some_tasks(tmp_path: Path) -> None:
    replay = ExperienceReplay(storage=12)
    replay.extend(numbers(12))
    options: Any = {"num_workers": 2, "chunksize": 1, "mp_start_method": "fork"}
    storage = replay.preprocess(changed, max_tasks_per_child=2, dest=tmp_path / "new", **options)
    with ExperienceReplay(storage=storage) as made:
        assert made["pair"].tolist() == [[x, x + 1] for x in range(12)]
        assert made["pid"].unique(return_counts=True)[1].tolist() == [2] * 6
        assert os.getpid() not in made["pid"]
    with pytest.raises(ValueError, match="max_tasks_per_child is 0"):
        replay.preprocess(changed, max_tasks_per_child=0, dest=tmp_path / "other", **options)


def test_a_process_that_dies_is_an_error_and_no_other_process_stays(tmp_path: Path) -> None:
    def die(data: TensorDict) -> TensorDict:
        if 5 in data["x"].tolist():
            os.kill(os.getpid(), signal.SIGKILL)
        return data.select("x")

    replay = ExperienceReplay(storage=12)
    replay.extend(numbers(12))
    with pytest.raises(BrokenProcessPool):
        replay.preprocess(die, num_workers=2, chunksize=1, mp_start_method="fork", dest=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    for process in multiprocessing.active_children():
        process.join(30)
    assert multiprocessing.active_children() == []


def test_a_pool_and_a_generator_give_the_same_numbers(tmp_path: Path) -> None:
    def noisy(data: TensorDict) -> TensorDict:
        return TensorDict({"noisy": data["x"] + torch.rand(data.batch_size)}, data.batch_size)

    replay = ExperienceReplay(storage=12)
    replay.extend(numbers(12))
    found = []
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for number, options in enumerate(({}, {"pool": pool}, {"num_workers": 2, "mp_start_method": "fork"})):
            seeded = torch.Generator().manual_seed(4)
            storage = replay.preprocess(noisy, chunksize=5, generator=seeded, dest=tmp_path / str(number), **options)
            found.append(storage.get_column(("noisy",), np.arange(12)).tolist())
            storage.close()
    assert found[0] == found[1] == found[2]


# -- what TorchRL's own tests of these methods ask for -------------------------------------------------------


def test_the_hooks_of_torchrl_are_told_of_the_storage(tmp_path: Path) -> None:
    for written in (6, 10, 12):
        data = numbers(written)
        steps = {"observation": data["x"], "next": {"observation": data["x"] + 1, "done": data["x"] % 4 == 3}}
        replay, other = (ExperienceReplay(storage=10, batch_size=4) for _ in range(2))
        hook = torchrl.TED2Flat(done_keys=("done",), reward_keys=())
        replay.register_save_hook(hook)
        other.register_load_hook(torchrl.Flat2TED(done_keys=("done",), reward_keys=()))
        ends = steps["next"]["done"][:, None].clone()
        ends[-1] = True
        replay.extend(
            TensorDict({"observation": steps["observation"], "next": {**steps["next"], "done": ends}}, [written])
        )
        replay.dumps(tmp_path / str(written))
        assert (hook.shift, hook.is_full) == ((written - 1) % 10 + 1, written >= 10)
        other.loads(tmp_path / str(written))
        for key in ("observation", ("next", "observation")):
            assert torch.equal(other[key], replay[key]), (written, key)


def test_a_storage_is_read_by_index_and_iterated_over(ours: ExperienceReplay) -> None:
    wanted = ours[:]
    assert (ours.storage[2] == wanted[2]).all()
    assert (ours.storage[1:4] == wanted[1:4]).all()
    assert (ours.storage[torch.tensor([3, 0])] == wanted[[3, 0]]).all()
    assert torch.equal(torch.stack([sample["x"] for sample in ours.storage]), wanted["x"])


def test_a_list_of_samples_is_added(tmp_path: Path) -> None:
    replay = ExperienceReplay(storage=10)
    assert replay.extend([numbers(1, start=n)[0] for n in range(3)]).tolist() == [0, 1, 2]
    assert replay["x"].tolist() == [0, 1, 2]


def test_what_cannot_be_drawn_is_a_runtime_error_too() -> None:
    replay = ExperienceReplay(storage=10)
    with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
        replay.sample(3)
    replay.extend(numbers(4))
    with pytest.raises(RuntimeError, match="batch_size not specified"):
        replay.sample()
    with pytest.raises(RuntimeError, match="Cannot iterate over the replay buffer"):
        next(iter(replay))
    with pytest.raises(ValueError, match="drop_last=True need batches of one size"):
        ExperienceReplay(storage=10, sampler=SamplerWithoutReplacement(drop_last=True))
    with pytest.raises(ValueError, match="index 3 for 0 transforms"):
        replay.insert_transform(3, lambda data: data)


def test_slices_end_with_an_entry_where_there_is_no_key_of_trajectories() -> None:
    sampler = torchrl.SliceSampler(slice_len=3, traj_key="missing", end_key=("next", "done"))
    replay = ExperienceReplay(storage=12, sampler=sampler, batch_size=9)
    replay.extend(numbers(12))  # done at 0, 3, 6 and 9
    slices = replay.sample()["x"].reshape(3, 3)
    assert (slices[:, 0] % 3 == 1).all()
    assert (slices.diff(dim=1) == 1).all()


class CountingSampler(torchrl.RandomSampler):  # type: ignore[misc]
    """Notes the indices that it is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[int] = []

    def extend(self, index: Any) -> None:
        self.told += index.tolist()


def test_a_sampler_of_torchrl_hears_of_what_another_replay_writes() -> None:
    storage, sampler = TensorDictStorage(8), CountingSampler()
    one, other = ExperienceReplay(storage=storage), ExperienceReplay(storage=storage, sampler=sampler)
    one.extend(numbers(5))
    other.sample(2)
    assert sampler.told == [0, 1, 2, 3, 4]
    other.extend(numbers(1))
    one.extend(numbers(3))
    other.sample(2)
    assert sampler.told == [0, 1, 2, 3, 4, 5, 6, 7, 0]


def test_a_trajectory_gets_the_highest_of_its_priorities() -> None:
    sampler = PrioritizedSampler(seed=0, alpha=1.0, eps=0.0)
    replay = ExperienceReplay(storage=4, sampler=sampler)
    replay.extend(TensorDict({"x": torch.zeros(3, 5)}, [3, 5]))
    batch = replay.sample(64)
    batch["td_error"] = torch.where(batch["index"] == 1, 7.0, 0.0) * torch.arange(5.0)
    replay.update_tensordict_priority(batch)
    assert set(replay.sample(64)["index"][:, 0].tolist()) == {1}


class WeighingSampler(torchrl.RandomSampler):  # type: ignore[misc]
    """Says the weight of a single sample without an axis, as TorchRL's prioritized sampler does."""

    def sample(self, storage: Any, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        index, _ = super().sample(storage, batch_size)
        return index, {"priority_weight": torch.ones(batch_size).squeeze()}


@pytest.mark.parametrize("count", [1, 3])
def test_what_a_sampler_says_has_an_axis_for_the_samples(count: int) -> None:
    replay = ExperienceReplay(storage=8, sampler=WeighingSampler())
    replay.extend(numbers(5))
    batch, info = replay.sample(count, return_info=True)
    assert info["priority_weight"].tolist() == batch[:]["priority_weight"].tolist() == [1.0] * count


@pytest.mark.parametrize("name", ["RoundRobinWriter", "TensorDictRoundRobinWriter", "ImmutableDatasetWriter"])
def test_writers_of_torchrl_stand_for_ours(name: str) -> None:
    writer = getattr(torchrl, name)()
    replay = ExperienceReplay(storage=4)
    replay.extend(numbers(3))
    replay.set_writer(writer)
    if name == "ImmutableDatasetWriter":
        with pytest.raises(RuntimeError, match="nothing can be added"):
            replay.extend(numbers(3))
    else:
        assert replay.extend(numbers(3)).tolist() == [3, 0, 1]
    assert type(ExperienceReplay(storage=4, writer=writer).writer).__name__ == name.removeprefix("TensorDict")
    with pytest.raises(TypeError, match="writer is TensorDictMaxValueWriter: wanted a RoundRobinWriter"):
        replay.set_writer(torchrl.TensorDictMaxValueWriter(rank_key="x"))


def test_samples_of_different_shapes_are_refused() -> None:
    replay = ExperienceReplay(storage=8)
    samples = [TensorDict({"a": torch.zeros(length)}, []) for length in (2, 3)]
    for data in (samples, lazy_stack(samples), lazy_stack([TensorDict({"in": sample}, []) for sample in samples])):
        with pytest.raises(ValueError, match="pad shorter values"):
            replay.extend(data)
    assert not replay.initialized


@pytest.mark.parametrize("kind", [SamplerWithoutReplacement, torchrl.SamplerWithoutReplacement], ids=["ours", "theirs"])
def test_a_function_makes_the_sampler(kind: Any) -> None:
    replay = ExperienceReplay(storage=8, sampler=kind, batch_size=2)
    replay.extend(numbers(6))
    for sampler in (kind, functools.partial(kind, drop_last=True), lambda: kind()):
        replay.set_sampler(sampler)
        assert isinstance(replay.sampler, kind)
        assert sorted(torch.cat([batch["x"] for batch in replay]).tolist()) == list(range(6))
    with pytest.raises(ValueError, match="drop_last=True need batches of one size"):
        ExperienceReplay(storage=8, sampler=functools.partial(kind, drop_last=True))
    with pytest.raises(TypeError, match="sampler is int: wanted one of"):
        replay.set_sampler(lambda: 3)
