"""Batches from where the data lies to where they are wanted."""

from __future__ import annotations

from typing import Any

import numpy as np

from unienv_interface.space import DictSpace, Space
from unienv_interface.space.space_utils import batch_space

from ..base.common import BatchBase
from ..base.sampling import Form


class Mover:
    """Moves samples of a space, and their metadata, to a device.

    Batches pass through page-locked memory if `pinned`, and without a device (None) stay in it; single samples,
    metadata and what is not a plain array do not. A count of None stands for one sample, without a leading axis.
    """

    def __init__(self, space: Space, metadata_space: DictSpace | None, device: Any, *, pinned: bool) -> None:
        self._backend, self._device, self._pinned = space.backend, device, pinned
        self._rows = _row_mover(space, device, pinned)
        self._batch = _Batches(space)
        self._metadata = None if metadata_space is None else _Batches(metadata_space)

    def in_form(self, value: Any, count: int | None, form: Form) -> Any:
        """What was read in some form, moved."""
        data, metadata = value if form.endswith("with_metadata") else (value, None)
        data = self.flat(data) if form.startswith("get_flattened") else self.batch(data, count)
        return (data, self.metadata(metadata, count)) if form.endswith("with_metadata") else data

    def read(self, source: BatchBase, index: np.ndarray) -> Any:
        """The samples of a source, moved; as rows, if it has them."""
        rows = None if self._rows is None else source.read_rows(index)
        return self.batch(source.get_at(index), len(index)) if rows is None else self._rows.move_rows(rows)

    def batch(self, batch: Any, count: int | None) -> Any:
        if self._rows is not None and count is not None:
            return self._rows.move(batch, count)
        return self._batch.space(count).data_to(batch, device=self._device)

    def flat(self, flat: Any) -> Any:
        return self._backend.to_device(flat.pin_memory() if self._pinned else flat, self._device)

    def metadata(self, metadata: dict[str, Any] | None, count: int | None) -> dict[str, Any] | None:
        if metadata is None or self._metadata is None:
            return metadata
        moved: dict[str, Any] = self._metadata.space(count).data_to(metadata, device=self._device)
        return moved


class _Batches:
    """The spaces of batches; the last is remembered, since most are of one size."""

    def __init__(self, single: Space) -> None:
        self._single = single
        self._last: tuple[int, Space] = (-1, single)

    def space(self, count: int | None) -> Space:
        if count is None:
            return self._single
        if self._last[0] != count:
            self._last = (count, batch_space(self._single, count))
        return self._last[1]


def _row_mover(space: Space, device: Any, pinned: bool) -> Any:
    if space.backend.simplified_name != "pytorch":
        if pinned:
            raise ValueError(f"pin_memory is for PyTorch, the data is of backend {space.backend}")
        return None
    from ._pytorch_rows import RowMover

    return RowMover.for_space(space, device, pinned=pinned)
