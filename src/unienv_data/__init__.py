"""Storages, replay buffers, samplers and datasets over the spaces of `unienv_interface`.

The names here are those of the packages below, which are imported when a name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unienv_interface.utils.lazy import lazy_exports

if TYPE_CHECKING:
    from .base import *  # noqa: F403
    from .batches import *  # noqa: F403
    from .replay_buffer import *  # noqa: F403

_HOMES = {
    ".base": ("BatchBase", "BatchT", "IndexableType", "SpaceStorage", "StorageCorruptedError"),
    ".batches": ("SubIndexedBatch", "SubItemBatch"),
    ".replay_buffer": ("BufferStats", "ReplayBuffer"),
}

__all__ = [name for names in _HOMES.values() for name in names]

__getattr__ = lazy_exports(__name__, _HOMES)
