"""Minari datasets as experience replays.

A dataset is converted once, to packed rows in UniEnv's cache, and sampled from there. Minari's folder is never written.
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

# The files of a conversion, complete or not.
_CONVERTED = re.compile(rf"\.?({re.escape(MARKER)}|{ROWS}|{FLAGS}|{EPISODES}|block-[0-9]+\.bin|rows)(\.[0-9]+\.tmp)?")


class _AvailableDatasets:
    """The names of the datasets that can be downloaded; each access asks the server."""

    def __get__(self, instance: object, owner: type) -> list[str]:
        try:
            return list(minari.list_remote_datasets())
        except Exception as error:
            raise ConnectionError(f"the list of datasets cannot be read: {type(error).__name__}: {error}") from error


class MinariExperienceReplay(OfflineMethods, ExperienceReplay):
    """A Minari dataset in TED form.

    A sample has the entries before the step at the root (`observation`, `action`, `episode`, and `info` and `state` if
    recorded), and the entries after the step under `next` (`observation`, `reward`, `terminated`, `truncated`, `done`,
    ...). Texts are UTF-8 bytes padded with zeros; tuples have the keys "0", "1" and so on. If an info is missing in
    some episodes, or at the reset, `mask` has booleans of the steps with a value; other values are NaN or zero.

    Samples cannot be added. Entries can be set and added: their columns are in the memory of this replay, and the
    dataset does not change.

    Parameters
    ----------
    dataset_id
        The name of the dataset.
    batch_size
        The default size of a batch.
    root
        The folder of converted datasets; by default `unienv/minari` in the user's cache.
    download
        Whether the dataset is downloaded if it is not in `root`. With "force" it is downloaded and converted again,
        which also repairs a damaged copy.
    split_trajs
        Whether samples are whole trajectories, of shape [batch, time], padded with zeros. `mask` is true for valid
        steps, and `traj_ids` is the number of the trajectory. If the dataset itself has masks, the mask of the steps is
        ("mask", "valid").
    load_from_local_minari
        Whether the dataset is read from the local Minari folder, `MINARI_DATASETS_PATH` or `~/.minari/datasets`,
        without a download. It is converted again after changes of the local dataset.
    progress
        Whether a progress bar is shown during a conversion.
    sampler, writer, collate_fn, pin_memory, prefetch, transform
        As of `ExperienceReplay`.

    Raises
    ------
    FileNotFoundError
        If the dataset is not in `root`, or in the local Minari folder.
    ConnectionError
        If the dataset could not be downloaded.
    StorageCorruptedError
        If the dataset, or its converted copy, is damaged; the message says which, and the way out.
    ValueError
        `dataset_id` has no version, or `download` has an unknown value.
    FileExistsError
        If the path of the converted copy has other content.
    RuntimeError
        If the dataset was changed during the conversion.

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
        """Return a text that identifies the dataset and the selected episodes."""
        identity = f"{self.dataset_id} {rows.marker['fingerprint']}"
        return identity if rows.has_all else f"{identity} {rows.chosen.tolist()}"

    def select_episodes(self, chosen: Any, *, sampler: Any = None) -> Self:
        """Make a replay of some episodes, which shares the files of this replay.

        Set entries, transforms and other settings are copied from this replay.

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
        """The metadata of the dataset.

        `observation_space` and `action_space` are the spaces of these entries of a sample, on PyTorch, with the method
        `is_in` of TorchRL's specs.
        """
        spaces: dict[str, Any] = self._steps.batch.single_space.spaces  # type: ignore[attr-defined]
        entry_spaces = {f"{key}_space": spaces[key] for key in ("observation", "action")}
        return {**self._rows.marker["metadata"], **entry_spaces}

    @property
    def data_path_root(self) -> Path:
        """The folder of the converted dataset."""
        return self._root / self.dataset_id

    @property
    def data_path(self) -> Path:
        """The path of the dataset and its split, as in TorchRL: with `split_trajs` the name ends with `_split`.

        Trajectories are split on reading, so this folder does not exist: the files are in `data_path_root`.
        """
        return self._root / f"{self.dataset_id}_split" if self.split_trajs else self.data_path_root

    def as_batch(self, backend: BackendLike | None = None, device: Any = None) -> TransitionBatch:
        """Return the steps as a batch with episodes as segments, on PyTorch by default.

        In the batch, texts are strings and tuples are tuples. Entries that were set on this replay are not included.
        """
        if backend is None:
            from unienv_interface.backends.pytorch import PyTorchComputeBackend

            backend = PyTorchComputeBackend
        return TransitionBatch(self._rows, parse_backend(backend), device)

    def verify(self) -> list[str]:
        """Compare the converted data with their checksums; return one sentence for each damaged file."""
        return self._rows.verify()

    def delete(self) -> None:
        """Delete the converted dataset. Minari's own copy stays."""
        self.close()
        with _locked(self.data_path_root):
            if _is_converted(self.data_path_root, is_forced=True):
                shutil.rmtree(self.data_path_root)


def check_dataset_id(dataset_id: str) -> None:
    """Raise a ValueError unless Minari accepts the name of a dataset, which is also a path of folders."""
    try:
        minari.dataset.minari_dataset.parse_dataset_id(dataset_id)
    except TypeError:
        raise ValueError(f"dataset_id is {dataset_id!r}, it wants a version at its end, such as -v0") from None


def default_root() -> Path:
    """Return the default folder of converted datasets."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "unienv" / "minari"


def local_folder() -> Path:
    """Return the folder of Minari's datasets."""
    path = os.environ.get(_DATASETS_PATH)
    return Path(path) if path else Path.home() / ".minari" / "datasets"


# -- the converted copy ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Hold the lock of a converted folder, and remove temporary folders of killed processes."""
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
    """Whether a folder is a converted dataset; a FileExistsError if the path is anything else.

    With `is_forced` the dataset may be incomplete.
    """
    if (folder / MARKER).exists():
        return True
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: give another root")
    if not folder.is_dir() or not any(folder.iterdir()):
        return False
    if not all(_CONVERTED.fullmatch(path.name) for path in folder.iterdir()):
        raise FileExistsError(f"{folder} exists and is not a converted dataset: give another root")
    if not is_forced:
        raise _damaged(folder, f"{folder / MARKER} is missing")
    return True


def _damaged(folder: Path, finding: object) -> StorageCorruptedError:
    return StorageCorruptedError(
        f'{finding}. The converted dataset in {folder} is damaged or incomplete: download="force" makes it again, '
        f"as the next use does after delete() or removing the folder"
    )


def _marker(folder: Path) -> dict[str, Any]:
    try:
        return read_marker(folder)
    except StorageCorruptedError as error:
        raise _damaged(folder, error) from error


def _open(folder: Path) -> EpisodeRows:
    """Open the converted dataset in a folder, consistently while other processes may replace the folder."""
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
    """Convert the local dataset unless its converted copy is current."""
    folder = local_folder() / dataset_id / "data"
    if not folder.is_dir():
        text = f"{folder} does not exist: there is no local Minari dataset {dataset_id!r}"
        raise FileNotFoundError(f"{text}{_hint(dataset_id)}")

    def is_wanted() -> bool:
        return not _is_converted(target, is_forced=is_forced) or is_forced or not _is_current(target, folder)

    if is_wanted():
        with _locked(target):
            if is_wanted():  # another process may have converted it meanwhile
                convert(folder, target, dataset_id=dataset_id, origin=folder, progress=progress)


def _is_current(target: Path, folder: Path) -> bool:
    return _marker(target)["fingerprint"] == fingerprint(folder)


def _convert_remote(dataset_id: str, target: Path, may_download: bool, is_forced: bool, progress: bool) -> None:
    """Download and convert the dataset unless its converted copy exists."""
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
    """Download the dataset with Minari to a temporary folder beside the target."""
    folder = target.with_name(f".{target.name}.download.{os.getpid()}.tmp")
    try:
        try:
            folder.mkdir()
            with _datasets_path(folder), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Minari recommends other versions
                minari.download_dataset(dataset_id)
        except Exception as error:
            text = f"{dataset_id!r} could not be downloaded: {type(error).__name__}: {error}"
            raise ConnectionError(f"{text}{_hint(dataset_id)}") from error
        data = folder / dataset_id / "data"
        if not data.is_dir():
            raise ConnectionError(f"{dataset_id!r} could not be downloaded: Minari left nothing{_hint(dataset_id)}")
        yield data
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _datasets_path(folder: Path) -> Iterator[None]:
    """Set Minari's folder of datasets by the environment variable, the only way that Minari has."""
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
    """Return a hint at local datasets of similar names, for error messages."""
    folder = local_folder()
    names = [path.parent.relative_to(folder).as_posix() for path in folder.glob("**/data") if path.is_dir()]
    if dataset_id in names:
        return f". It is in {folder}: load_from_local_minari=True reads it"
    close = difflib.get_close_matches(dataset_id, names, n=3, cutoff=0.3)
    return f". Local datasets of similar names: {', '.join(close)}" if close else f". {folder} has no similar name"
