"""One field of every sample of another batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType

from ..base.common import BatchBase, BatchT
from ..base.nested import nested_item
from ..base.windows import Limits, WindowQuery, Windows
from ._view import BatchView

recursive_index = nested_item


class SubItemBatch(BatchView[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A nested field of the samples of a batch; read-only.

    Where the storage of the batch allows it, only that field is read.

    Parameters
    ----------
    batch
        The samples; it stays open when the view is closed.
    sub_indexes
        The keys that lead to the field, such as `["obs", "rgb"]`.

    Raises
    ------
    KeyError
        There is no such field.
    TypeError
        The keys are one text instead of a sequence.
    """

    is_mutable = False

    def __init__(self, batch: BatchBase, sub_indexes: Sequence[Any]) -> None:
        if isinstance(sub_indexes, str):
            raise TypeError(f"the keys are {sub_indexes!r}, wanted a sequence such as [{sub_indexes!r}]")
        keys = tuple(sub_indexes)
        super().__init__(batch, nested_item(batch.single_space, keys), batch.single_metadata_space)
        self.sub_indexes = keys
        self._last_query: tuple[WindowQuery, WindowQuery] | None = None

    def get_at(self, idx: Any) -> Any:
        return self.batch.get_column_at(self.sub_indexes, idx)

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.batch.get_column_at_with_metadata(self.sub_indexes, idx)

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        return self.batch.get_column_at((*self.sub_indexes, *nested_keys), idx)

    def get_column_at_with_metadata(self, nested_keys: Sequence[Any], idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.batch.get_column_at_with_metadata((*self.sub_indexes, *nested_keys), idx)

    def applies_mask(self, mask_keys: tuple[Any, ...]) -> bool:
        return self.batch.applies_mask((*self.sub_indexes, *mask_keys))

    def read_windows(self, positions: np.ndarray, query: WindowQuery, limits: Limits | None = None) -> Windows:
        last = self._last_query
        if last is None or last[0] is not query:
            keys, mask_keys = (*self.sub_indexes, *query.nested_keys), (*self.sub_indexes, *query.mask_keys)
            last = self._last_query = (query, replace(query, nested_keys=keys, mask_keys=mask_keys))
        return self.batch.read_windows(positions, last[1], limits)
