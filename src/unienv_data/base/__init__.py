"""What batches and storages are."""

from .common import BatchBase, BatchT, IndexableType
from .storage import SpaceStorage, StorageCorruptedError

__all__ = ["BatchBase", "BatchT", "IndexableType", "SpaceStorage", "StorageCorruptedError"]
