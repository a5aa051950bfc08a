"""Minari's datasets as experience replays.

A dataset is converted once, into packed rows in a folder of ours, and sampled from there. The folder of Minari is only
ever read.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import re
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from unienv_interface.backends import BackendLike, parse_backend
from unienv_interface.utils.optional import need

from ..base.storage import StorageCorruptedError
from ._access import check_new_key, fitted
from ._batch_storage import BatchStorage, TrajectoryStorage
from ._episodes import EPISODES, FLAGS, MARKER, ROWS, EpisodeRows, TransitionBatch, read_marker
from ._minari_convert import convert, fingerprint
from ._storage import Writer
from .experience_replay import ExperienceReplay, PathLike
from .offline import OfflineMethods
from .tensordicts import Key, torch

if TYPE_CHECKING:
    import minari
    from typing_extensions import Self
else:
    minari = need("minari", extra="minari")

_DATASETS_PATH = "MINARI_DATASETS_PATH"
_environment = threading.Lock()

# What a conversion leaves in a folder, whole or not.
_CONVERTED = re.compile(rf"\.?({re.escape(MARKER)}|{ROWS}|{FLAGS}|{EPISODES}|block-[0-9]+\.bin|rows)(\.[0-9]+\.tmp)?")


class _AvailableDatasets:
    """The names of the datasets that can be downloaded; asks the server each time."""

    def __get__(self, instance: object, owner: type) -> list[str]:
        try:
            return list(minari.list_remote_datasets())
        except Exception as error:
            raise ConnectionError(f"the list of datasets cannot be had: {type(error).__name__}: {error}") from error


class MinariExperienceReplay(OfflineMethods, ExperienceReplay):
    """A Minari dataset in TED form.

    A sample has at the root what held before the step (`observation`, `action`, `episode`, and `info` and `state` where
    they were recorded), under `next` what came of it (`observation`, `reward`, `terminated`, `truncated`, `done`, ...).
    Texts are UTF-8 bytes filled up with zeros; tuples have the keys "0", "1" and so on. Where some episodes lack an
    info, or it has none for the reset, `mask` says where it is there; elsewhere it is NaN or zero.

    The dataset cannot be added to. Entries can be set and added: the columns are kept in the memory of this replay, and
    the dataset stays as it is.

    Parameters
    ----------
    dataset_id
        The name of the dataset.
    batch_size
        The default size of a batch.
    root
        The folder of converted datasets; by default `unienv/minari` in the user's cache.
    download
        Whether to download the dataset if it is not in `root`. With "force" it is downloaded and converted again, which
        also repairs a damaged copy.
    split_trajs
        Whether samples are whole trajectories, of shape [batch, time], padded with zeros. `mask` says which steps are
        valid, `traj_ids` which trajectory they are of. If the dataset has masks of its own, the mask of the steps is
        ("mask", "valid").
    load_from_local_minari
        Whether to take the dataset from the local Minari folder, `MINARI_DATASETS_PATH` or `~/.minari/datasets`. The
        copy is made again when the local dataset has changed. Nothing is downloaded.
    progress
        Whether to show the progress of a conversion.
    sampler, writer, collate_fn, pin_memory, prefetch, transform
        As of `ExperienceReplay`.

    Raises
    ------
    FileNotFoundError
        If there is no such dataset where it was to be looked for.
    ConnectionError
        If it could not be downloaded.
    StorageCorruptedError
        If the dataset, or its converted copy, is damaged; the text says which, and what to do.
    ValueError
        `dataset_id` has no version, or `download` has an unknown value.
    FileExistsError
        There is something else at the place of the converted copy.
    RuntimeError
        The dataset was changed while it was converted.

    Examples
    --------
    >>> data = MinariExperienceReplay("D4RL/door/human-v2", batch_size=256)  # doctest: +SKIP
    >>> batch = data.sample()  # doctest: +SKIP
    """

    available_datasets = _AvailableDatasets()

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: PathLike | None = None,
        download: bool | Literal["force"] = True,
        sampler: Any = None,
        writer: Writer | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        split_trajs: bool = False,
        load_from_local_minari: bool = False,
        progress: bool = True,
    ) -> None:
        if download not in (True, False, "force"):
            raise ValueError(f"download is {download!r}, wanted True, False or 'force'")
        check_dataset_id(dataset_id)
        self.dataset_id, self.split_trajs = dataset_id, split_trajs
        self._root = default_root() if root is None else Path(root).expanduser()
        is_forced = download == "force"
        if load_from_local_minari:
            _convert_local(dataset_id, self.data_path_root, is_forced, progress)
        else:
            _convert_remote(dataset_id, self.data_path_root, bool(download), is_forced, progress)
        self._rows = _open(self.data_path_root)
        from unienv_interface.backends.pytorch import PyTorchComputeBackend

        batch = TransitionBatch(self._rows, PyTorchComputeBackend, as_tensors=True)
        self._steps = BatchStorage(batch, identity=self._identity(self._rows))
        super().__init__(
            storage=TrajectoryStorage(self._steps) if split_trajs else self._steps,
            sampler=sampler,
            writer=writer,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            batch_size=batch_size,
        )

    def _identity(self, rows: EpisodeRows) -> str:
        """What tells the steps apart from those of other datasets, and of other episodes of this one."""
        identity = f"{self.dataset_id} {rows.marker['fingerprint']}"
        return identity if rows.has_all else f"{identity} {rows.chosen.tolist()}"

    def select_episodes(self, chosen: Any, *, sampler: Any = None) -> Self:
        """Make a replay of some episodes, which shares the files of this one.

        Entries that were set, transforms and other settings are those of this replay.

        Parameters
        ----------
        chosen
            The numbers of the episodes in this replay, counted from 0, or a mask.
        sampler
            The sampler of the new replay; `RandomSampler()` by default.
        """
        numbers = np.arange(len(self._rows.ends))[np.asarray(chosen, None if len(chosen) else np.int64)]
        batch = self._steps.batch.only_episodes(numbers)  # type: ignore[attr-defined]
        starts, ends = self._rows.starts[numbers], self._rows.ends[numbers]
        index = np.concatenate([np.arange(start, end) for start, end in zip(starts, ends, strict=True)])
        other = type(self).__new__(type(self))
        other.dataset_id, other.split_trajs, other._root = self.dataset_id, self.split_trajs, self._root
        other._rows = batch.rows
        other._steps = self._steps.select(batch, index, self._identity(batch.rows))
        ExperienceReplay.__init__(
            other,
            storage=TrajectoryStorage(other._steps) if self.split_trajs else other._steps,
            sampler=sampler,
            collate_fn=self._collate_fn,
            pin_memory=self._pins_memory,
            prefetch=self._prefetcher.depth,
            batch_size=self._batch_size,
        )
        other._transforms = self._transforms.copy()
        return other

    def _set_column(self, key: Key, column: torch.Tensor) -> None:
        with self._lock:
            entries = self._steps.entries()
            if key in entries:
                column = fitted(key, column, len(self._steps), self._steps.get_column(key, np.zeros(1, np.int64)))
                self._steps.set_column(key, np.arange(len(self._steps)), column)
            else:
                check_new_key(key, entries)
                self._steps.add_column(key, column)
            self._storage.revision += 1

    @property
    def metadata(self) -> dict[str, Any]:
        """What the dataset says about itself.

        `observation_space` and `action_space` are the spaces of these entries of a sample, on PyTorch, with the method
        `is_in` that TorchRL's specs have.
        """
        spaces: dict[str, Any] = self._steps.batch.single_space.spaces  # type: ignore[attr-defined]
        own = {f"{part}_space": spaces[part] for part in ("observation", "action")}
        return {**self._rows.marker["metadata"], **own}

    @property
    def data_path_root(self) -> Path:
        """The folder of the converted dataset."""
        return self._root / self.dataset_id

    @property
    def data_path(self) -> Path:
        """The path of the dataset with its split: with `split_trajs` the name has `_split` at its end.

        Trajectories are split when they are read, so there is no such folder: the files are in `data_path_root`.
        """
        return self._root / f"{self.dataset_id}_split" if self.split_trajs else self.data_path_root

    def as_batch(self, backend: BackendLike | None = None, device: Any = None) -> TransitionBatch:
        """Give the steps as a batch, on PyTorch unless another backend is named, with episodes as segments.

        Texts are strings and tuples are tuples there. Entries that were set on this replay are as they were recorded.
        """
        if backend is None:
            from unienv_interface.backends.pytorch import PyTorchComputeBackend

            backend = PyTorchComputeBackend
        return TransitionBatch(self._rows, parse_backend(backend), device)

    def verify(self) -> list[str]:
        """Compare the converted data with their checksums; one sentence for each file that was damaged."""
        return self._rows.verify()

    def delete(self) -> None:
        """Delete the converted dataset. What Minari keeps stays."""
        self.close()
        with _locked(self.data_path_root):
            if _is_converted(self.data_path_root, is_forced=True):
                shutil.rmtree(self.data_path_root)


def check_dataset_id(dataset_id: str) -> None:
    """A ValueError unless this is the name of a dataset as Minari has them, which is also that of a folder."""
    try:
        minari.dataset.minari_dataset.parse_dataset_id(dataset_id)
    except TypeError:
        raise ValueError(f"dataset_id is {dataset_id!r}, it wants a version at its end, such as -v0") from None


def default_root() -> Path:
    """The default folder of converted datasets."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "unienv" / "minari"


def local_folder() -> Path:
    """Where Minari keeps its datasets."""
    path = os.environ.get(_DATASETS_PATH)
    return Path(path) if path else Path.home() / ".minari" / "datasets"


# -- the converted copy ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Hold the lock of a converted folder, and remove what a process that was killed has left beside it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f".{target.name}.lock")
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        leftover = re.compile(re.escape(f".{target.name}.") + r"(download\.)?[0-9]+(\.old)?\.tmp")
        for path in target.parent.iterdir():
            if leftover.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)
        yield
    finally:
        os.close(fd)


def _is_converted(folder: Path, *, is_forced: bool) -> bool:
    """Whether there is a converted dataset; a FileExistsError if there is something else.

    With `is_forced` it may be incomplete.
    """
    if (folder / MARKER).exists():
        return True
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: give another root")
    if not folder.is_dir() or not any(folder.iterdir()):
        return False
    if not all(_CONVERTED.fullmatch(path.name) for path in folder.iterdir()):
        raise FileExistsError(f"{folder} is there, and not a converted dataset: give another root")
    if not is_forced:
        raise _damaged(folder, f"{folder / MARKER} is missing")
    return True


def _damaged(folder: Path, finding: object) -> StorageCorruptedError:
    return StorageCorruptedError(
        f'{finding}. The converted dataset in {folder} is damaged or incomplete: download="force" makes it again, '
        f"and delete() or removing the folder does so at the next use"
    )


def _marker(folder: Path) -> dict[str, Any]:
    try:
        return read_marker(folder)
    except StorageCorruptedError as error:
        raise _damaged(folder, error) from error


def _open(folder: Path) -> EpisodeRows:
    """Open the converted dataset in a folder, all of one copy, while other processes may put another in its place."""
    while True:
        number = folder.stat().st_ino
        try:
            rows = EpisodeRows(folder)
        except StorageCorruptedError as error:
            if folder.stat().st_ino == number:
                raise _damaged(folder, error) from error
            continue
        if folder.stat().st_ino == number:
            return rows


def _convert_local(dataset_id: str, target: Path, is_forced: bool, progress: bool) -> None:
    """Have a copy of the local dataset as it is now."""
    folder = local_folder() / dataset_id / "data"
    if not folder.is_dir():
        what = f"{folder} does not exist: there is no local Minari dataset {dataset_id!r}"
        raise FileNotFoundError(f"{what}{_hint(dataset_id)}")

    def is_wanted() -> bool:
        return not _is_converted(target, is_forced=is_forced) or is_forced or not _is_current(target, folder)

    if is_wanted():
        with _locked(target):
            if is_wanted():  # another process may have made the copy meanwhile
                convert(folder, target, dataset_id=dataset_id, origin=folder, progress=progress)


def _is_current(target: Path, folder: Path) -> bool:
    return _marker(target)["fingerprint"] == fingerprint(folder)


def _convert_remote(dataset_id: str, target: Path, may_download: bool, is_forced: bool, progress: bool) -> None:
    """Have a copy of the dataset, and download the dataset if there is none."""
    if _is_converted(target, is_forced=is_forced) and not is_forced:
        origin = _marker(target)["origin"]
        if origin is None or not Path(origin).is_dir() or _is_current(target, Path(origin)):
            return
        with _locked(target):
            if not _is_current(target, Path(origin)):
                convert(Path(origin), target, dataset_id=dataset_id, origin=Path(origin), progress=progress)
        return
    if not may_download:
        raise FileNotFoundError(f"{target} does not exist, and download is False{_hint(dataset_id)}")
    with _locked(target):
        if _is_converted(target, is_forced=is_forced) and not is_forced:
            return
        with _downloaded(dataset_id, target) as folder:
            convert(folder, target, dataset_id=dataset_id, origin=None, progress=progress)


@contextlib.contextmanager
def _downloaded(dataset_id: str, target: Path) -> Iterator[Path]:
    """The dataset as Minari downloads it, in a folder beside the target that does not stay."""
    folder = target.with_name(f".{target.name}.download.{os.getpid()}.tmp")
    try:
        try:
            folder.mkdir()
            with _datasets_path(folder), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Minari recommends other versions
                minari.download_dataset(dataset_id)
        except Exception as error:
            what = f"{dataset_id!r} could not be downloaded: {type(error).__name__}: {error}"
            raise ConnectionError(f"{what}{_hint(dataset_id)}") from error
        data = folder / dataset_id / "data"
        if not data.is_dir():
            raise ConnectionError(f"{dataset_id!r} could not be downloaded: Minari left nothing{_hint(dataset_id)}")
        yield data
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _datasets_path(folder: Path) -> Iterator[None]:
    """Have Minari use a folder; it has no other way of telling it."""
    with _environment:
        before = os.environ.get(_DATASETS_PATH)
        os.environ[_DATASETS_PATH] = str(folder)
        try:
            yield
        finally:
            if before is None:
                del os.environ[_DATASETS_PATH]
            else:
                os.environ[_DATASETS_PATH] = before


def _hint(dataset_id: str) -> str:
    """What else there is, for messages."""
    folder = local_folder()
    names = [path.parent.relative_to(folder).as_posix() for path in folder.glob("**/data") if path.is_dir()]
    if dataset_id in names:
        return f". It is in {folder}: load_from_local_minari=True reads it"
    close = difflib.get_close_matches(dataset_id, names, n=3, cutoff=0.3)
    return f". Local datasets of similar names: {', '.join(close)}" if close else f". There is none like it in {folder}"
