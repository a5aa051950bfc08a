"""What an experience replay does with its storage, sampler, writer and transforms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from unienv_data import ReplayBuffer
from unienv_data.datasets import ExperienceReplay, ImmutableDatasetWriter, RoundRobinWriter, TensorDictStorage
from unienv_data.samplers import PrioritizedSampler, RandomSampler, SamplerWithoutReplacement, SliceSampler
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace, DictSpace


def numbers(*values: int, **further: Any) -> TensorDict:
    """Samples that are told apart by a number."""
    x = torch.tensor(values)
    data = {"x": x, "next": {"y": x.to(torch.float32)[:, None] / 2, "done": x % 3 == 0}, **further}
    return TensorDict(data, [len(values)])


def contents(replay: ExperienceReplay) -> list[int]:
    return replay["x"].tolist()


def filled(count: int = 10, **options: Any) -> ExperienceReplay:
    replay = ExperienceReplay(**{"storage": 16, "batch_size": 4, **options})
    replay.extend(numbers(*range(count)))
    return replay


# -- writing -----------------------------------------------------------------------------------------------


def test_samples_go_round() -> None:
    replay = ExperienceReplay(storage=4)
    assert not replay.initialized
    assert replay.add(numbers(0)[0]) == 0
    assert replay.initialized
    assert replay.extend(numbers(1, 2)).tolist() == [1, 2]
    assert replay.extend(numbers(3, 4, 5)).tolist() == [3, 0, 1]
    assert contents(replay) == [4, 5, 2, 3]
    assert replay.extend(numbers(*range(10, 20))).tolist() == [(6 + i) % 4 for i in range(10)]
    assert sorted(contents(replay)) == [16, 17, 18, 19]
    assert contents(replay)[19 % 4] in contents(replay)
    assert (len(replay), replay.write_count) == (4, 16)


def test_index_is_where_a_sample_lies_however_often_the_ring_goes_round() -> None:
    replay = ExperienceReplay(storage=5, sampler=RandomSampler(seed=0))
    for start in range(0, 40, 3):
        index = replay.extend(numbers(start, start + 1, start + 2))
        assert replay[index]["x"].tolist() == [start, start + 1, start + 2]
        sample = replay.sample(20)
        assert sample["x"].tolist() == replay["x"][sample["index"]].tolist()


def test_a_replay_without_a_size_grows() -> None:
    replay = ExperienceReplay()
    for start in range(0, 3000, 500):
        replay.extend(numbers(*range(start, start + 500)))
    assert contents(replay) == list(range(3000))


def test_empty_begins_anew() -> None:
    replay = filled()
    replay.empty(empty_write_count=False)
    assert (len(replay), replay.write_count) == (0, 10)
    assert replay.extend(numbers(7)).tolist() == [0]
    replay.empty()
    assert replay.write_count == 0
    with pytest.raises(ValueError, match="Cannot sample from an empty storage"):
        replay.sample()


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    replay = filled(3)
    other_shape = TensorDict({"x": torch.zeros(2, 2), "next": {"y": torch.zeros(2, 1), "done": torch.zeros(2)}}, [2])
    with pytest.raises(ValueError, match="x"):
        replay.extend(other_shape)
    with pytest.raises(ValueError, match="next"):
        replay.extend(TensorDict({"x": torch.arange(2)}, [2]))
    with pytest.raises(TypeError, match="leading axis"):
        replay.extend(numbers(1)[0])
    with pytest.raises(TypeError, match=r"name: .* only tensors"):
        replay.extend(numbers(1, 2).set("name", "text"))
    assert contents(replay) == [0, 1, 2]


def test_an_immutable_writer_says_how_to_get_a_copy() -> None:
    replay = filled()
    previous = replay.set_writer(ImmutableDatasetWriter())
    assert isinstance(previous, RoundRobinWriter)
    for write in (lambda: replay.add(numbers(1)[0]), lambda: replay.extend(numbers(1))):
        with pytest.raises(PermissionError, match="copy that can be written to"):
            write()
    with pytest.raises(PermissionError, match="recorded dataset"):
        replay.empty()
    copy = ExperienceReplay(storage=TensorDictStorage(32))
    copy.extend(replay[:])
    copy.add(numbers(99)[0])
    assert contents(copy) == [*range(10), 99]


# -- sampling ----------------------------------------------------------------------------------------------


def test_sample_and_its_infos() -> None:
    replay = filled(sampler=PrioritizedSampler(seed=0))
    sample, info = replay.sample(return_info=True)
    assert sample.batch_size == torch.Size([4])
    assert set(info) == {"index", "weight", "number"} <= set(sample.keys())
    assert torch.equal(sample["x"], sample["index"])
    assert set(replay.sample(7, include_info=False).keys()) == {"x", "next"}
    with pytest.raises(ValueError, match="batch_size is 0"):
        replay.sample(0)
    with pytest.raises(ValueError, match="batch_size not specified"):
        ExperienceReplay(storage=4).sample()


def test_what_was_sampled_does_not_change_with_the_storage() -> None:
    replay = filled()
    sample = replay.sample()
    before = sample.clone()
    replay.extend(numbers(*range(100, 116)))
    assert (sample == before).all()


@pytest.mark.parametrize("prefetch", [None, 3])
def test_iteration_ends_with_the_epoch(prefetch: int | None) -> None:
    with filled(sampler=SamplerWithoutReplacement(seed=0), prefetch=prefetch) as replay:
        for _ in range(3):
            batches = list(replay)
            assert [len(batch) for batch in batches] == [4, 4, 2]
            assert sorted(torch.cat([batch["x"] for batch in batches]).tolist()) == list(range(10))
        assert [None if (batch := replay.next()) is None else len(batch) for _ in range(5)] == [4, 4, 2, None, 4]


def test_reading_ahead_gives_the_same_batches() -> None:
    plain = filled(sampler=RandomSampler(seed=5))
    with filled(sampler=RandomSampler(seed=5), prefetch=4) as ahead:
        for _ in range(20):
            assert (plain.sample() == ahead.sample()).all()


def test_an_error_while_reading_ahead_reaches_the_caller() -> None:
    def fail(data: Any) -> Any:
        raise RuntimeError("in the transform")

    with filled(prefetch=2, transform=fail) as replay, pytest.raises(RuntimeError, match="in the transform"):
        replay.sample()


def test_collate_and_transforms_in_order() -> None:
    replay = filled(collate_fn=lambda data: data.set("a", data["x"] * 10))
    replay.append_transform(lambda data: data.set("b", data["a"] + 1))
    replay.insert_transform(0, lambda data: data.set("a", data["a"] + 5))
    sample = replay.sample()
    assert torch.equal(sample["b"], sample["x"] * 10 + 6)
    assert len(replay.transform) == 2


def test_an_inverted_transform_runs_on_writing() -> None:
    def add_one(data: Any) -> Any:
        data += 1
        return data

    replay = ExperienceReplay(storage=10, batch_size=4)
    data = TensorDict({"a": torch.zeros(10)}, [10])
    assert replay.append_transform(add_one, invert=True) is replay
    replay.extend(data)
    assert (data["a"] == 1).all()
    assert (replay.sample()["a"] == 1).all()


def test_a_transform_with_a_way_back() -> None:
    class Scale:
        def __call__(self, data: Any) -> Any:
            return data.set("x", data["x"] * 10)

        def inv(self, data: Any) -> Any:
            return data.clone().set("x", data["x"] // 10)

    replay = ExperienceReplay(storage=10, transform=Scale())
    replay.extend(numbers(50, 60))
    assert replay.storage.get(np.arange(2))["x"].tolist() == [5, 6]
    assert replay[:]["x"].tolist() == [50, 60]


def test_parts_are_exchanged_and_the_previous_one_returned() -> None:
    replay = filled()
    before = replay.sampler
    assert replay.set_sampler(SamplerWithoutReplacement(shuffle=False)) is before
    assert replay.sample()["x"].tolist() == [0, 1, 2, 3]
    storage = TensorDictStorage(4)
    storage.extend(numbers(7, 8), 2)
    assert len(replay.set_storage(storage)) == 10
    assert contents(replay) == [7, 8]
    with pytest.raises(TypeError, match="sampler is int"):
        replay.set_sampler(3)
    with pytest.raises(TypeError, match="storage is str"):
        ExperienceReplay(storage="somewhere")


@pytest.mark.parametrize("size", [None, 12])
def test_slices_of_episodes_that_an_entry_tells_apart(size: int | None) -> None:
    sampler = SliceSampler(slice_len=2, episode_key="episode", seed=0)
    replay = ExperienceReplay(storage=TensorDictStorage(size), sampler=sampler, batch_size=20)
    for episode in range(8):
        replay.extend(numbers(*range(3 * episode, 3 * episode + 3), episode=torch.full((3,), episode)))
        sample = replay.sample()
        pairs = sample["x"].reshape(10, 2)
        assert (pairs[:, 1] - pairs[:, 0] == 1).all()
        assert (sample["episode"].reshape(10, 2).diff() == 0).all()
        assert set(sample["episode"].tolist()) <= set(replay["episode"].tolist())


# -- priorities --------------------------------------------------------------------------------------------


def test_priorities_by_index_in_batches_and_on_writing() -> None:
    replay = filled(8, storage=8, sampler=PrioritizedSampler(alpha=1.0, seed=0))
    replay.sample()
    replay.update_priority(torch.arange(8), torch.tensor([0.0] * 7 + [5.0]))
    assert replay.sample(20)["x"].unique().tolist() == [7]
    replay.extend(numbers(8, 9, td_error=torch.tensor([0.0, 0.0])).exclude("td_error"))
    sample = replay.sample(200)
    assert set(sample["x"].tolist()) == {7, 8, 9}  # new ones come with the highest priority
    sample["td_error"] = (sample["x"] == 9).to(torch.float32)
    replay.update_tensordict_priority(sample)
    assert replay.sample(50)["x"].unique().tolist() == [9]
    with pytest.raises(TypeError, match="RandomSampler has no priorities"):
        filled().update_priority(0, 1.0)


# -- changing ----------------------------------------------------------------------------------------------


def test_entries_are_set_in_place() -> None:
    replay = filled(4)
    assert replay.set_("x", 7) is replay
    assert contents(replay) == [7] * 4
    replay.set_at_(("next", "y"), torch.tensor([[1.0], [2.0]]), [3, 0])
    assert replay["next", "y"].tolist() == [[2.0], [0.5], [1.0], [1.0]]
    replay.update_({"x": torch.arange(4), "next": {"done": torch.ones(4, dtype=torch.bool)}}, keys_to_update=["x"])
    assert contents(replay) == [0, 1, 2, 3]
    assert replay["next", "done"].tolist() == [True, False, False, True]
    with pytest.raises(ValueError, match="want"):
        replay.set_("x", torch.zeros(3))


def test_all_is_read_and_written_in_order() -> None:
    replay = filled(4)
    data = replay.read_all_in_order()
    data["x"] += 10
    replay.write_all(data)
    assert contents(replay) == [10, 11, 12, 13]
    replay.write_all(numbers(0, 1))
    assert contents(replay) == [0, 1, 12, 13]
    replay.write_all(numbers(5, 6, 7), end=1)
    assert contents(replay) == [5, 1, 12, 13]
    assert replay.read_all_in_order(2)["x"].tolist() == [5, 1]
    replay[1:3] = numbers(8, 9)
    replay[-1] = numbers(4)[0]
    assert contents(replay) == [5, 8, 9, 4]
    with pytest.raises(ValueError, match="data has 5 samples and the replay 4"):
        replay.write_all(numbers(*range(5)))
    with pytest.raises(IndexError):
        replay[4]


# -- a batch as storage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_replay_buffer_is_a_storage(place: str, tmp_path: Path) -> None:
    space = DictSpace(NumpyComputeBackend, {"x": BoxSpace(NumpyComputeBackend, -99, 99, "int64", shape=())})
    options: Any = {"cache_path": tmp_path / "buffer"} if place == "disk" else {}
    with ReplayBuffer.create(space, capacity=6, **options) as buffer:
        buffer.extend({"x": np.arange(4)})
        replay = ExperienceReplay(storage=buffer, batch_size=3)
        replay.extend(TensorDict({"x": torch.arange(4, 8)}, [4]))
        assert buffer.get_at(...)["x"].tolist() == contents(replay) == [2, 3, 4, 5, 6, 7]
        sample = replay.sample()
        assert sample["x"].tolist() == (sample["index"] + 2).tolist()
        replay.set_at_("x", 50, 0)
        assert buffer.get_at(0)["x"] == 50
        replay.dumps(tmp_path / "saved")
        replay.empty()
        replay.loads(tmp_path / "saved")
        assert contents(replay) == [50, 3, 4, 5, 6, 7]


# -- saving ------------------------------------------------------------------------------------------------

SAMPLERS = {
    "random": lambda: RandomSampler(seed=1),
    "epochs": lambda: SamplerWithoutReplacement(seed=1),
    "prioritized": lambda: PrioritizedSampler(seed=1),
}


@pytest.mark.parametrize("prefetch", [None, 2])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_saved_replay_goes_on_as_it_would_have(kind: str, prefetch: int | None, tmp_path: Path) -> None:
    def make() -> ExperienceReplay:
        return ExperienceReplay(storage=8, sampler=SAMPLERS[kind](), batch_size=3, prefetch=prefetch)

    with make() as replay, make() as other:
        for start in range(0, 20, 5):
            replay.extend(numbers(*range(start, start + 5)))
            sample = replay.sample()
            if kind == "prioritized":
                replay.update_priority(sample["index"], torch.rand(3))
        replay.dumps(tmp_path / "saved")
        wanted = [replay.sample() for _ in range(6)]
        other.loads(tmp_path / "saved")
        assert (len(other), other.write_count, contents(other)) == (8, 20, contents(replay))
        for batch in wanted:
            found = other.sample()
            assert found["index"].tolist() == batch["index"].tolist()
            # a batch read ahead may hold what has been overwritten since
            assert prefetch is not None or (found == batch).all()
        assert other.extend(numbers(77)).tolist() == replay.extend(numbers(77)).tolist()


def test_saving_takes_the_place_of_what_was_saved_and_of_nothing_else(tmp_path: Path) -> None:
    replay = filled(3)
    replay.save(tmp_path / "saved")
    replay.extend(numbers(3))
    replay.dump(tmp_path / "saved")
    other = ExperienceReplay(storage=16)
    other.load(tmp_path / "saved")
    assert contents(other) == [0, 1, 2, 3]
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "file").touch()
    with pytest.raises(FileExistsError, match="not a saved replay"):
        replay.dumps(tmp_path / "else")
    with pytest.raises(FileNotFoundError, match="not a saved replay"):
        other.loads(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="max_size of 16"):
        ExperienceReplay(storage=4).loads(tmp_path / "saved")
    with pytest.raises(ValueError, match="saved with a RandomSampler"):
        ExperienceReplay(storage=16, sampler=PrioritizedSampler()).loads(tmp_path / "saved")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["else", "saved"]


def test_hooks_see_all_samples(tmp_path: Path) -> None:
    replay = filled(3)
    replay.register_save_hook(lambda data: data.set("x", data["x"] * 10))
    replay.dumps(tmp_path / "saved")
    assert contents(replay) == [0, 1, 2]
    plain, hooked = ExperienceReplay(storage=16), ExperienceReplay(storage=16)
    plain.loads(tmp_path / "saved")
    assert contents(plain) == [0, 10, 20]
    hooked.register_load_hook(lambda data: data.set("x", data["x"] + 1))
    hooked.loads(tmp_path / "saved")
    assert contents(hooked) == [1, 11, 21]


DTYPES = [torch.bfloat16, torch.float16, torch.uint8, torch.int32, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_come_back(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.arange(6).reshape(3, 2).to(dtype)
    replay = ExperienceReplay(storage=4)
    replay.extend(TensorDict({"v": values}, [3]))
    replay.dumps(tmp_path / "saved")
    other = ExperienceReplay(storage=4)
    other.loads(tmp_path / "saved")
    for found in (replay["v"], other["v"], replay[:]["v"]):
        assert found.dtype == dtype
        assert torch.equal(found, values)


# -- preprocess --------------------------------------------------------------------------------------------


def changed(data: Any) -> Any:
    """Other keys, shapes and dtypes."""
    pair = torch.stack([data["x"], data["x"] + 1], -1).to(torch.float64)
    return TensorDict({"pair": pair, "next": {"flag": data["x"] % 2 == 0}}, data.batch_size)


@pytest.mark.parametrize(
    "options",
    [{}, {"chunksize": 3}, {"num_chunks": 4}, {"chunksize": 0, "pbar": True}],
    ids=["plain", "chunksize", "num_chunks", "single samples"],
)
def test_preprocess_makes_a_storage(options: Any, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()  # as a temporary folder is
    storage = filled().preprocess(changed, dest=tmp_path / "new", **options)
    replay = ExperienceReplay(storage=storage, batch_size=5)
    assert replay["pair"].tolist() == [[x, x + 1] for x in range(10)]
    assert replay["next", "flag"].tolist() == [x % 2 == 0 for x in range(10)]
    assert replay.sample()["pair"].dtype == torch.float64
    assert len(filled().preprocess(changed, dest=tmp_path / "short", num_frames=3)) == 3


def test_preprocess_in_another_process(tmp_path: Path) -> None:
    """The worker opens a storage that this process has made, and draws the numbers that it would."""
    replay, path = filled(), tmp_path / "pairs"
    replay.preprocess(changed, dest=path)

    def noisy(data: Any) -> Any:
        pair = TensorDictStorage.open(path).get_column(("pair",), data["x"].numpy())
        return TensorDict({"noisy": pair + torch.rand(pair.shape)}, data.batch_size)

    found = []
    for number, workers in enumerate([None, 1]):
        seeded = torch.Generator().manual_seed(3)
        storage = replay.preprocess(
            noisy, num_workers=workers, chunksize=3, generator=seeded, dest=tmp_path / str(number)
        )
        found.append(storage.get_column(("noisy",), np.arange(10)))
    assert torch.equal(*found)
    assert found[0].floor().tolist() == [[x, x + 1] for x in range(10)]


def test_a_preprocess_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(data: Any) -> Any:
        if 6 in data["x"].tolist():
            raise KeyError("in the function")
        return data

    def halve(data: Any) -> Any:
        return data[: len(data) // 2]

    replay = filled()
    with pytest.raises(KeyError, match="in the function"):
        replay.preprocess(fail, dest=tmp_path / "new", chunksize=2)
    with pytest.raises(ValueError, match="must return as many"):
        replay.preprocess(halve, dest=tmp_path / "new", chunksize=2)
    with pytest.raises(TypeError, match="returned int"):
        replay.preprocess(len, dest=tmp_path / "new")
    with pytest.raises(ValueError, match="dim is 1"):
        replay.preprocess(changed, 1, dest=tmp_path / "new")
    with pytest.raises(ValueError, match="both given"):
        replay.preprocess(changed, chunksize=1, num_chunks=1, dest=tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
