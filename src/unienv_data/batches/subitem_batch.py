"""One field of every sample of another batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base.common import BatchBase
from ..base.nested import nested_item

recursive_index = nested_item


class SubItemBatch(BatchBase):
    """A nested field of the samples of a batch, such as `["obs", "rgb"]`; read-only."""

    is_mutable = False

    def __init__(self, batch: BatchBase, sub_indexes: Sequence[Any]) -> None:
        if isinstance(sub_indexes, str):
            raise TypeError(f"the keys are {sub_indexes!r}, wanted a sequence such as [{sub_indexes!r}]")
        super().__init__(nested_item(batch.single_space, tuple(sub_indexes)), batch.single_metadata_space)
        self.batch = batch
        self.sub_indexes = tuple(sub_indexes)

    def __len__(self) -> int:
        return len(self.batch)

    def get_at(self, idx: Any) -> Any:
        return self.batch.get_column_at(self.sub_indexes, idx)

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        data, metadata = self.batch.get_at_with_metadata(idx)
        return nested_item(data, self.sub_indexes), metadata

    def get_segments(self) -> list[tuple[int, int]] | None:
        return self.batch.get_segments()
