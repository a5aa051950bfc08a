"""A buffer's folder: creating it, opening it, and reading its description without opening it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from unienv_interface.backends import BackendLike, ComputeBackend, NumpyComputeBackend
from unienv_interface.space import Space

from ..base.files import (
    PathLike,
    contained,
    ends_with_checksum,
    new_folder,
    remove,
    remove_temporaries,
    sync_folder,
)
from ..base.row_storage import RowStorage, rows_of
from ..base.storage import SpaceStorage, StorageCorruptedError, UnsupportedFormatError
from ..storages.backend_compat import NarrowedStorage, in_stored_form, is_narrowed
from ..storages.packed import PackedStorage
from ..storages.registry import name_of, storage_by_name
from ._counters import read_bounds
from ._locks import FolderLock, is_locked
from ._metadata import (
    FILE_NAME,
    FORMAT_VERSION,
    Metadata,
    check_segments,
    has_64_bits,
    read_metadata,
    read_space,
    write_metadata,
)
from ._segments import physical_segments
from ._state import HEADER, JOURNAL, LOCK, SEGMENT_FILE, BufferOptions, BufferState

if TYPE_CHECKING:
    from .replay_buffer import ReplayBuffer

AnswerT = TypeVar("AnswerT")
# Options of `load` that concern the frames of videos.
_OF_FRAMES = {"columns", "resize", "crop", "frame_cache"}


# -- creating and opening ----------------------------------------------------------------------------------


def create(
    storage_cls: type[SpaceStorage] | None,
    space: Space,
    args: tuple[Any, ...],
    folder: Path | None,
    storage_options: dict[str, Any],
    options: BufferOptions,
) -> ReplayBuffer:
    """A new buffer; see `ReplayBuffer.create`."""
    from .replay_buffer import ReplayBuffer

    cls: Any = PackedStorage if storage_cls is None else storage_cls
    name, shared = f"storage{cls.single_file_ext or ''}", storage_options["multiprocessing"]
    if folder is None:
        storage = cls.create(space, *args, cache_path=None, **storage_options)
        state = BufferState.in_memory(storage, options, shared=shared and storage.is_mutable)
        return ReplayBuffer(storage, name, state=state)
    name_of(cls)
    if (folder / FILE_NAME).exists():
        way_out = "open its buffer with ReplayBuffer.load_from(..., read_only=False), or give another path"
        raise FileExistsError(errno.EEXIST, f"it exists already: {way_out}", str(folder))
    clear_killed_create(folder)
    with new_folder(folder), _marked_as_incomplete(folder):
        storage = cls.create(space, *args, cache_path=folder / name, **storage_options)
        if storage.cache_filename is None:
            raise ValueError(
                f"{cls.__name__} keeps samples in memory, not in {folder}: create the buffer without "
                f"cache_path and write it with dumps"
            )
        if rows_of(storage).wants_episodes:
            if options.lanes > 1:
                storage.close()
                raise ValueError(
                    f"{cls.__name__} keeps one episode after the other as video, so lanes must be 1, not "
                    f"{options.lanes}: record each environment to a buffer of its own"
                )
            options = replace(options, maintains=True)
        state = BufferState.create(storage, folder, options, shared=shared)
        buffer = ReplayBuffer(storage, name, cache_path=folder, state=state)
        write_description(buffer, folder)
        sync_folder(folder)
    return buffer


@contextlib.contextmanager
def _marked_as_incomplete(folder: Path) -> Iterator[None]:
    """Hold a locked marker file in a folder while a buffer is created there."""
    marker = folder / f".creating.{os.getpid()}.tmp"
    lock = FolderLock(marker, shared=False)
    try:
        yield
        marker.unlink()
    finally:
        lock.release()


def clear_killed_create(folder: Path) -> None:
    """Empty a folder if a process was killed while it created a buffer there, before the first sample."""
    markers = list(folder.glob(".creating.*.tmp"))
    if not markers or (folder / FILE_NAME).exists() or any(is_locked(marker) for marker in markers):
        return
    for path in [*(path for path in folder.iterdir() if path not in markers), *markers]:  # markers last, for a kill
        remove(path)


def write_description(buffer: ReplayBuffer, folder: Path, tail: int | None = None, head: int | None = None) -> None:
    """Write the metadata.json of a buffer with the samples [tail, head)."""
    counters = buffer._counters
    tail, head = counters.tail if tail is None else tail, counters.head if head is None else head
    stored = in_stored_form(buffer.storage)
    write_metadata(
        folder,
        stored.single_instance_space,
        storage=name_of(type(stored)),
        storage_path=buffer.storage_path_relative,
        capacity=buffer.capacity,
        count=head - tail,
        offset=buffer._state.slot(tail) if _is_plain_ring(buffer) else 0,
        segments=_physical(buffer, tail, head),
        maintains_segments=buffer.maintain_segment_metadata,
        durable=buffer.is_durable,
        lanes=buffer.lanes,
    )


def _physical(buffer: ReplayBuffer, tail: int, head: int) -> list[tuple[int, int]] | None:
    if not buffer.maintain_segment_metadata or buffer.lanes > 1 or not _is_plain_ring(buffer):
        return None  # the reference's format has neither lanes nor spare slots
    ranges = buffer._state.segments.alive(tail, head)
    return physical_segments(ranges - buffer._counters.base, buffer.capacity)


def _is_plain_ring(buffer: ReplayBuffer) -> bool:
    """Whether the ring has as many slots as the buffer's capacity, as in the reference's format."""
    return buffer._state.storage.ring == buffer.capacity


def load(
    folder: Path,
    target: tuple[ComputeBackend, Any, Space | None],
    read_only: bool,
    shared: bool,
    storage_options: dict[str, Any],
) -> ReplayBuffer:
    """The buffer in a folder; see `ReplayBuffer.load_from`."""
    backend, device, given_space = target
    if not folder.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(folder))
    metadata = read_metadata(folder)
    space = read_space(folder, metadata, backend, device)
    if given_space is not None:
        if given_space != space:
            raise ValueError(f"{folder} holds samples of {space}, not of the given {given_space}")
        space = given_space
    stored_space = space if has_64_bits(backend) else read_space(folder, metadata, NumpyComputeBackend, None)
    has_fewer_bits = stored_space is not space and is_narrowed(space, stored_space)
    if has_fewer_bits and not read_only:
        raise ValueError(
            f"{folder} has columns of 64 bits, which {backend!r} keeps with fewer: open it with read_only=True, on "
            f"another backend, or with jax_enable_x64"
        )
    cls = storage_by_name(metadata.storage, folder / FILE_NAME)
    wanted = sorted(_OF_FRAMES & storage_options.keys())
    if wanted and not (issubclass(cls, RowStorage) and (cls.decodes_frames or cls.decodes_columns)):
        raise ValueError(f"{folder} has no columns of video, which {wanted} is for")
    with contextlib.ExitStack() as undo:
        lock = None
        if not read_only:
            lock = FolderLock(folder / LOCK, shared=shared)
            undo.callback(lock.release)
            remove_temporaries(folder)
            metadata = read_metadata(folder)  # read under the lock: another writer may have converted the folder
        path = contained(folder, metadata.storage_path)
        options = {"read_only": read_only, "multiprocessing": shared, **storage_options}
        try:
            storage: SpaceStorage = cls.load_from(
                path, stored_space if has_fewer_bits else space, capacity=metadata.capacity, **options
            )
        except (StorageCorruptedError, UnsupportedFormatError):
            raise
        except (ValueError, RecursionError) as error:  # from nested storages
            if wanted:  # the caller's options of frames may be wrong
                raise
            raise StorageCorruptedError(f"{path}: {error}") from error
        undo.callback(storage.close)
        rows = NarrowedStorage(space, storage) if has_fewer_bits else rows_of(storage)
        buffer = _assemble(folder, metadata, rows, lock, shared)
        buffer._storage_options = storage_options
        undo.pop_all()
    return buffer


def _assemble(
    folder: Path, metadata: Metadata, storage: RowStorage, lock: FolderLock | None, shared: bool
) -> ReplayBuffer:
    from .replay_buffer import ReplayBuffer

    options = BufferOptions(metadata.maintains_segments, metadata.durable, metadata.lanes)
    if metadata.capacity is None and metadata.offset + metadata.count > len(storage):
        raise StorageCorruptedError(
            f"{folder / FILE_NAME}: {metadata.count} samples from slot {metadata.offset} on, "
            f"{metadata.storage_path} has {len(storage)} slots"
        )
    if lock is not None and (storage.cache_filename is None or not storage.is_mutable):
        raise PermissionError(
            f"{folder}: its storage, {type(storage.original).__name__}, can only be read from there: open it with "
            f"read_only=True, and copy it with extend_from to write"
        )
    if metadata.version > 0:
        state = BufferState.open(storage, folder, options, lock, shared=shared)
        buffer = ReplayBuffer(storage, metadata.storage_path, cache_path=folder, state=state)
        if lock is not None:
            buffer._locked(buffer._writer.tell_of_all)
        if lock is not None and metadata.version < FORMAT_VERSION:
            write_description(buffer, folder)  # with the new version: earlier releases misread the new records
        return buffer
    count, offset, segments = metadata.count, metadata.offset, metadata.segments or ()
    storage.fit_to(offset + count if metadata.capacity is None else metadata.capacity, None)
    check_segments(folder, metadata)
    if lock is None:
        state = BufferState.in_memory(storage, options, shared=False)
        state.adopt(count, offset, segments)
        return ReplayBuffer(storage, metadata.storage_path, cache_path=folder, state=state)
    state = _new_state(storage, folder, options, lock, shared=shared)
    state.adopt(count, offset, segments)
    state.flush()
    buffer = ReplayBuffer(storage, metadata.storage_path, cache_path=folder, state=state)
    write_description(buffer, folder)  # last: until here the folder is still the reference's
    return buffer


def _new_state(
    storage: SpaceStorage, folder: Path, options: BufferOptions, lock: FolderLock, *, shared: bool
) -> BufferState:
    """The state of a buffer written by the reference; leftovers of a killed process are replaced."""
    for name in (HEADER, SEGMENT_FILE, JOURNAL):
        (folder / name).unlink(missing_ok=True)
    return BufferState.create(storage, folder, options, shared=shared, folder_lock=lock)


def received(path_relative: str, cache_path: Path | None, state: BufferState) -> ReplayBuffer:
    """A buffer received from another process."""
    from .replay_buffer import ReplayBuffer

    return ReplayBuffer(state.storage, path_relative, cache_path=cache_path, state=state)


# -- without opening ---------------------------------------------------------------------------------------
#
# Programs call these for thousands of folders: each file is opened once, and paths are strings.


def is_loadable_from(path: PathLike) -> bool:
    """Whether a folder holds a buffer that `load_from` takes."""
    try:
        storage_by_name(read_metadata(path).storage)
    except (OSError, ValueError):
        return False
    return True


def get_length_from_path(path: PathLike) -> int | None:
    """The number of samples in a folder; None if there is no buffer."""
    return _ask(path, _length_of)


def _length_of(folder: str) -> int:
    if not ends_with_checksum(os.path.join(folder, FILE_NAME)):  # written by the reference
        return read_metadata(folder).count
    head, tail = read_bounds(os.path.join(folder, HEADER))
    return max(0, head - tail)


def get_capacity_from_path(path: PathLike) -> int | None:
    """The capacity of the buffer in a folder; None if it grows or there is none."""
    return _ask(path, lambda folder: read_metadata(folder).capacity)


def get_space_from_path(path: PathLike, *, backend: BackendLike, device: Any = None) -> Space | None:
    """The space of one sample in a folder; None if there is no buffer."""
    return _ask(path, lambda folder: read_space(folder, read_metadata(folder), backend, device))


def _ask(path: PathLike, question: Callable[[str], AnswerT]) -> AnswerT | None:
    """The answer of a folder; None if it has no description."""
    folder = os.fspath(path)
    try:
        return question(folder)
    except (StorageCorruptedError, FileNotFoundError, NotADirectoryError):
        if os.path.exists(os.path.join(folder, FILE_NAME)):
            raise
        return None
