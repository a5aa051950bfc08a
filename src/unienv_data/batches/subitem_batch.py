"""A view of one field, or of some columns, of every sample of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType

from ..base.common import BatchBase, BatchT
from ..base.encoded_frames import EncodedFrames
from ..base.nested import join_keys, nested_item
from ..base.windows import Limits, WindowQuery, Windows
from ._view import BatchView, QueriesBelow

recursive_index = nested_item


class SubItemBatch(BatchView[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A nested field of the samples of a batch; read-only.

    Where the storage of the batch allows it, only that field is read.

    Parameters
    ----------
    batch
        The samples; it stays open when the view is closed.
    sub_indexes
        The keys that lead to the field, such as `["obs", "rgb"]`. The last key may be a `Columns`, made by
        `batch.select`, which selects several fields.

    Raises
    ------
    KeyError
        The field does not exist.
    TypeError
        The keys are one string instead of a sequence.

    Examples
    --------
    >>> actions = SubItemBatch(buffer, ["action"])  # or buffer.get_column(["action"])
    >>> actions.get_at([0, 1]).shape
    (2,)
    """

    is_mutable = False

    def __init__(self, batch: BatchBase, sub_indexes: Sequence[Any]) -> None:
        if isinstance(sub_indexes, str):
            raise TypeError(f"the keys are {sub_indexes!r}, wanted a sequence such as [{sub_indexes!r}]")
        keys = tuple(sub_indexes)
        super().__init__(batch, nested_item(batch.single_space, keys), batch.single_metadata_space)
        self.sub_indexes = keys
        self._queries = QueriesBelow(self._query_below)

    def get_at(self, idx: Any) -> Any:
        return self.batch.get_column_at(self.sub_indexes, idx)

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.batch.get_column_at_with_metadata(self.sub_indexes, idx)

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        return self.batch.get_column_at(self._below(nested_keys), idx)

    def get_column_at_with_metadata(self, nested_keys: Sequence[Any], idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.batch.get_column_at_with_metadata(self._below(nested_keys), idx)

    def encoded_frames(self, nested_keys: Sequence[Any], idx: Any) -> EncodedFrames | None:
        return self.batch.encoded_frames(self._below(nested_keys), idx)

    def applies_mask(self, mask_keys: tuple[Any, ...]) -> bool:
        return self.batch.applies_mask(self._below(mask_keys))

    def read_windows(self, positions: np.ndarray, query: WindowQuery, limits: Limits | None = None) -> Windows:
        return self.batch.read_windows(positions, self._queries.of((query,))[0], limits)

    def read_column_windows(
        self, positions: np.ndarray, queries: Sequence[WindowQuery], limits: Limits | None = None
    ) -> list[Windows]:
        return self.batch.read_column_windows(positions, self._queries.of(queries), limits)

    def _below(self, keys: Sequence[Any]) -> tuple[Any, ...]:
        """Translate keys of this view to keys of the batch under it."""
        return join_keys(self.sub_indexes, keys)

    def _query_below(self, query: WindowQuery) -> WindowQuery:
        mask_keys = self._below(query.mask_keys) if query.mask is not None else ()
        return replace(query, nested_keys=self._below(query.nested_keys), mask_keys=mask_keys)
