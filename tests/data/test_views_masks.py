"""Windows by an episode's id or last flag: against numbers worked out by hand, and against the same mask asked later.

A mask function that the library knows is applied while the windows are read; the same function inside a lambda is
asked once they have been read. Both must give the same windows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS

from unienv_data import BatchBase, CombinedBatch, ReplayBuffer, SliceStackedBatch, ToBackendOrDeviceBatch
from unienv_data.storages.npz_storage import NPZStorage
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace, DynamicBoxSpace, TextSpace

CAPACITY, SEEN = 40, 67
LENGTHS = (1, 2, 3, 9, 4, 1, 17)  # of episodes, over and over
OFFSETS = {"behind": range(-5, 1), "ahead": range(8), "both": range(-3, 4), "gaps": (-7, -2, 0, 1, 9)}
ID, END = (
    SliceStackedBatch.get_valid_mask_function_with_episodeid_key("id"),
    SliceStackedBatch.get_valid_mask_function_with_episode_end_key("end"),
)
EPISODES = [
    number for number, length in enumerate(itertools.islice(itertools.cycle(LENGTHS), 40)) for _ in range(length)
]


def space_of(kind: str, backend: ComputeBackend) -> DictSpace:
    """Samples with a number, the id of their episode, whether they end it, and something beside the row."""
    integer = backend.default_integer_dtype
    more: dict[str, Any] = {}
    if kind == "block":
        more["image"] = BoxSpace(backend, 0, 255, dtype=backend.dtype_from_name("uint8"), shape=(80, 80))
    if kind == "heap":
        more["text"] = TextSpace(backend, 12)
        more["some"] = DynamicBoxSpace(backend, 0.0, 1e6, (0,), (9,), dtype=backend.default_floating_dtype)
    return DictSpace(
        backend,
        {
            "x": BoxSpace(backend, 0, 10**6, dtype=integer, shape=()),
            "id": BoxSpace(backend, 0, 10**6, dtype=integer, shape=()),
            "end": BinarySpace(backend, (1,)),
            **more,
        },
    )


def sample(kind: str, backend: ComputeBackend, number: int) -> dict[str, Any]:
    def array(values: Any, dtype: Any) -> Any:
        return backend.from_numpy(np.array(values), dtype=dtype)

    integer, episode = backend.default_integer_dtype, EPISODES[number]
    value = {
        "x": array(number, integer),
        "id": array(episode, integer),
        "end": array([episode != EPISODES[number + 1]], backend.default_boolean_dtype),
    }
    if kind == "block":
        value["image"] = array(np.full((80, 80), number % 256), backend.dtype_from_name("uint8"))
    if kind == "heap":
        value["text"] = f"no. {number}"
        value["some"] = array(np.full(number % 9, number), backend.default_floating_dtype)
    return value


def recorded(
    kind: str = "plain", backend: ComputeBackend = NumpyComputeBackend, capacity: int | None = CAPACITY, **options: Any
) -> ReplayBuffer:
    """A buffer of the first samples, of which it does not know the episodes."""
    buffer = ReplayBuffer.create(space_of(kind, backend), capacity=capacity, **options)
    for number in range(SEEN):
        buffer.append(sample(kind, backend, number))
    return buffer


def expected(oldest: int, offsets: Sequence[int]) -> tuple[list[list[int]], list[list[bool]]]:
    """The numbers in the windows of all samples from `oldest` on, and the masks."""
    numbers, masks = [], []
    for own in range(oldest, SEEN):
        frames = [own + offset for offset in offsets]
        mask = [oldest <= frame < SEEN and EPISODES[frame] == EPISODES[own] for frame in frames]
        towards = [
            [
                f
                for f, ok in zip(frames, mask, strict=True)
                if ok and abs(f - own) <= abs(frame - own) and (f - own) * (frame - own) >= 0
            ]
            for frame in frames
        ]
        numbers.append([max(some, key=lambda f: abs(f - own)) for some in towards])
        masks.append(mask)
    return numbers, masks


def asked_later(mask: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: mask(*arguments)


def read(stack: BatchBase, index: Any = ...) -> tuple[Any, list[list[bool]]]:
    data, metadata = stack.get_at_with_metadata(index)
    assert metadata is not None
    return data, stack.backend.to_numpy(metadata["slice_valid_mask"]).tolist()


def same(one: Any, other: Any, backend: ComputeBackend) -> bool:
    if isinstance(one, dict):
        return all(same(one[key], other[key], backend) for key in one)
    if backend.is_backendarray(one):
        return bool((backend.to_numpy(one) == backend.to_numpy(other)).all())
    return [str(value) for value in np.ravel(one)] == [str(value) for value in np.ravel(other)]


NUMPY_CASES = itertools.product([NumpyComputeBackend], ["plain", "block", "heap"], ["growing", "ring", "file"])


@pytest.mark.parametrize(
    ("backend", "kind", "where"), [*NUMPY_CASES, *((backend, "heap", "ring") for backend in BACKENDS[1:])], ids=str
)
def test_windows_by_a_mask_hold_one_episode(backend: Any, kind: str, where: str, tmp_path: Path) -> None:
    capacity = None if where == "growing" else CAPACITY
    with recorded(kind, backend, capacity, cache_path=tmp_path / "data" if where == "file" else None) as buffer:
        order = np.random.default_rng(0).permutation(len(buffer))
        for (name, offsets), mask, fill in itertools.product(OFFSETS.items(), (ID, END), (True, False)):
            stack = SliceStackedBatch(buffer, list(offsets), mask, fill)
            data, valid = read(stack)
            numbers, masks = expected(SEEN - len(buffer), offsets)
            assert valid == masks, name
            is_shown = np.ones_like(masks) if fill else np.array(masks)
            assert (backend.to_numpy(data["x"]) == numbers)[is_shown.astype(bool)].all(), name
            later, valid_later = read(SliceStackedBatch(buffer, list(offsets), asked_later(mask), fill), order)
            shuffled, _ = read(stack, order)
            assert valid_later == [valid[place] for place in order]
            assert same(shuffled, later, backend)
            column = stack.get_column(["x"]).get_at(order)
            assert same(column, shuffled["x"], backend)
            assert same(stack.get_at(3), {key: values[3] for key, values in data.items()}, backend)


def test_what_windows_by_a_mask_hold_is_the_callers() -> None:
    stack = SliceStackedBatch(recorded(), OFFSETS["both"], ID)
    first = stack.get_at(np.array([20, 21]))
    first["x"][:] = 0
    assert stack.get_at(np.array([20]))["x"][0, 3] == SEEN - CAPACITY + 20


def test_lanes_are_kept_apart() -> None:
    """Two environments side by side: the offsets count the samples of one."""
    buffer = ReplayBuffer.create(space_of("plain", NumpyComputeBackend), capacity=24, lanes=2)
    for step in range(20):
        values = [sample("plain", NumpyComputeBackend, step) for _ in range(2)]
        values[1]["id"] = values[1]["id"] + 1000
        batch = {key: np.stack([value[key] for value in values]) for key in values[0]}
        buffer.extend_lanes(batch, np.zeros(2, bool))
    for mask in (ID, END):
        data, valid = read(SliceStackedBatch(buffer, [-2, -1, 0], mask))
        steps = np.repeat(np.arange(8, 20), 2)[:, None] + [-2, -1, 0]
        wanted = (steps >= 8) & (np.take(EPISODES, steps) == np.take(EPISODES, steps[:, 2:]))
        assert valid == wanted.tolist()
        assert (data["x"] == steps)[wanted].all()
        assert (data["id"] // 1000 == np.arange(24)[:, None] % 2).all()


@pytest.mark.parametrize("mask", [ID, END], ids=["id", "end"])
@pytest.mark.parametrize("offsets", [OFFSETS["both"], OFFSETS["gaps"]], ids=["both", "gaps"])
def test_views_apply_a_mask_as_they_would_ask_it_later(mask: Any, offsets: Sequence[int], tmp_path: Path) -> None:
    buffer, growing = recorded(), recorded(capacity=None)
    nested = ReplayBuffer.create(
        DictSpace(NumpyComputeBackend, {"inner": buffer.single_space, "id": BinarySpace(NumpyComputeBackend, ())})
    )
    nested.extend({"inner": buffer.get_at(...), "id": np.zeros(len(buffer), bool)})
    files = ReplayBuffer.create(NPZStorage, buffer.single_space, capacity=SEEN, cache_path=tmp_path / "npz")
    files.extend(growing.get_at(...))
    views: list[BatchBase] = [
        CombinedBatch([buffer, growing]),
        CombinedBatch([buffer, growing]).get_slice(np.arange(4, 70)),
        nested.get_column(["inner"]),
        files,
        *(ToBackendOrDeviceBatch(buffer, backend) for backend in BACKENDS),
        buffer.get_slice(slice(3, 36, 2)),
    ]
    for view in views:
        index = np.random.default_rng(0).integers(0, len(view), 30)
        data, valid = read(SliceStackedBatch(view, list(offsets), mask), index)
        later, valid_later = read(SliceStackedBatch(view, list(offsets), asked_later(mask)), index)
        assert valid == valid_later
        assert same(data, later, view.backend)
    for batch in (buffer, growing, nested, files):
        batch.close()


def test_a_key_that_is_not_there_is_named() -> None:
    nothing = SliceStackedBatch.get_valid_mask_function_with_episodeid_key("nothing")
    with pytest.raises(KeyError, match="no field 'nothing'"):
        SliceStackedBatch(recorded(), [-1, 0], nothing).get_at(np.array([3]))
