"""Conversion of a recording, and the atomic writing of new recordings for `convert` and `repair`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from typing_extensions import Self

from unienv_interface.backends import NumpyComputeBackend, deserialize_backend
from unienv_interface.space import Space
from unienv_interface.space.space_utils import batch_space
from unienv_interface.utils.words import did_you_mean

from ..base.files import PathLike, remove_leftovers, replace_folder
from ..base.row_storage import rows_of
from ..base.storage import StorageCorruptedError
from ..integrations.lerobot import LeRobotAsUniEnvDataset, export_lerobot
from ..integrations.lerobot_check import is_dataset
from ..replay_buffer import ReplayBuffer
from ..replay_buffer.inspection import add_samples
from ..storages.columns import ColumnRule, column_rules
from ..storages.registry import storage_by_name
from .reading import ChunkReader, ProgressCallback, as_ranges, episode_table, open_folder, unwatched

#: The formats of a recording, and the storage of each.
FORMATS = {"packed": "packed", "hdf5": "hdf5", "parquet": "parquet", "npz": "npz", "pt": "pytorch"}
#: The format of LeRobot datasets.
LEROBOT = "lerobot"
#: All formats of `convert`.
TARGETS = (*FORMATS, LEROBOT)
_SETTLE_SECONDS = 0.2


class NewRecording:
    """Writes a temporary folder, and moves it to `target` when the `with` block succeeds; else removes it.

    Samples are added in batches, each with the episodes that end in it. A batch may end many episodes, and an episode
    may span many batches.
    """

    def __init__(
        self,
        target: Path,
        fmt: str,
        space: Space,
        *,
        capacity: int,
        keeps_episodes: bool,
        lanes: int = 1,
        columns: Mapping[str, ColumnRule] | None = None,
        shares_next_obs: bool = False,
    ) -> None:
        """Set up the recording. `capacity` is for formats that cannot grow, `columns` is for packed rows.

        With `shares_next_obs`, packed rows store each observation once.
        """
        if fmt not in FORMATS:
            raise ValueError(
                f"{fmt!r} is no format, it must be one of {', '.join(TARGETS)}{did_you_mean(fmt, TARGETS)}"
            )
        if os.path.lexists(target):
            raise FileExistsError(f"{target}: it exists already, give another path")
        self.written = self.episodes = 0
        self._target = target
        self._temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        self._source_space = space
        name = "shared_next_obs" if shares_next_obs and fmt == "packed" else FORMATS[fmt]
        self._storage_cls = storage_by_name(name)
        self._space = space.to(deserialize_backend("pytorch") if fmt == "pt" else NumpyComputeBackend)
        self._options: dict[str, Any] = {
            "capacity": max(1, capacity) if fmt == "pt" else None,
            "maintain_segment_metadata": keeps_episodes,
            "lanes": lanes,
            "columns": columns if fmt == "packed" else None,
        }

    def __enter__(self) -> Self:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._target)
        self._buffer = ReplayBuffer.create(self._storage_cls, self._space, cache_path=self._temporary, **self._options)
        return self

    def add(self, batch: Any, count: int, ended: np.ndarray, are_cut: np.ndarray) -> None:
        """Add `count` samples, and the episodes [start, stop) that end in them, in the order of their ends.

        `are_cut` marks the episodes that were cut.
        """
        if self._space.backend is not self._source_space.backend:
            batch = batch_space(self._source_space, count).data_to(batch, self._space.backend)
        add_samples(self._buffer, batch, count, ended, are_cut)
        self.written += count
        self.episodes += len(ended)

    def settle(self, progress: ProgressCallback) -> None:
        """Wait until all added frames are encoded; `progress` gets the number of encoded samples, and of all."""
        storage = rows_of(self._buffer.storage)
        total = storage.settle(0)
        while remaining := storage.settle(_SETTLE_SECONDS):
            progress(total - remaining, total)

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
        """Open the temporary folder and compare the counts and checksums."""
        with ReplayBuffer.load_from(self._temporary, backend=self._space.backend) as buffer:
            problems, segments = buffer.verify(), buffer.get_segments() or []
            if (len(buffer), len(segments)) != (self.written, self.episodes):
                found = f"{len(buffer)} samples in {len(segments)} episodes"
                problems.insert(0, f"{found} instead of {self.written} in {self.episodes}")
        if problems:
            raise StorageCorruptedError(f"{self._target}: the new folder does not read back: {problems[0]}")


@dataclass(frozen=True)
class ConvertReport:
    """The result of `convert`.

    Attributes
    ----------
    source, target : str
        The folder that was read, and the new one.
    format : str
        The format of the new recording.
    samples : int
        How many samples it has.
    episodes : int or None
        How many episodes it has; None if the recording keeps none.
    bytes_on_disk : int
        How many bytes its files take.

    Examples
    --------
    >>> report = unienv.convert("data/", "npz/", to="npz")
    >>> report.format, report.samples
    ('npz', 2000)
    """

    source: str
    target: str
    format: str
    samples: int
    episodes: int | None
    bytes_on_disk: int


def convert(
    source: PathLike,
    target: PathLike,
    to: str,
    *,
    fps: float | None = None,
    task: str | None = None,
    progress: ProgressCallback | None = None,
) -> ConvertReport:
    """Copy all samples and episodes to a new recording in another format, with bounded memory.

    Samples keep their order. In a packed copy, images and videos stay images and videos, and JPEG and video are encoded
    again; other formats store the decoded frames. An episode that was never closed is cut in the copy.

    Parameters
    ----------
    source
        A replay buffer. For the target "lerobot" also a LeRobot dataset, whose videos are copied unchanged.
    target
        The new folder.
    to
        The format, one of `TARGETS`.
    fps, task
        For LeRobot datasets, as for `export_lerobot`.
    progress
        Called as ``progress(done, total)`` with numbers of samples.

    Returns
    -------
    ConvertReport
        What was written.

    Raises
    ------
    FileNotFoundError
        There is no such folder, or no recording in it.
    FileExistsError
        There is something at `target`.
    ValueError
        `to` is no format, `fps` or `task` is given for another format than "lerobot", or that cannot hold the
        recording.
    RuntimeError
        Samples were dropped by a writer while they were copied.
    StorageCorruptedError
        The recording cannot be opened, or a sample cannot be read.

    Examples
    --------
    >>> report = unienv.convert("data/", "parquet/", to="parquet")
    >>> report.samples
    2000
    """
    source, target, progress = Path(source), Path(target), progress or unwatched
    if to == LEROBOT:
        is_lerobot = is_dataset(source)
        opened = LeRobotAsUniEnvDataset.from_local(source, NumpyComputeBackend) if is_lerobot else open_folder(source)
        with opened as buffer:
            export = export_lerobot(buffer, target, fps=fps, task=task, progress=progress)
        return ConvertReport(str(source), str(target), to, export.frames, export.episodes, bytes_on_disk(target))
    if fps is not None or task is not None:
        raise ValueError(f"fps and task are for the format {LEROBOT!r}, not {to!r}")
    with open_folder(source) as buffer:
        table = episode_table(buffer)
        ends = as_ranges([]) if table is None else table.all
        ends = ends[np.argsort(ends[:, 1], kind="stable")]
        are_cut = np.isin(ends[:, 1], [] if table is None else table.endless_stops)
        count = len(buffer)
        progress(0, count)
        options: dict[str, Any] = {"capacity": count, "keeps_episodes": table is not None, "lanes": buffer.lanes}
        storage = rows_of(buffer.storage)
        options |= {"columns": column_rules(storage), "shares_next_obs": storage.shares_next_obs}
        with NewRecording(target, to, buffer.single_space, **options) as new:
            for chunk in ChunkReader(buffer):
                first, stop = np.searchsorted(ends[:, 1], [new.written, new.written + chunk.count], side="right")
                new.add(chunk.data, chunk.count, ends[first:stop], are_cut[first:stop])
                progress(new.written, count)
            if new.written != count:
                raise RuntimeError(
                    f"{source}: samples were dropped during the copy; convert it while no process writes to it"
                )
            new.settle(lambda done, total: progress(count + done, count + total))
    episodes = None if table is None else len(ends)
    return ConvertReport(str(source), str(target), to, count, episodes, bytes_on_disk(target))


def bytes_on_disk(path: Path) -> int:
    """Return the bytes on disk of all files in a folder, without holes."""
    return sum(stat.st_blocks * 512 for stat in file_stats(path))


def file_stats(path: Path) -> list[os.stat_result]:
    """Return the sizes and times of all files in a folder and its subfolders."""
    return [(Path(folder) / name).lstat() for folder, _, names in os.walk(path) for name in names]
