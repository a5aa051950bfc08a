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
    """A nested field of the samples of a batch, such as `["obs", "rgb"]`; read-only.

    Where the batch allows it, only that field is read.
    """

    is_mutable = False

    def __init__(self, batch: BatchBase, sub_indexes: Sequence[Any]) -> None:
        if isinstance(sub_indexes, str):
            raise TypeError(f"the keys are {sub_indexes!r}, wanted a sequence such as [{sub_indexes!r}]")
        keys = tuple(sub_indexes)
        super().__init__(batch, nested_item(batch.single_space, keys), batch.single_metadata_space)
        self.sub_indexes = keys

    def get_at(self, idx: Any) -> Any:
        return self.batch.get_column_at(self.sub_indexes, idx)

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.batch.get_column_at_with_metadata(self.sub_indexes, idx)

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        return self.batch.get_column_at((*self.sub_indexes, *nested_keys), idx)

    def get_column_at_with_metadata(self, nested_keys: Sequence[Any], idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.batch.get_column_at_with_metadata((*self.sub_indexes, *nested_keys), idx)

    def read_windows(self, positions: np.ndarray, query: WindowQuery, limits: Limits | None = None) -> Windows:
        keys = (*self.sub_indexes, *query.nested_keys)
        return self.batch.read_windows(positions, replace(query, nested_keys=keys), limits)
