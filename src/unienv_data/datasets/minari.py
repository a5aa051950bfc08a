"""Minari's datasets as experience replays.

A dataset is converted once, into packed rows in a folder of ours, and sampled from there. The folder of Minari is only
ever read.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unienv_interface.backends import BackendLike, parse_backend
from unienv_interface.utils.optional import need

from ..base.storage import StorageCorruptedError
from ._batch_storage import BatchStorage
from ._episode_rows import EpisodeRows, read_marker
from ._minari_convert import alone, convert, fingerprint, is_converted
from ._trajectories import TrajectoryStorage
from ._transitions import TransitionBatch
from ._writers import Writer
from .experience_replay import ExperienceReplay, PathLike

if TYPE_CHECKING:
    import minari
else:
    minari = need("minari", extra="minari")

_DATASETS_PATH = "MINARI_DATASETS_PATH"
_environment = threading.Lock()


class _AvailableDatasets:
    """The names of the datasets that can be downloaded; asks the server each time."""

    def __get__(self, instance: object, owner: type) -> list[str]:
        try:
            return list(minari.list_remote_datasets())
        except Exception as error:
            raise ConnectionError(f"the list of datasets cannot be had: {type(error).__name__}: {error}") from error


class MinariExperienceReplay(ExperienceReplay):
    """A Minari dataset in TED form.

    It is looked for in `root` (by default the folder `unienv/minari` in the user's cache), converted there if need be,
    and downloaded if it is not there and `download` is True. With "force" it is downloaded and converted again. With
    `load_from_local_minari` it is that of the local Minari folder, which is `MINARI_DATASETS_PATH` or
    `~/.minari/datasets`; nothing is downloaded then. A copy of a local dataset is made again when that has changed.

    A sample has at the root what held before the step (`observation`, `action`, `episode`, and `info` and `state` where
    they were recorded), under `next` what came of it (`observation`, `reward`, `terminated`, `truncated`, `done`, ...).
    Texts are UTF-8 bytes filled up with zeros; tuples have the keys "0", "1" and so on. Where some episodes lack an
    info, or it has none for the reset, `mask` says where it is there; elsewhere it is NaN or zero.

    Further arguments are those of `ExperienceReplay`.
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

        steps = TransitionBatch(self._rows, PyTorchComputeBackend, as_tensors=True)
        storage: Any = BatchStorage(steps, identity=f"{dataset_id} {self._rows.marker['fingerprint']}")
        super().__init__(
            storage=TrajectoryStorage(storage) if split_trajs else storage,
            sampler=sampler,
            writer=writer,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            batch_size=batch_size,
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """What the dataset says about itself."""
        return dict(self._rows.marker["metadata"])

    @property
    def data_path_root(self) -> Path:
        """The folder of the converted dataset."""
        return self._root / self.dataset_id

    @property
    def data_path(self) -> Path:
        """The folder that samples are read from; trajectories are split when they are read, so it is the same."""
        return self.data_path_root

    def as_batch(self, backend: BackendLike | None = None, device: Any = None) -> TransitionBatch:
        """The steps as a batch, on PyTorch unless another backend is named, with episodes as segments.

        Texts are strings and tuples are tuples there. Entries that were set on this replay are as they were recorded.
        """
        if backend is None:
            from unienv_interface.backends.pytorch import PyTorchComputeBackend

            backend = PyTorchComputeBackend
        return TransitionBatch(self._rows, parse_backend(backend), device)

    def verify(self) -> list[str]:
        """What is wrong with the converted data, one sentence each; empty if nothing is."""
        return self._rows.verify()

    def delete(self) -> None:
        """Delete the converted dataset. What Minari keeps stays."""
        self.close()
        with alone(self.data_path_root):
            if is_converted(self.data_path_root):
                shutil.rmtree(self.data_path_root)

    def close(self) -> None:
        super().close()
        self._rows.close()


def check_dataset_id(dataset_id: str) -> None:
    """A ValueError unless this is the name of a dataset as Minari has them, which is also that of a folder."""
    try:
        minari.dataset.minari_dataset.parse_dataset_id(dataset_id)
    except TypeError:
        raise ValueError(f"dataset_id is {dataset_id!r}, it wants a version at its end, such as -v0") from None


def default_root() -> Path:
    """Where converted datasets lie unless told otherwise."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "unienv" / "minari"


def local_folder() -> Path:
    """Where Minari keeps its datasets."""
    path = os.environ.get(_DATASETS_PATH)
    return Path(path) if path else Path.home() / ".minari" / "datasets"


def _open(folder: Path) -> EpisodeRows:
    """The converted dataset in a folder, all of one copy, while other processes may put another in its place."""
    while True:
        number = folder.stat().st_ino
        try:
            rows = EpisodeRows(folder)
        except StorageCorruptedError:
            if folder.stat().st_ino == number:
                raise
            continue
        if folder.stat().st_ino == number:
            return rows
        rows.close()


# -- finding and converting --------------------------------------------------------------------------------


def _convert_local(dataset_id: str, target: Path, is_forced: bool, progress: bool) -> None:
    folder = local_folder() / dataset_id / "data"
    if not folder.is_dir():
        what = f"{folder} does not exist: there is no local Minari dataset {dataset_id!r}"
        raise FileNotFoundError(f"{what}{_hint(dataset_id)}")
    if not is_forced and _is_current(target, folder):
        return
    with alone(target):
        if is_forced or not _is_current(target, folder):  # another process may have made it meanwhile
            convert(folder, target, dataset_id=dataset_id, origin=folder, progress=progress)


def _is_current(target: Path, folder: Path) -> bool:
    return is_converted(target) and read_marker(target)["fingerprint"] == fingerprint(folder)


def _convert_remote(dataset_id: str, target: Path, may_download: bool, is_forced: bool, progress: bool) -> None:
    if not is_forced and is_converted(target):
        origin = read_marker(target)["origin"]
        if origin is None or not Path(origin).is_dir() or _is_current(target, Path(origin)):
            return
        with alone(target):
            if not _is_current(target, Path(origin)):
                convert(Path(origin), target, dataset_id=dataset_id, origin=Path(origin), progress=progress)
        return
    if not may_download:
        raise FileNotFoundError(f"{target} does not exist, and download is False{_hint(dataset_id)}")
    with alone(target):
        if not is_forced and is_converted(target):
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
