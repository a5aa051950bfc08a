"""A recording that is written as a whole: the folder is there once all of it is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from typing_extensions import Self

from unienv_interface.backends import NumpyComputeBackend, deserialize_backend
from unienv_interface.space import Space
from unienv_interface.space.space_utils import batch_space

from ..base.files import remove_leftovers, replace_folder
from ..replay_buffer import ReplayBuffer
from ..storages.registry import storage_by_name
from ._errors import CommandError, UsageError

#: What a recording can be written as, and the storage that is meant.
FORMATS = {"packed": "packed", "hdf5": "hdf5", "parquet": "parquet", "npz": "npz", "pt": "pytorch"}


class NewRecording:
    """Writes a folder beside its place, and moves it there when the `with` block ends well; else nothing is left.

    Samples come in batches, and each batch with the episodes that end in it, so that a batch may have many episodes
    and an episode many batches.
    """

    def __init__(
        self, target: Path, fmt: str, space: Space, *, capacity: int, keeps_episodes: bool, lanes: int = 1
    ) -> None:
        """`capacity` is for formats that cannot grow; the others do."""
        if fmt not in FORMATS:
            raise UsageError(f"{fmt!r} is no format, it must be one of {', '.join(FORMATS)}")
        if os.path.lexists(target):
            raise CommandError(f"{target}: it is there already, give another path")
        self.written = self.episodes = 0
        self._target = target
        self._temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        self._source_space = space
        self._storage_cls = storage_by_name(FORMATS[fmt])
        self._space = space.to(deserialize_backend("pytorch") if fmt == "pt" else NumpyComputeBackend)
        self._options: dict[str, Any] = {
            "capacity": max(1, capacity) if fmt == "pt" else None,
            "maintain_segment_metadata": keeps_episodes,
            "lanes": lanes,
        }

    def __enter__(self) -> Self:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._target)
        self._buffer = ReplayBuffer.create(self._storage_cls, self._space, cache_path=self._temporary, **self._options)
        return self

    def add(self, batch: Any, count: int, ended: np.ndarray) -> None:
        """Add `count` samples, and the episodes [start, stop) that end with them, in the order of their ends.

        Both in one go: `ReplayBuffer.extend` would make an episode of every batch.
        """
        buffer = self._buffer
        if self._space.backend is not self._source_space.backend:
            batch = batch_space(self._source_space, count).data_to(batch, self._space.backend)
        ranges = [(start, stop) for start, stop in ended.tolist()]
        buffer._locked(buffer._writer.extend_episodes, batch, count, ranges)
        self.written += count
        self.episodes += len(ranges)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._buffer.close()
            if kind is None:
                self._verify()
                replace_folder(self._temporary, self._target)
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _verify(self) -> None:
        """Open what was written as a reader would."""
        with ReplayBuffer.load_from(self._temporary, backend=self._space.backend) as found:
            problems, segments = found.verify(), found.get_segments() or []
            if (len(found), len(segments)) != (self.written, self.episodes):
                there = f"{len(found)} samples in {len(segments)} episodes are there"
                problems.insert(0, f"{there}, {self.written} in {self.episodes} were written")
        if problems:
            raise CommandError(f"what was written to {self._target} does not read back: {problems[0]}")
