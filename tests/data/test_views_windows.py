"""Windows against plain lists, sample by sample: every source, backend, kind of index and shape of window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from buffers import number_space, numbers
from catalogue import BACKENDS
from views import SOURCES, Held, Watched, read_windows, source_cases

from unienv_data import FrameStackedBatch, ReplayBuffer, SliceStackedBatch
from unienv_data.storages.packed import PackedStorage

OFFSETS = {"dense": [-2, -1, 0, 1], "gaps": [-4, -2, 0, 3], "one": [0], "long": list(range(-12, 13))}
backends = pytest.mark.parametrize("backend", BACKENDS, ids=str)
sources = pytest.mark.parametrize(("backend", "source"), source_cases())
OFFSET_CASES = [
    pytest.param(backend, offsets, id=f"{backend}-{name}")
    for backend in BACKENDS
    for name, offsets in OFFSETS.items()
    if backend.simplified_name != "jax" or name == "dense"
]


@pytest.mark.parametrize(("backend", "offsets"), OFFSET_CASES)
@pytest.mark.parametrize("source", SOURCES)
def test_windows_are_those_of_a_list(backend: Any, source: str, offsets: Sequence[int]) -> None:
    batch, held = SOURCES[source](backend)
    stack = SliceStackedBatch(batch, offsets)
    every = range(len(batch))
    assert read_windows(stack, ...) == held.windows(every, offsets)
    shuffled = np.random.default_rng(0).permutation(len(batch))
    assert read_windows(stack, shuffled) == held.windows(shuffled.tolist(), offsets)
    for index in (0, len(batch) // 2, -1, -len(batch)):
        frames, valid = read_windows(stack, index)
        assert (frames, valid) == held.window(index, offsets)


@sources
def test_all_kinds_of_indices(backend: Any, source: str) -> None:
    batch, held = SOURCES[source](backend)
    stack, offsets = SliceStackedBatch(batch, [-1, 0, 2]), [-1, 0, 2]
    count = len(batch)
    mask = np.arange(count) % 3 == 0
    for index, positions in (
        (slice(None, None, 4), range(0, count, 4)),
        (slice(-3, None), range(count - 3, count)),
        ([2, 2, -1], [2, 2, -1]),
        (mask, np.flatnonzero(mask).tolist()),
        (backend.asarray(mask), np.flatnonzero(mask).tolist()),
        (backend.asarray([3, -2]), [3, -2]),
        ([], []),
    ):
        assert read_windows(stack, index) == held.windows(positions, offsets)
    for index in (count, -count - 1, [0, count]):
        with pytest.raises(IndexError, match="out of range"):
            stack.get_at(index)


@sources
def test_a_window_lies_in_the_space_of_the_stack(backend: Any, source: str) -> None:
    batch, _ = SOURCES[source](backend)
    stack = FrameStackedBatch(batch, 2, 1)
    assert len(stack) == len(batch)
    data, metadata = stack.get_at_with_metadata(0)
    assert data in stack.single_space
    assert metadata in stack.single_metadata_space
    flat = stack.get_flattened_at([0, 3])
    assert flat.shape == (2, 4 * 4)
    assert np.array_equal(backend.to_numpy(stack.get_flattened_at(3)), backend.to_numpy(flat)[1])
    assert backend.to_numpy(stack.get_flattened_at_with_metadata([0, 3])[0]).tolist() == backend.to_numpy(flat).tolist()


@sources
def test_columns_of_windows(backend: Any, source: str) -> None:
    batch, held = SOURCES[source](backend)
    offsets = [-2, -1, 0, 1, 2]
    stack = SliceStackedBatch(batch, offsets)
    expected, mask = held.windows(range(len(batch)), offsets)
    for column in (
        stack.get_column(["inner", "copies"]),
        SliceStackedBatch(batch.get_column(["inner", "copies"]), offsets),
    ):
        data, metadata = column.get_at_with_metadata(...)
        assert backend.to_numpy(data)[..., 0].tolist() == expected
        assert backend.to_numpy(metadata["slice_valid_mask"]).tolist() == mask
        assert backend.to_numpy(column.get_at(-1))[:, 2].tolist() == expected[-1]


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_not_valid_is_left_alone_if_so_asked(source: str) -> None:
    batch, held = SOURCES[source](BACKENDS[0])
    filled, raw = (SliceStackedBatch(batch, [-3, -1, 0, 1, 2], fill_invalid_data=fill) for fill in (True, False))
    (expected, mask), (found, raw_mask) = read_windows(filled, ...), read_windows(raw, ...)
    assert mask == raw_mask == held.windows(range(len(batch)), [-3, -1, 0, 1, 2])[1]
    assert np.array_equal(np.array(found)[mask], np.array(expected)[mask])
    assert found != expected
    assert set(np.ravel(found)) <= set(held.samples)
    for positions, offsets in ((np.arange(len(batch)), [-1, 0, 1]), (np.arange(0), [0])):
        data, valid = batch.get_windows_at(positions, offsets, fill=False)
        assert valid.tolist() == held.windows(positions.tolist(), offsets)[1]
        assert data["number"].shape == (len(positions), len(offsets))
    assert batch.get_windows_at([-1, 0], [0])[0]["number"].tolist() == [[held.samples[-1]], [held.samples[0]]]
    for index in (3, [len(batch)]):
        with pytest.raises(IndexError, match=r"an int: must be|out of range"):
            batch.get_windows_at(index, [0])


def test_windows_in_a_ring_that_has_seen_more_episodes_than_it_has_records_of() -> None:
    buffer = ReplayBuffer.create(number_space(), capacity=8, maintain_segment_metadata=True)
    stack, held = FrameStackedBatch(buffer, 2, 2), Held([], [])
    for episode in range(1200):
        values = [3 * episode + step for step in range(1 + episode % 3)]
        buffer.extend(numbers(values))
        held = Held([*held.samples, *values][-8:], [*held.episodes, *[episode] * len(values)][-8:])
        if episode > 1000:
            assert read_windows(stack, ...) == held.windows(range(len(buffer)), range(-2, 3))


class KnowsItsEpisodes(PackedStorage):
    """A storage that keeps episodes by itself, as inclusive pairs of slots."""

    is_segment_aware = True
    pairs: ClassVar[list[tuple[int, int]]] = []

    def get_segments(self) -> list[tuple[int, int]]:
        return self.pairs

    def append(self, value: Any) -> None:
        raise NotImplementedError


def test_episodes_that_only_the_storage_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a ring of ten that has wrapped to slot 4, one episode across the seam; what lies between two is one too."""
    monkeypatch.setattr(KnowsItsEpisodes, "pairs", [(0, 1), (4, 5), (8, 9)])
    buffer = ReplayBuffer(KnowsItsEpisodes.create(number_space(), capacity=10), "storage")
    buffer.extend(numbers(range(8)))
    buffer.extend(numbers(range(8, 14)))
    held = Held(list(range(4, 14)), [*"aabbcc", *"ddee"])
    episodes = buffer.episodes_of(np.arange(10))
    assert episodes is not None
    assert episodes.start.tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8]
    assert episodes.stop.tolist() == [2, 2, 4, 4, 6, 6, 8, 8, 10, 10]
    for offsets in ([-1, 0, 1], [-3, 0, 1]):
        assert read_windows(SliceStackedBatch(buffer, offsets), ...) == held.windows(range(10), offsets)
    monkeypatch.setattr(KnowsItsEpisodes, "pairs", [(8, 1)])
    assert buffer.episodes_of(np.arange(10)).start.tolist() == [0, 0, 0, 0, 4, 4, 4, 4, 8, 8]  # type: ignore[union-attr]


def test_what_is_no_set_of_offsets_is_refused() -> None:
    batch, _ = SOURCES["growing"](BACKENDS[0])
    for offsets, text in (
        ([1, 0], "must be sorted"),
        ([0, 0, 1], "without repetition"),
        ([-1, 1], "must include 0"),
        ([], "dtype float64"),
        ([0.0, 1.0], "wanted integers"),
        ([[0, 1]], r"shape \(1, 2\)"),
        (0, r"shape \(\)"),
    ):
        with pytest.raises(ValueError, match=text):
            SliceStackedBatch(batch, offsets)
    with pytest.raises(ValueError, match="prefetch_horizon is -1, it must not be negative"):
        FrameStackedBatch(batch, -1)
    with pytest.raises(TypeError, match=r"postfetch_horizon is 1\.5"):
        FrameStackedBatch(batch, 0, 1.5)  # type: ignore[arg-type]


def test_a_stack_is_read_only_and_says_what_to_change() -> None:
    batch, _ = SOURCES["growing"](BACKENDS[0])
    stack = FrameStackedBatch(batch, 1)
    window = stack.get_at(0)
    assert not stack.is_mutable
    for name, change in {
        "set_at": lambda: stack.set_at(0, window),
        "extend": lambda: stack.append(window),
        "remove_at": lambda: stack.remove_at(0),
    }.items():
        with pytest.raises(
            TypeError, match=f"{name}: FrameStackedBatch is read-only: change the ReplayBuffer under it"
        ):
            change()


# -- masks from keys ---------------------------------------------------------------------------------------

KEYS: dict[str, Any] = {
    "id": SliceStackedBatch.get_valid_mask_function_with_episodeid_key(),
    "id_in_metadata": SliceStackedBatch.get_valid_mask_function_with_episodeid_key("id", is_in_metadata=True),
    "end": SliceStackedBatch.get_valid_mask_function_with_episode_end_key(),
    "end_in_metadata": SliceStackedBatch.get_valid_mask_function_with_episode_end_key("end", is_in_metadata=True),
    "own": lambda stack, index, data, metadata: data["episode_id"] == data["episode_id"][:, stack_zero(stack)][:, None],
}


def stack_zero(stack: SliceStackedBatch) -> int:
    return stack.backend.to_numpy(stack.fixed_offset).tolist().index(0)


@pytest.mark.parametrize(("backend", "offsets"), OFFSET_CASES)
@pytest.mark.parametrize("key", KEYS)
def test_masks_from_keys(backend: Any, key: str, offsets: Sequence[int]) -> None:
    batch = Watched(backend)
    stack = SliceStackedBatch(batch, offsets, KEYS[key])
    every = range(len(batch))
    assert read_windows(stack, ...) == batch.held.windows(every, offsets)
    assert read_windows(stack, -1) == batch.held.window(-1, offsets)
    column = stack.get_column(["number"])
    assert backend.to_numpy(column.get_at(...)).tolist() == batch.held.windows(every, offsets)[0]


@backends
@pytest.mark.parametrize("key", KEYS)
def test_the_parts_of_a_stack_agree_with_the_whole(backend: Any, key: str) -> None:
    """Indices, mask and filling one by one, as a caller with data of their own would use them."""
    batch, offsets = Watched(backend), [-2, -1, 0, 1]
    stack = SliceStackedBatch(batch, offsets, KEYS[key], fill_invalid_data=False)
    expected, mask = batch.held.windows(range(len(batch)), offsets)
    index = stack.expand_index(backend.asarray([True] * len(batch)))
    clipped = np.clip(np.arange(len(batch))[:, None] + offsets, 0, len(batch) - 1)
    assert backend.to_numpy(index).tolist() == clipped.tolist()
    data, metadata = stack.get_at_with_metadata(...)
    stacked = SliceStackedBatch(batch, offsets, KEYS[key], fill_invalid_data=False, stack_metadata=True)
    frames_metadata = stacked.get_at_with_metadata(...)[1]
    assert backend.to_numpy(metadata["slice_valid_mask"]).tolist() == mask
    assert backend.to_numpy(stack.get_valid_mask(index, data, frames_metadata)).tolist() == mask
    flat = backend.reshape(batch.get_flattened_at(clipped.reshape(-1)), (*clipped.shape, -1))
    assert backend.to_numpy(stack.get_valid_mask_flattened(index, flat, frames_metadata)).tolist() == mask
    filled = stack.fill_data_with_stack_mask(batch.single_space, data, metadata["slice_valid_mask"])
    assert backend.to_numpy(filled["number"]).tolist() == expected
    alone = stack.fill_data_with_stack_mask(None, data["number"], metadata["slice_valid_mask"])
    assert backend.to_numpy(alone).tolist() == expected
    assert backend.to_numpy(data["number"]).tolist() == clipped.tolist(), "the data itself stays as it was"


def test_masks_of_batches_that_know_their_episodes_need_no_data() -> None:
    batch, held = SOURCES["ring"](BACKENDS[0])
    stack = FrameStackedBatch(batch, 3, 3)
    index = stack.expand_index(np.arange(len(batch)))
    assert stack.get_valid_mask(index, None).tolist() == held.windows(range(len(batch)), range(-3, 4))[1]


def test_a_mask_with_holes_is_filled_towards_the_sample() -> None:
    backend = BACKENDS[0]
    stack = FrameStackedBatch(Watched(backend), 3, 2)
    mask = np.array([[True, False, False, True, False, True], [False] * 6])
    data = np.arange(12).reshape(2, 6)
    assert stack.fill_data_with_stack_mask(None, data, mask).tolist() == [[0, 3, 3, 3, 3, 5], [9] * 6]


def test_a_mask_function_that_gives_no_mask_is_told_so() -> None:
    stack = FrameStackedBatch(Watched(BACKENDS[0]), 1, 0, lambda *_: np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"returned float64 of shape \(2, 2\), wanted booleans of shape \(3, 2\)"):
        stack.get_at([0, 1, 2])
    keyed = FrameStackedBatch(Watched(BACKENDS[0]), 1, 0, stack.get_valid_mask_function_with_episodeid_key("nothing"))
    with pytest.raises(KeyError, match="no field 'nothing'"):
        keyed.get_at([0])


# -- metadata ----------------------------------------------------------------------------------------------


@backends
def test_metadata_is_of_the_sample_or_of_every_frame(backend: Any) -> None:
    batch, offsets = Watched(backend), [-1, 0, 1]
    for stacks, function in ((False, None), (True, None), (True, KEYS["id"])):
        stack = SliceStackedBatch(batch, offsets, function, stack_metadata=stacks)
        data, metadata = stack.get_at_with_metadata([1, 5, 9])
        assert set(metadata) == {"tenfold", "id", "end", "slice_valid_mask"}
        tenfold = backend.to_numpy(metadata["tenfold"])[..., 0]
        frames = backend.to_numpy(data["number"])
        assert tenfold.tolist() == (10 * (frames if stacks else frames[:, 1])).tolist()
        one, of_one = stack.get_at_with_metadata(5)
        assert one in stack.single_space
        assert of_one in stack.single_metadata_space


def test_windows_of_windows() -> None:
    batch, _ = SOURCES["growing"](BACKENDS[0])
    outer = FrameStackedBatch(FrameStackedBatch(batch, 1), 0, 1)
    data, metadata = outer.get_at_with_metadata([0, 3])
    assert data["number"].tolist() == [[[0, 0], [0, 1]], [[2, 3], [2, 3]]]
    assert metadata["slice_valid_mask"].tolist() == [[True, True], [True, False]]
    assert metadata["inner_slice_valid_mask"].tolist() == [[False, True], [True, True]]
    assert outer.get_at_with_metadata(0)[1] in outer.single_metadata_space
