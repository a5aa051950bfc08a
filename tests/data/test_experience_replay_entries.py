"""Entries of samples: read by key and group, set, added, with their values checked; and what add and extend refuse."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from unienv_data import ReplayBuffer
from unienv_data.datasets import (
    ExperienceReplay,
    ImmutableDatasetError,
    ImmutableDatasetWriter,
    RoundRobinWriter,
    TensorDictStorage,
    tensordict_storage,
)
from unienv_data.samplers import SamplerWithoutReplacement
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace


def numbers(count: int, *, start: int = 0) -> TensorDict:
    x = torch.arange(start, start + count)
    return TensorDict({"x": x, "next": {"y": x.to(torch.float32)[:, None], "done": x % 3 == 0}}, [count])


@pytest.fixture(params=["memory", "ring", "disk", "ring on disk", "read-only batch"])
def replay(request: Any, tmp_path: Path) -> Any:
    """Six samples in a storage of each kind that takes new entries."""
    if request.param == "read-only batch":
        space = DictSpace(
            NumpyComputeBackend,
            {
                "x": BoxSpace(NumpyComputeBackend, -99, 99, "int64", shape=()),
                "next": DictSpace(
                    NumpyComputeBackend,
                    {
                        "y": BoxSpace(NumpyComputeBackend, -99, 99, "float32", shape=(1,)),
                        "done": BinarySpace(NumpyComputeBackend, ()),
                    },
                ),
            },
        )
        buffer = ReplayBuffer.create(space, capacity=8, cache_path=tmp_path / "buffer")
        data = numbers(6)
        done = data["next", "done"].numpy()
        buffer.extend({"x": data["x"].numpy(), "next": {"y": data["next", "y"].numpy(), "done": done}})
        buffer.close()
        made = ExperienceReplay(
            storage=ReplayBuffer.load_from(tmp_path / "buffer", backend=NumpyComputeBackend), batch_size=3
        )
    else:
        size = 6 if "ring" in request.param else None
        path = tmp_path / "storage" if "disk" in request.param else None
        made = ExperienceReplay(storage=TensorDictStorage(size, cache_path=path), batch_size=3)
        made.extend(numbers(3))
        made.extend(numbers(3, start=3))
    with made:
        yield made


def test_entries_are_added(replay: ExperienceReplay) -> None:
    before = replay[:]
    returns = torch.arange(6.0).flip(0)[:, None]
    assert replay.set_("return", returns) is replay
    replay.update_({"next": {"value": np.arange(12.0).reshape(6, 2)}, "flag": True})
    with pytest.raises(TypeError, match="int, wanted a TensorDict or a dict of entries"):
        replay.update_(3)
    replay.set_at_(("extra", "weight"), [0.5, 1.5], [4, 0])
    replay.set_at_("count", torch.tensor([7]), 5)
    assert torch.equal(replay["return"], returns)
    assert replay["next", "value"].dtype == torch.float64
    assert replay["flag"].tolist() == [True] * 6
    assert replay["extra", "weight"].nan_to_num(-1).tolist() == [1.5, -1, -1, -1, 0.5, -1]
    assert replay["count"].tolist() == [0, 0, 0, 0, 0, 7]
    sample = replay.sample(20)
    assert torch.equal(sample["return"], returns[sample["index"]])
    assert (replay[:].exclude("return", "flag", "extra", "count", ("next", "value")) == before).all()
    replay.set_("return", 1)  # now it is an entry like others
    assert (replay[2]["return"] == 1).all()


def test_write_all_adds_entries(replay: ExperienceReplay) -> None:
    data = replay[:]
    data["advantage"] = torch.arange(6.0)
    data["x"] = data["x"] + 10
    replay.write_all(data)
    assert (replay[:] == data).all()
    part = data[:2]
    part["late"] = torch.ones(2)
    replay.write_all(part)
    assert replay["late"].nan_to_num(-1).tolist() == [1, 1, -1, -1, -1, -1]
    replay.write_all(data.select("x").apply(lambda value: value + 1), end=3)
    assert replay["x"].tolist() == [11, 12, 13, 13, 14, 15]
    assert torch.equal(replay["advantage"], data["advantage"])


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("x", 0.5, ValueError, "x: values of torch.float32 that the entry's torch.int64 does not hold"),
        ("x", float("nan"), ValueError, "does not hold"),
        ("x", torch.zeros(5), ValueError, r"x: shape \(5,\), wanted \(6,\) for these indices"),
        (("next", "done"), 2, ValueError, "next/done: values of torch.int64"),
        (("next", "y"), torch.tensor(1j), ValueError, "next/y: values of torch.complex64"),
        ("x", "text", TypeError, "x: str is no tensor, array or number"),
        ("next", 1.0, ValueError, "next cannot be added: next is a group of entries of the samples"),
        (("x", "part"), 1.0, ValueError, "x/part cannot be added: x is an entry of the samples"),
        (
            "new",
            torch.zeros(4, 2),
            ValueError,
            r"new: shape \(4, 2\), a new entry needs the leading axes \(6,\)",
        ),
        (3, 1.0, TypeError, "key 3: wanted a string, or a tuple of strings"),
    ],
)
def test_values_and_keys_are_checked(
    replay: ExperienceReplay, key: Any, value: Any, error: type[Exception], message: str
) -> None:
    before = replay[:]
    for write in (lambda: replay.set_(key, value), lambda: replay.update_({"extra": torch.ones(6), key: value})):
        with pytest.raises(error, match=message):
            write()
    assert (replay[:] == before).all()  # "extra" is not there either


def test_a_replay_buffer_keeps_its_entries(tmp_path: Path) -> None:
    space = DictSpace(NumpyComputeBackend, {"x": BoxSpace(NumpyComputeBackend, -99, 99, "int64", shape=())})
    with ReplayBuffer.create(space, capacity=6) as buffer:
        buffer.extend({"x": np.arange(4)})
        replay = ExperienceReplay(storage=buffer)
        with pytest.raises(ValueError, match=r"y: a ReplayBuffer has fixed entries.* copy"):
            replay.set_("y", 1.0)
        copy = ExperienceReplay(storage=TensorDictStorage(6))
        copy.extend(replay[:])
        assert copy.set_("y", 1.0)["y"].tolist() == [1.0] * 4


def test_added_entries_are_there_when_the_storage_is_opened_again(tmp_path: Path) -> None:
    with ExperienceReplay(storage=TensorDictStorage(4, cache_path=tmp_path / "storage")) as replay:
        replay.extend(numbers(6))
        wanted = replay.set_("new", torch.arange(4.0)).set_("newer", 1)[:]
        replay.extend(numbers(1, start=9).update({"new": torch.ones(1), "newer": torch.ones(1, dtype=torch.int64)}))
        with pytest.raises(ValueError, match="new"):
            replay.extend(numbers(1))
    with ExperienceReplay(storage=TensorDictStorage.open(tmp_path / "storage")) as replay:
        assert (replay[[0, 1, 3]] == wanted[[0, 1, 3]]).all()
        assert replay[2]["x"] == 9
        with pytest.raises(ImmutableDatasetError, match="read_only=False"):
            replay.set_("new", 1.0)
    assert len(list((tmp_path / "storage").iterdir())) == 2  # the marker and one set of rows


def _add_an_entry_and_die(path: Path) -> None:
    replay = ExperienceReplay(storage=TensorDictStorage(cache_path=path))
    replay.extend(TensorDict({"x": torch.arange(5)}, [5]))
    replay.storage.flush()  # type: ignore[attr-defined]
    # the new rows are written, the old ones still count
    tensordict_storage.write_json = lambda path, content: os._exit(9)  # type: ignore[assignment]
    replay.set_("new", 1.0)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_process_that_is_killed_while_it_adds_an_entry_loses_nothing(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_add_an_entry_and_die, args=(tmp_path / "storage",))
    process.start()
    process.join(60)
    assert process.exitcode == 9
    assert (tmp_path / "storage" / "rows-1").exists()
    with ExperienceReplay(storage=TensorDictStorage.open(tmp_path / "storage", read_only=False)) as replay:
        assert replay["x"].tolist() == [0, 1, 2, 3, 4]
        replay.set_("new", 2.0)
    with ExperienceReplay(storage=TensorDictStorage.open(tmp_path / "storage")) as replay:
        assert replay["new"].tolist() == [2.0] * 5


def test_the_key_of_a_group_gives_its_entries(replay: ExperienceReplay) -> None:
    group = replay["next"]
    assert (group == replay[:]["next"]).all()
    assert group.batch_size == torch.Size([6])
    replay.set_(("a", "b", "c"), torch.arange(6))
    assert replay["a"]["b", "c"].tolist() == replay["a", "b"]["c"].tolist() == list(range(6))
    with pytest.raises(KeyError, match="there is no entry"):
        replay["z"]


# -- what is refused at once -------------------------------------------------------------------------------


def test_writers_and_transforms_are_checked_when_they_are_given() -> None:
    for writer in (7, "RoundRobinWriter", RoundRobinWriter):
        with pytest.raises(TypeError, match=r"writer is \w+: wanted a RoundRobinWriter"):
            ExperienceReplay(storage=4, writer=writer)
        with pytest.raises(TypeError, match="wanted a RoundRobinWriter"):
            ExperienceReplay(storage=4).set_writer(writer)
    for transform in (7, [len]):
        with pytest.raises(TypeError, match=r"transform is \w+, wanted a function of a TensorDict"):
            ExperienceReplay(storage=4, transform=transform)
    replay = ExperienceReplay(storage=4)
    with pytest.raises(TypeError, match="transform is None"):
        replay.append_transform(None)


def test_a_writer_that_cannot_write_to_its_storage_is_refused(tmp_path: Path) -> None:
    storage = TensorDictStorage(4, cache_path=tmp_path / "storage")
    storage.extend(numbers(2), 2)
    storage.close()
    opened = TensorDictStorage.open(tmp_path / "storage")
    with pytest.raises(ImmutableDatasetError, match="RoundRobinWriter cannot write to it"):
        ExperienceReplay(storage=opened, writer=RoundRobinWriter())
    replay = ExperienceReplay(storage=opened)
    assert isinstance(replay.writer, ImmutableDatasetWriter)
    with pytest.raises(ImmutableDatasetError, match="RoundRobinWriter cannot write to it"):
        replay.set_writer(RoundRobinWriter())
    replay.set_storage(TensorDictStorage(4))
    assert isinstance(replay.writer, RoundRobinWriter)
    replay.set_storage(opened)
    with pytest.raises(RuntimeError, match="nothing can be added"):
        replay.extend(numbers(1))
    replay.close()


def test_immutability_comes_before_everything_else() -> None:
    calls = []
    replay = ExperienceReplay(storage=4)
    replay.extend(numbers(2))
    replay.set_writer(ImmutableDatasetWriter())
    replay.append_transform(calls.append, invert=True)
    for write in (lambda: replay.add(numbers(1)[0]), lambda: replay.extend(numbers(1)), lambda: replay.extend("text")):
        with pytest.raises(RuntimeError, match="copy that can be written to") as caught:
            write()
        assert isinstance(caught.value, (ImmutableDatasetError, PermissionError))
    assert calls == []


def test_add_and_extend_check_what_they_get() -> None:
    replay = ExperienceReplay(storage=8, sampler=SamplerWithoutReplacement())
    replay.extend(numbers(3))
    with pytest.raises(TypeError, match="dict, add wants a TensorDict"):
        replay.add({"x": 1})
    with pytest.raises(ValueError, match=r"samples with inner axes \(3,\), the present samples have \(\)"):
        replay.add(numbers(3))
    with pytest.raises(ValueError, match=r"samples with inner axes \(1,\)"):
        replay.extend(numbers(2).unsqueeze(1))
    with pytest.raises(ValueError, match=r"samples with inner axes \(1,\)"):
        replay.extend([numbers(1)])
    for data in (7, None, [], [7], numbers(1)[0]):
        with pytest.raises(TypeError, match="extend wants a TensorDict with a leading axis"):
            replay.extend(data)
    assert replay.extend(numbers(0)).tolist() == []
    assert (len(replay), replay.write_count) == (3, 3)
    with pytest.raises(TypeError, match="write_all wants a TensorDict"):
        replay.write_all({"x": torch.zeros(3)})
    with pytest.raises(TypeError, match="samples are a TensorDict"):
        replay[0] = 7


@pytest.mark.parametrize("invert", [False, True])
def test_a_transform_that_returns_none_is_an_error(invert: bool) -> None:
    def forget(data: Any) -> None:
        data["x"] += 1

    replay = ExperienceReplay(storage=8, batch_size=2)
    replay.extend(numbers(3))
    replay.append_transform(forget, invert=invert)
    act = (lambda: replay.extend(numbers(1))) if invert else replay.sample
    with pytest.raises(TypeError, match=r"transform .*forget.* returned None, it must return the TensorDict"):
        act()
    assert len(replay) == 3


def test_entries_set_for_samples_that_move_are_an_error(tmp_path: Path) -> None:
    """A reader of a buffer that is still written to: the samples at an index are others after each write."""
    space = DictSpace(NumpyComputeBackend, {"x": BoxSpace(NumpyComputeBackend, -99, 99, "int64", shape=())})
    with ReplayBuffer.create(space, capacity=4, cache_path=tmp_path / "buffer") as buffer:
        buffer.extend({"x": np.arange(4)})
        with ReplayBuffer.load_from(tmp_path / "buffer", backend=NumpyComputeBackend) as reader:
            replay = ExperienceReplay(storage=reader)
            replay.set_("y", torch.arange(4))
            assert replay[:]["y"].tolist() == [0, 1, 2, 3]
            buffer.extend({"x": np.arange(4, 6)})
            with pytest.raises(RuntimeError, match=r"entries were set for the samples range\(0, 4\)"):
                replay.sample(2)


def test_where_samples_lie_cannot_be_set() -> None:
    replay = ExperienceReplay(storage=4)
    replay.extend(TensorDict({"a": torch.arange(3)}, [3]))
    with pytest.raises(ValueError, match="index cannot be set"):
        replay.set_("index", torch.zeros(3))
    replay.write_all(replay.sample(3))  # which has it
    assert replay[:].get("index", None) is None


def test_parts_of_samples_with_axes_of_their_own() -> None:
    replay = ExperienceReplay(storage=4)
    data = TensorDict({"a": torch.arange(15).reshape(3, 5), "in": {"b": torch.zeros(3, 5, 2)}}, [3, 5])
    replay.extend(data)
    for index in ((0, slice(3, 4)), (slice(None), 2), (slice(1, 3), slice(2)), (-1, 4), (torch.tensor(1), ...), (2,)):
        assert (replay[index] == data[index]).all()
    replay[1, 3:] = TensorDict({"a": torch.tensor([70, 80]), "in": {"b": torch.ones(2, 2)}}, [2])
    replay[:, 0] = replay[:, 1]
    assert replay["a"].tolist() == [[1, 1, 2, 3, 4], [6, 6, 7, 70, 80], [11, 11, 12, 13, 14]]
    assert replay["in", "b"].sum() == 4
    with pytest.raises(TypeError, match="must be a number or a slice"):
        replay[[0, 1], 2]
    with pytest.raises(IndexError):
        replay[3, 0]
