"""Some samples of another batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.common import BatchBase, resolve_index


class SubIndexedBatch(BatchBase):
    """The samples of a batch at given indices, in that order.

    The indices are those of the moment the view is made: when the batch then drops its oldest samples, the same
    indices name newer ones.
    """

    def __init__(self, batch: BatchBase, sub_indexes: Any) -> None:
        super().__init__(batch.single_space, batch.single_metadata_space)
        self.batch = batch
        self.sub_indexes = np.atleast_1d(np.array(resolve_index(batch.backend, sub_indexes, len(batch))))

    @property
    def is_mutable(self) -> bool:  # type: ignore[override]
        return self.batch.is_mutable

    def __len__(self) -> int:
        return len(self.sub_indexes)

    def _under(self, idx: Any) -> Any:
        """An index of this view as one of the batch under it."""
        position = resolve_index(self.backend, idx, len(self))
        return int(self.sub_indexes[position]) if isinstance(position, int) else self.sub_indexes[position]

    def get_at(self, idx: Any) -> Any:
        return self.batch.get_at(self._under(idx))

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.batch.get_at_with_metadata(self._under(idx))

    def get_flattened_at(self, idx: Any) -> Any:
        return self.batch.get_flattened_at(self._under(idx))

    def get_flattened_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.batch.get_flattened_at_with_metadata(self._under(idx))

    def get_column_at(self, nested_keys: Any, idx: Any) -> Any:
        return self.batch.get_column_at(nested_keys, self._under(idx))

    def set_at(self, idx: Any, value: Any) -> None:
        self.batch.set_at(self._under(idx), value)

    def set_flattened_at(self, idx: Any, value: Any) -> None:
        self.batch.set_flattened_at(self._under(idx), value)
