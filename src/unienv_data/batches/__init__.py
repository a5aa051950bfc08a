"""Views: batches over other batches. None of them closes what lies under it."""

from .subindex_batch import SubIndexedBatch
from .subitem_batch import SubItemBatch

__all__ = ["SubIndexedBatch", "SubItemBatch"]
