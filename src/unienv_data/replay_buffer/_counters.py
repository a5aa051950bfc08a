"""The counters of a replay buffer, and the page they live in.

Two counters that only grow tell which samples a buffer holds: `head`, how many samples were ever written, and `tail`,
how many were ever dropped. A writer moves `tail` past the samples it will overwrite, then writes, then moves `head`;
each move is one aligned store. A reader in any process, at any instant, also after the writer was killed, therefore
sees every acknowledged sample and no other.

On disk the counters lie in a mapped page. Once the samples they count are durable, `commit` copies the counters into
one of two checksummed halves of the page. Memory pages reach the disk in any order. After a reboot, or in a copied
folder, the samples since the last commit are therefore compared with their checksums before the live counters are
trusted (`_recovery`). A clean close seals the page with a checksum.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from ..base.files import PathLike, open_sized
from ..base.mapped import MappedFile
from ..base.storage import StorageCorruptedError

#: The counters in their order on disk.
COUNTER_NAMES = (
    "head",  # samples ever written
    "tail",  # samples ever dropped
    "base",  # the number of the sample that is, was or will be in slot 0 of the first round
    "closed",  # samples before this number belong to closed episodes, the others to the open one
    "segments",  # how many records of episodes are valid
    "edit",  # grows with every change of existing samples, and is odd during one
    "writer",  # the pid of the process that is writing to a shared buffer; 0 if none is
    "boot",  # changes when the machine boots
    "storage_size",  # this and the next two: sizes of the files, set by a clean close
    "heap_size",
    "segments_size",
    "coming",  # the head after the write under way, if it overwrites samples
    "renumbered",  # how often samples got other numbers
)
_MAGIC = b"UNIENV\x00\x01"
PAGE_SIZE = 4096
_LIVE, _HALVES, _SEAL = 64, (1024, 2048), 4088
_COUNT = 16  # integers on disk; the unnamed ones are zero
_NUMBERS = struct.Struct(f"<{_COUNT}q")
_HALF = struct.Struct(f"<Q{8 * _COUNT}s")  # a sequence number and the counters; their CRC32 follows
_SEAL_TAG = 0x5EA1ED << 32  # a seal is never 0, nor one bit away from it

Sizes = tuple[int, int, int]


class Counters:
    """The counters by name: aligned 64-bit integers over a page, or attributes in this process's memory."""

    head: int
    tail: int
    base: int
    closed: int
    segments: int
    edit: int
    writer: int
    boot: int
    storage_size: int
    heap_size: int
    segments_size: int
    coming: int
    renumbered: int

    def copy(self) -> Counters:
        """The same numbers in memory of their own."""
        copied = PrivateCounters()
        copied.assign(self)
        return copied

    def assign(self, other: Counters) -> None:
        """Take over the numbers of another."""
        for name in COUNTER_NAMES:
            setattr(self, name, getattr(other, name))

    def as_stored(self) -> bytes:
        """The counters as bytes on disk."""
        numbers = [getattr(self, name) for name in COUNTER_NAMES]
        return _NUMBERS.pack(*numbers, *[0] * (_COUNT - len(numbers)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counters) and self.as_stored() == other.as_stored()

    __hash__ = None  # type: ignore[assignment]

    @property
    def sizes(self) -> Sizes:
        """The sizes of the files, as the last clean close has set them."""
        return self.storage_size, self.heap_size, self.segments_size


class PrivateCounters(Counters):
    """Counters in this process's memory, `numbers` in their order on disk."""

    def __init__(self, numbers: Iterable[int] = (0,) * len(COUNTER_NAMES)) -> None:
        for name, number in zip(COUNTER_NAMES, numbers):  # noqa: B905 - on disk there is room for more
            setattr(self, name, number)


class _MappedCounters(Counters, ctypes.Structure):
    """Counters over a page."""

    _fields_ = [(name, ctypes.c_int64) for name in COUNTER_NAMES] + [
        ("unused", ctypes.c_int64 * (_COUNT - len(COUNTER_NAMES)))
    ]


class _ReadOnlyCounters(_MappedCounters):
    """Counters over a page mapped read-only, where a store would kill the process."""

    def __setattr__(self, name: str, value: object) -> None:
        raise PermissionError(f"counter {name!r}: the buffer was opened read-only")


class Header:
    """The owner of the counters: here in this process's memory."""

    #: The sizes of the files after a clean close; None after any other end.
    closed_sizes: Sizes | None = None
    #: Whether the last writer did not close the buffer, and ran on another machine or before this boot.
    is_of_another_boot = False

    def __init__(self, counters: Counters | None = None) -> None:
        self.counters = PrivateCounters() if counters is None else counters

    def is_closed(self) -> bool:
        """Whether the buffer was closed cleanly, and has not been written since."""
        return False

    def newest_half(self) -> Counters:
        """The counters that were committed last."""
        return self.counters

    def has_edit_to_make(self) -> bool:
        """Whether the journal holds a durable edit that a power cut may have left half made."""
        return False

    def begin_to_write(self) -> None:
        """Mark the buffer as open for writing since this boot."""

    def commit(self) -> None:
        """Make the counters durable; the samples they count must be durable already."""

    def seal(self, sizes: Sizes) -> None:
        """Mark the buffer as closed cleanly, with these sizes of its files."""

    def close(self) -> None:
        """Release the memory of the counters."""


class MappedHeader(Header):
    """Counters in a file of one page: on disk, or without a name and shared between processes."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._page = memoryview(file.map(PAGE_SIZE))  # type: ignore[arg-type]
        if file.writable:
            super().__init__(_MappedCounters.from_buffer(self._page, _LIVE))
        else:
            super().__init__(_mapped_read_only(self._page))

    @classmethod
    def create(cls, path: Path | None) -> MappedHeader:
        file = MappedFile.create(path, np.uint8, PAGE_SIZE)
        file.reserve(0, PAGE_SIZE)
        os.pwrite(file.fd, _MAGIC, 0)
        header = cls(file)
        header.counters.boot = _boot_number()
        header.commit()
        return header

    @classmethod
    def open(cls, path: Path, *, writable: bool, data_is_live: bool = True) -> MappedHeader:
        """The counters in a file. Unless `data_is_live`, only committed samples are on disk."""
        file = MappedFile.open(path, np.uint8, writable=writable)
        try:
            file.check_length(PAGE_SIZE, exactly=True)
            header = cls(file)
            header._choose(data_is_live=data_is_live)
        except BaseException:
            file.close()
            raise
        return header

    def __reduce__(self) -> tuple[type[MappedHeader], tuple[MappedFile]]:
        return MappedHeader, (self._file,)

    def _choose(self, *, data_is_live: bool) -> None:
        """Choose the counters to trust: the live ones or the last commit."""
        _check_magic(self._page, self._file)
        counters, committed = self.counters, self.newest_half()
        _check_not_behind(counters, committed, self._file)
        if self.is_closed():
            self.closed_sizes = counters.sizes
        elif not data_is_live:
            if any(getattr(counters, name) != getattr(committed, name) for name in ("tail", "base", "edit")):
                raise StorageCorruptedError(
                    f"{self._file}: samples were overwritten or removed since the last flush, and the writer is still "
                    f"at work or was killed; flush it there, or record with a storage that survives that"
                )
            self.go_on_from(committed)
        else:
            self.is_of_another_boot = _is_of_another_boot(counters)
        if not data_is_live and not self._file.writable:
            self.go_on_from(self.counters.copy())  # a writer may move the live ones

    def begin_to_write(self) -> None:
        """Mark the buffer as open for writing since this boot."""
        is_sealed = any(self._page[_SEAL:PAGE_SIZE])
        self._page[_SEAL:PAGE_SIZE] = bytes(8)
        self.counters.boot = _boot_number()
        self.is_of_another_boot = False
        if is_sealed:
            self._file.sync()  # a seal that survives a power cut would make changed files look damaged

    def go_on_from(self, counters: Counters) -> None:
        """Replace the live counters; a reader replaces its own copy only."""
        if self._file.writable:
            self.counters.assign(counters)
        else:
            self.counters = counters

    def is_closed(self) -> bool:
        """Whether the page is sealed; a StorageCorruptedError if its checksum is wrong."""
        return _is_closed(lambda: bytes(self._page), self._file)

    def newest_half(self) -> Counters:
        """The counters of the last commit; a StorageCorruptedError if both halves are damaged."""
        for _ in range(2):
            with contextlib.suppress(StorageCorruptedError):
                return _newest_half(self._page, self._file)
            time.sleep(0.002)  # a writer may just be writing one after the other
        return _newest_half(self._page, self._file)

    def has_edit_to_make(self) -> bool:
        committed = self.newest_half().edit
        return bool(committed & 1) and self.counters.edit - committed in (0, 1)

    def commit(self) -> None:
        if self._file.path is None:
            return
        sequences = [int.from_bytes(self._page[start : start + 8], "little") for start in _HALVES]
        sound = [_is_sound_half(self._page, start) for start in _HALVES]
        # not the newest sound half: the other may be left from a commit that was cut short
        older = sequences.index(min(sequences)) if all(sound) else sound.index(False)
        start, half = _HALVES[older], _HALF.pack(max(sequences) + 1, self.counters.as_stored())
        crc, crc_range = zlib.crc32(half), slice(start + _HALF.size, start + _HALF.size + 4)
        self._page[crc_range] = (crc ^ 0xFFFFFFFF).to_bytes(4, "little")  # invalid while the half changes
        self._page[start : start + _HALF.size] = half
        self._page[crc_range] = crc.to_bytes(4, "little")
        self._file.sync()

    def seal(self, sizes: Sizes) -> None:
        counters = self.counters
        counters.storage_size, counters.heap_size, counters.segments_size = sizes
        self.commit()
        self._page[_SEAL:PAGE_SIZE] = _seal_of(bytes(self._page)).to_bytes(8, "little")
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def read_bounds(path: PathLike) -> tuple[int, int]:
    """Read head and tail with the checks of `MappedHeader.open`, without mapping the file."""
    fd, size = open_sized(path)
    try:
        if size != PAGE_SIZE:
            raise StorageCorruptedError(f"{path}: {size} bytes, it must have {PAGE_SIZE}")
        page = os.pread(fd, PAGE_SIZE, 0)
        _check_magic(page, path)
        committed = _newest_half(page, path)
        # read again: a flush between the two reads would put the commit ahead of the live counters
        counters = PrivateCounters(_NUMBERS.unpack(os.pread(fd, _NUMBERS.size, _LIVE)))
        _check_not_behind(counters, committed, path)
        _is_closed(lambda: os.pread(fd, PAGE_SIZE, 0), path)  # compares the checksum
        return counters.head, counters.tail
    finally:
        os.close(fd)


# -- reading a page; `file` names it in errors ----------------------------------------------------------------


def _mapped_read_only(page: memoryview) -> Counters:
    """Live counters over a read-only page."""
    array = np.frombuffer(page, np.uint8, offset=_LIVE)
    counters = _ReadOnlyCounters.from_address(array.ctypes.data)
    vars(counters)["page"] = page  # an address alone would not keep the mapping
    return counters


def _check_magic(page: bytes | memoryview, file: object) -> None:
    if page[: len(_MAGIC)] != _MAGIC:
        raise StorageCorruptedError(f"{file}: not the header of a replay buffer")


def _check_not_behind(live: Counters, committed: Counters, file: object) -> None:
    """A StorageCorruptedError if live counters, which only grow, are behind the last commit.

    An edit may lower the head, after it has raised `edit`.
    """
    head, edit = live.head, live.edit
    is_behind = edit < committed.edit or (edit == committed.edit and head < committed.head)
    if is_behind or live.tail < committed.tail or live.base < committed.base:
        raise StorageCorruptedError(
            f"{file}: the counters say less than was flushed, the file was changed or damaged: keep what is whole with "
            f"`unienv repair` (unienv_data.repair)"
        )


def _is_of_another_boot(counters: Counters) -> bool:
    return counters.boot not in (_boot_number(), 0)


def _is_closed(read_page: Callable[[], bytes], file: object) -> bool:
    for attempt in range(3):
        page = read_page()
        seal = int.from_bytes(page[_SEAL:], "little")
        if seal in (0, _seal_of(page)):
            return seal != 0
        if attempt < 2:
            time.sleep(0.002)  # a writer may just be opening or closing it
    raise StorageCorruptedError(f"{file}: the checksum does not match, the file was changed or damaged")


def _newest_half(page: bytes | memoryview, file: object) -> Counters:
    sound = [_HALF.unpack(page[start : start + _HALF.size]) for start in _HALVES if _is_sound_half(page, start)]
    if not sound:
        raise StorageCorruptedError(f"{file}: neither copy of the counters matches its checksum")
    return PrivateCounters(_NUMBERS.unpack(max(sound)[1]))


def _is_sound_half(page: bytes | memoryview, start: int) -> bool:
    end = start + _HALF.size
    return zlib.crc32(page[start:end]) == int.from_bytes(page[end : end + 4], "little")


def _seal_of(page: bytes) -> int:
    return _SEAL_TAG | zlib.crc32(page[:_SEAL])


@functools.cache
def _boot_number() -> int:
    """A number that differs from boot to boot; 0 where the system has none, which is taken for the same boot."""
    try:
        return zlib.crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes())
    except OSError:
        return 0
