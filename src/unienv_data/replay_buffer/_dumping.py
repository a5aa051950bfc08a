"""Where buffers are dumped to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from .replay_buffer import ReplayBuffer

PathLike = str | os.PathLike[str]


def dump(buffers: Sequence[ReplayBuffer], chosen: Iterable[int], path: PathLike | None) -> None:
    """Dump the chosen buffers: a single one to the path itself, of several each to a folder of its own under it.

    A buffer without samples is left out: there is nothing to keep, and a dump of an earlier run may be in the place.
    """
    if path is None:
        raise ValueError("dump_path must be provided to dump replay buffers: assign wrapper.dump_path")
    for index in chosen:
        if len(buffers[index]):
            buffers[index].dumps(target(path, index, len(buffers)))


def target(path: PathLike, index: int, count: int) -> Path:
    """Where the buffer with this index, out of so many, is dumped to."""
    return Path(path) if count == 1 else Path(path) / f"env_{index}"
