"""Converted episodes on disk: where each step lies, and what is read of it.

An episode of T steps takes T + 1 rows, so step i of the dataset lies in row i + e, where e is the number of episodes
before it, and what came of it lies in the row after.
"""

from __future__ import annotations

import functools
import os
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unienv_interface.backends.numpy import NumpyComputeBackend
from unienv_interface.space import DictSpace
from unienv_interface.space.space_utils.serialization_utils import json_to_space

from ..base.files import read_json
from ..base.mapped import MappedFile
from ..base.storage import StorageCorruptedError
from ..storages.packed import PackedStorage
from ._minari_convert import EPISODE, EPISODES, FLAGS, FORMAT, MARKER, ROWS, VERSION

_MOST_NUMBERS = 2**24


class Steps(NamedTuple):
    """What was read of some steps: their rows and the rows after as one batch, their episodes and their flags."""

    columns: list[np.ndarray]  # twice as long as there are steps: first the rows of the steps, then those after
    episode: np.ndarray
    flags: np.ndarray


class EpisodeRows:
    """The episodes in a folder that `convert` has written; read-only, and the same in every process."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.marker = read_marker(self.folder)
        steps, episodes = self.marker["steps"], self.marker["episodes"]
        self.sample_space: DictSpace = json_to_space(self.marker["space"], NumpyComputeBackend)
        self.row_space: DictSpace = json_to_space(self.marker["row_space"], NumpyComputeBackend)
        table = self._map(EPISODES, EPISODE, episodes)
        if zlib.crc32(table.tobytes()) != self.marker["episodes_checksum"]:
            raise StorageCorruptedError(f"{self.folder / EPISODES}: the checksum does not match, the file was damaged")
        self.ids = table["id"].copy()
        self.ends = table["steps"].cumsum()  # where the steps of each episode end
        if int(self.ends[-1]) != steps or int(table["steps"].min()) < 0:
            raise StorageCorruptedError(f"{self.folder / EPISODES}: not {steps} steps, as {MARKER} has")
        self._flags = self._map(FLAGS, np.dtype(np.uint8), steps)
        self._length, self._rows = steps, steps + episodes
        self.storage = PackedStorage.load_from(self.folder / ROWS, self.row_space, capacity=self._rows)
        self._memory = self.storage._memory

    def _map(self, name: str, dtype: np.dtype, length: int) -> np.ndarray:
        file = MappedFile.open(self.folder / name, dtype, writable=False)
        try:
            file.check_length(length, exactly=True)
            return file.map(length)
        finally:
            file.close()

    def __reduce__(self) -> tuple[type[EpisodeRows], tuple[Path]]:
        return EpisodeRows, (self.folder,)

    def __len__(self) -> int:
        """The number of steps."""
        return self._length

    @property
    def starts(self) -> np.ndarray:
        """Where the steps of each episode begin."""
        return np.concatenate(([0], self.ends[:-1]))

    def episode_numbers(self, index: np.ndarray) -> np.ndarray:
        """Which episode each step is in, counted from 0."""
        if self._numbers is not None:
            return self._numbers.take(index)
        return self.ends.searchsorted(index, "right")

    @functools.cached_property
    def _numbers(self) -> np.ndarray | None:
        """The same for every step, where that does not take much memory: looking it up is five times as fast."""
        if len(self) > _MOST_NUMBERS:
            return None
        return np.repeat(np.arange(len(self.ends), dtype=np.int32), np.diff(self.ends, prepend=0))

    def read(self, index: np.ndarray) -> Steps:
        """Steps by their index, all of which must be in range."""
        number = self.episode_numbers(index)
        row = index + number
        rows = self._memory.rows.take(np.concatenate((row, row + 1)), "wrap")
        return Steps(rows.columns, self.ids.take(number), self._flags.take(index))

    def read_column(self, path: tuple[str, ...], index: np.ndarray, *, after: bool) -> np.ndarray:
        """One column of the rows of some steps, or of those after."""
        row = index + self.episode_numbers(index) + after
        return self.storage.get_column(path).gather(row, self._rows)

    def read_flags(self, index: np.ndarray) -> np.ndarray:
        return self._flags.take(index)

    def done(self) -> np.ndarray:
        """The steps that were terminated or truncated."""
        return np.flatnonzero(self._flags)

    def verify(self) -> list[str]:
        """What is wrong with the stored data, one sentence each; empty if nothing is."""
        found = self.storage.verify()
        if zlib.crc32(self._flags.data) != self.marker["flags_checksum"]:
            found.append(f"{self.folder / FLAGS}: the checksum does not match, the file was damaged")
        return found

    def close(self) -> None:
        """Release the files."""
        self.storage.close()


def read_marker(folder: Path) -> dict[str, Any]:
    """What a converted folder says about itself."""
    marker = read_json(folder / MARKER, checksum=True)
    if marker.get("format") != FORMAT:
        raise StorageCorruptedError(f"{folder / MARKER}: not a converted dataset")
    if marker.get("format_version") != VERSION:
        raise StorageCorruptedError(
            f"{folder / MARKER}: format version {marker.get('format_version')}, this library reads {VERSION}: "
            f"delete the folder to have it converted again"
        )
    return marker
