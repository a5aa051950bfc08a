"""`load`: recordings, datasets and files, with their views and samplers."""

from __future__ import annotations

import itertools
import os
import re
import sys
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from typing_extensions import Self

from unienv_data import (
    BatchBase,
    FrameStackedBatch,
    IndexSampler,
    ReplayBuffer,
    StepSampler,
    StorageCorruptedError,
    ToBackendOrDeviceBatch,
)
from unienv_data.base.files import did_you_mean_path, local_path
from unienv_data.checking.reading import open_folder
from unienv_data.integrations.lerobot import LeRobotAsUniEnvDataset
from unienv_data.integrations.lerobot_check import is_dataset
from unienv_interface.backends import BackendLike, ComputeBackend, parse_backend
from unienv_interface.space import Space
from unienv_interface.space.space import parse_integer
from unienv_interface.space.space_utils import construct_space_from_data

PathLike = str | os.PathLike[str]
_MINARI_ID = re.compile(r"^[\w./-]+-v\d+$")
#: Flags of the last sample of an episode.
_ENDS = ("terminated", "truncated", "done")


class _Closable(Protocol):
    def close(self) -> None: ...


class Data:
    """Samples by index, with views and samplers over them.

    Parameters
    ----------
    batch
        Any batch. The attribute `batch` gives access to its other methods.
    owner
        The object that `close` closes. A view, such as the result of `windows`, owns nothing.

    Examples
    --------
    >>> with unienv.load("cartpole", backend="torch") as data:
    ...     batch = data.sampler(256, seed=0).sample()
    ...     windows = data.windows(before=1, after=14).sampler(64)
    """

    def __init__(self, batch: BatchBase, owner: _Closable | None = None) -> None:
        self.batch = batch
        self._owner = owner

    @property
    def space(self) -> Space:
        """The space of one sample."""
        return self.batch.single_space

    @property
    def episodes(self) -> list[tuple[int, int]] | None:
        """The closed episodes as ranges of indices [start, stop); None if the data have no episodes."""
        return self.batch.get_segments()

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, index: Any) -> Any:
        return self.batch.get_at(index)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} samples of {self.batch!r}>"

    def sampler(
        self, batch_size: int, seed: int | None = None, *, sampler: IndexSampler | None = None, prefetch: int = 0
    ) -> StepSampler:
        """Make a sampler of mini-batches.

        Parameters
        ----------
        batch_size, seed, sampler, prefetch
            As for `StepSampler`.

        Returns
        -------
        StepSampler
            A sampler, whose `sample`, `sample_with_metadata` and `epoch_iter` return mini-batches.
        """
        return StepSampler(self.batch, batch_size, seed, sampler=sampler, prefetch=prefetch)

    def windows(self, before: int = 0, after: int = 0) -> Data:
        """Make a view in which each sample is a window of the samples before and after it, along a new axis.

        Parameters
        ----------
        before, after
            The numbers of samples before and after each sample in its window.

        Returns
        -------
        Data
            The view. `sample_with_metadata` of its samplers returns the mask as `slice_valid_mask`, booleans of shape
            (batch, before + 1 + after). The mask is False for frames beyond the episode, which repeat its first or last
            frame.

        Raises
        ------
        ValueError
            The data have no episodes, so windows would reach from one episode into the next; or a number is negative.
        """
        for name, frames in (("before", before), ("after", after)):
            if parse_integer(frames, name) < 0:
                raise ValueError(f"{name} is {frames}, it must not be negative")
        if not self.batch.is_segment_aware:
            raise ValueError(
                f"{self.batch!r} does not know its episodes, windows would reach from one into the next: record with "
                f"keep_episodes=True, or give FrameStackedBatch a mask function"
            )
        return Data(FrameStackedBatch(self.batch, before, after))

    def close(self) -> None:
        """Close the files that `load` has opened."""
        if self._owner is not None:
            self._owner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def load(source: PathLike, backend: BackendLike = "numpy", device: Any = None) -> Data:
    """Open recorded data to read.

    Parameters
    ----------
    source
        The folder of a recording, also while it is written; the folder of a LeRobot dataset; the id of a Minari
        dataset, which comes from the local Minari folder or a download; or a file with arrays of one length, ".npz",
        ".h5", ".hdf5" or ".parquet".
    backend, device
        The backend and device of the samples.

    Returns
    -------
    Data
        The samples, read-only.

    Raises
    ------
    FileNotFoundError
        The path does not exist; the message names a similar one.
    ValueError
        The file is of another kind, or its arrays are not of one length.

    Notes
    -----
    In an ".npz" file, the flags `terminated`, `truncated` and `done` mark the ends of episodes. Without these flags,
    and in the other kinds of files, data have no episodes.

    Examples
    --------
    >>> data = unienv.load("cartpole", backend="torch")
    >>> data = unienv.load("mujoco/hopper/expert-v0", backend="torch")  # doctest: +SKIP
    """
    backend, path = parse_backend(backend), local_path(source)
    if is_dataset(path):
        dataset = LeRobotAsUniEnvDataset.from_local(path, backend, device)
        return Data(dataset, dataset)
    if path.is_dir():
        return _open_recording(path, backend, device)
    if path.is_file():
        return _moved(_open_file(path), backend, device)
    if isinstance(source, str) and _MINARI_ID.match(source):
        return _open_minari(source, backend, device)
    raise FileNotFoundError(f"{path}: there is no such recording or file{did_you_mean_path(path)}")


def _open_recording(path: Path, backend: ComputeBackend, device: Any) -> Data:
    if ReplayBuffer.is_loadable_from(path):
        try:
            buffer = ReplayBuffer.load_from(path, backend=backend, device=device)
        except StorageCorruptedError:  # or the storage opens only on another backend
            return _moved(open_folder(path), backend, device)
        return Data(buffer, buffer)
    return _moved(open_folder(path), backend, device)


def _open_file(path: Path) -> ReplayBuffer:
    """Open a buffer over a file of arrays, on NumPy."""
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.suffix in (".h5", ".hdf5"):
        from unienv_data.storages.hdf5 import HDF5Storage

        return HDF5Storage.load_replay_buffer_from_raw_hdf5(path)
    if path.suffix == ".parquet":
        from unienv_data.storages.parquet import ParquetStorage

        return ParquetStorage.load_replay_buffer_from_raw_parquet(path)
    raise ValueError(
        f"{path}: must be the folder of a recording, or a file .npz, .h5, .hdf5 or .parquet, "
        f"not {path.suffix or 'a file without an ending'}"
    )


def _read_npz(path: Path) -> ReplayBuffer:
    """Read the arrays of a file into memory, in episodes if the file has flags of their ends."""
    with np.load(path, allow_pickle=False) as archive:
        columns = {name: archive[name] for name in archive.files}
    lengths = {name: len(column) if column.shape else None for name, column in columns.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        raise ValueError(f"{path}: the arrays must have the same length, they have {lengths}")
    (length,) = set(lengths.values())
    if not length:
        raise ValueError(f"{path}: the arrays are empty, at least one sample is needed to determine the space")
    flags = [columns[name].astype(bool).reshape(length) for name in _ENDS if name in columns]
    space = construct_space_from_data({name: column[0, ...] for name, column in columns.items()}, "numpy")
    buffer = ReplayBuffer.create(space, capacity=length, keep_episodes=bool(flags))
    stops: list[int] = (np.flatnonzero(np.logical_or.reduce(flags)) + 1).tolist() if flags else []
    for start, stop in itertools.pairwise(sorted({0, *stops, length})):
        buffer.extend({name: column[start:stop] for name, column in columns.items()})
    return buffer


def _open_minari(dataset_id: str, backend: ComputeBackend, device: Any) -> Data:
    from unienv_data.datasets.minari import MinariExperienceReplay, local_folder

    is_local = (local_folder() / dataset_id / "data").is_dir()
    replay = MinariExperienceReplay(dataset_id, load_from_local_minari=is_local, progress=sys.stderr.isatty())
    return Data(replay.as_batch(backend, device), replay)


def _moved(buffer: ReplayBuffer, backend: ComputeBackend, device: Any) -> Data:
    is_there = backend is buffer.backend and device is None
    return Data(buffer if is_there else ToBackendOrDeviceBatch(buffer, backend, device), buffer)
