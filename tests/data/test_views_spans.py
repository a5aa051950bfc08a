"""Windows that are read in one piece each, against the numbers they must hold and against those read frame by frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS

from unienv_data import ReplayBuffer, SliceStackedBatch
from unienv_data.storages.packed import PackedStorage
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import BoxSpace, DictSpace, DynamicBoxSpace, TextSpace
from unienv_interface.space.row_layout import RowLayout

CAPACITY, EPISODE, SEEN = 100, 70, 163
BEHIND, AHEAD = list(range(-9, 1)), list(range(-3, 8))


def space_of(kind: str, backend: ComputeBackend) -> DictSpace:
    """Samples of a number and, but for a plain kind, something that does not lie in the row."""
    number = BoxSpace(backend, 0, 10**6, dtype=backend.default_integer_dtype, shape=(2,))
    if kind == "block":
        more = {"image": BoxSpace(backend, 0, 255, dtype=backend.dtype_from_name("uint8"), shape=(80, 80))}
    elif kind == "heap":
        floating = backend.default_floating_dtype
        more = {
            "text": TextSpace(backend, 12),
            "some": DynamicBoxSpace(backend, 0.0, 1e6, (0,), (9,), dtype=floating),
        }
    else:
        more = {}
    return DictSpace(backend, {"x": number, **more})


def sample(kind: str, backend: ComputeBackend, number: int) -> dict[str, Any]:
    def array(values: Any, dtype: Any) -> Any:
        return backend.from_numpy(np.array(values), dtype=dtype)

    value = {"x": array([number, number + 1], backend.default_integer_dtype)}
    if kind == "block":
        value["image"] = array(np.full((80, 80), number % 256), backend.dtype_from_name("uint8"))
    elif kind == "heap":
        value["text"] = f"no. {number}"
        value["some"] = array(np.full(number % 9, number), backend.default_floating_dtype)
    return value


def recorded(kind: str, backend: ComputeBackend, capacity: int | None, folder: Path | None) -> tuple[ReplayBuffer, int]:
    """A buffer of long episodes, and the number of its first sample."""
    buffer = ReplayBuffer.create(
        space_of(kind, backend), capacity=capacity, cache_path=folder, maintain_segment_metadata=True
    )
    for number in range(SEEN):
        buffer.append(sample(kind, backend, number))
        if number % EPISODE == EPISODE - 1:
            buffer.mark_segment_end()
    return buffer, SEEN - len(buffer)


def numbers_of(data: Any, backend: ComputeBackend) -> np.ndarray:
    return backend.to_numpy(data["x"])[..., 0]


def same(one: Any, other: Any, backend: ComputeBackend) -> bool:
    if isinstance(one, dict):
        return all(same(one[key], other[key], backend) for key in one)
    if backend.is_backendarray(one):
        return bool((backend.to_numpy(one) == backend.to_numpy(other)).all())
    return [str(value) for value in np.ravel(one)] == [str(value) for value in np.ravel(other)]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many windows have been read in one piece, call by call."""
    found: list[int] = []
    gather = RowLayout.gather_spans

    def watched(self: RowLayout, rows: Any, first: np.ndarray, count: int, patches: Any) -> Any:
        found.append(len(first))
        return gather(self, rows, first, count, patches)

    monkeypatch.setattr(RowLayout, "gather_spans", watched)
    return found


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("kind", ["plain", "block", "heap"])
@pytest.mark.parametrize("where", ["growing", "ring", "file"])
@pytest.mark.parametrize("offsets", [BEHIND, AHEAD], ids=["behind", "ahead"])
def test_windows_in_one_piece_hold_what_they_hold_frame_by_frame(
    backend: Any, kind: str, where: str, offsets: list[int], tmp_path: Path, spans: list[int], monkeypatch: Any
) -> None:
    capacity = None if where == "growing" else CAPACITY
    buffer, oldest = recorded(kind, backend, capacity, tmp_path / "data" if where == "file" else None)
    with buffer:
        stack = SliceStackedBatch(buffer, offsets)
        starts = oldest + np.arange(len(buffer))  # numbers of the samples
        episode = starts // EPISODE
        is_there = (starts + offsets[0] >= oldest) & (starts + offsets[-1] < SEEN)
        is_whole = (starts + offsets[0]) // EPISODE == (starts + offsets[-1]) // EPISODE
        slots = (starts + offsets[0]) % CAPACITY
        is_apart = slots <= CAPACITY - len(offsets) if capacity is not None else is_there
        whole, cut, beyond, seam = (
            np.flatnonzero(which)
            for which in (
                is_there & is_apart & is_whole,
                is_there & is_apart & ~is_whole,
                ~is_there,
                is_there & ~is_apart,
            )
        )
        assert len(cut) > 4
        rng = np.random.default_rng(0)
        for positions, is_in_one_piece in (
            (rng.permutation(whole), True),
            (rng.permutation(np.concatenate([whole[:20], cut[[1, -2]]])), True),  # few: they are patched
            (rng.permutation(np.concatenate([whole[:5], cut])), False),
            (rng.permutation(np.concatenate([whole[:40], beyond[:1], beyond[-1:]])), False),
            (rng.permutation(np.concatenate([whole[:40], cut[:1], seam])), not len(seam)),
            (rng.permutation(len(buffer)), False),
        ):
            spans.clear()
            data, metadata = stack.get_at_with_metadata(positions)
            assert spans == ([len(positions)] if is_in_one_piece and kind != "heap" else [])
            valid = backend.to_numpy(metadata["slice_valid_mask"])
            wanted = starts[positions][:, None] + np.array(offsets)
            assert (
                valid == ((wanted // EPISODE == episode[positions][:, None]) & (wanted >= oldest) & (wanted < SEEN))
            ).all()
            assert (numbers_of(data, backend)[valid] == wanted[valid]).all()
            with monkeypatch.context() as patch:
                patch.setattr(PackedStorage, "can_gather_spans", lambda self, count: False)
                frame_by_frame, mask = SliceStackedBatch(buffer, offsets).get_at_with_metadata(positions)
            assert same(data, frame_by_frame, backend)
            assert same(metadata, mask, backend)


def test_what_is_read_in_one_piece_is_the_callers(spans: list[int]) -> None:
    buffer, _ = recorded("plain", NumpyComputeBackend, None, None)
    stack = SliceStackedBatch(buffer, BEHIND)
    data = stack.get_at(np.array([20, 21]))
    data["x"][:] = 0
    assert spans == [2]
    assert numbers_of(stack.get_at(np.array([20])), NumpyComputeBackend).tolist() == [list(range(11, 21))]


@pytest.mark.parametrize("case", ["gaps", "few", "not filled", "lanes", "column"])
def test_what_does_not_lie_in_one_piece_is_not_read_so(case: str, spans: list[int]) -> None:
    lanes = 2 if case == "lanes" else 1
    buffer = ReplayBuffer.create(space_of("plain", NumpyComputeBackend), capacity=None, lanes=lanes)
    for number in range(0, 60, lanes):
        values = [sample("plain", NumpyComputeBackend, number + lane)["x"] for lane in range(lanes)]
        if lanes > 1:
            buffer.extend_lanes({"x": np.stack(values)}, np.zeros(lanes, bool))
        else:
            buffer.append({"x": values[0]})
    offsets = {"gaps": range(-18, 1, 2), "few": range(-3, 1)}.get(case, BEHIND)
    stack = SliceStackedBatch(
        buffer.get_column(["x"]) if case == "column" else buffer, list(offsets), fill_invalid_data=case != "not filled"
    )
    data = stack.get_at(np.array([40]))
    found = (data if case == "column" else data["x"])[0, :, 0]
    assert found.tolist() == [40 + lanes * offset for offset in offsets]
    assert spans == []
