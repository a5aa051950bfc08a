"""The counters of a replay buffer, and where they live.

Two numbers that only grow say what is in a buffer: `head`, how many samples were ever written, and `tail`, how many
were ever dropped. A writer first moves `tail` past what it will overwrite, then writes, then moves `head`; each move is
one aligned store. So whoever looks at any instant, from any process, also after the writer was killed, sees a buffer
that holds what was acknowledged and nothing else.

On disk the counters are live in a mapped page. `commit` copies them into one of two checksummed halves of it once the
data they speak of is durable: pages of memory reach the disk in any order, so after a power cut (the machine has
booted since, and the buffer was not closed) the newer valid half counts, not the live counters. A buffer that is closed
in order seals the whole page with a checksum.
"""

from __future__ import annotations

import functools
import os
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..base.files import PathLike, open_sized
from ..base.mapped import MappedFile
from ..base.storage import StorageCorruptedError

# fmt: off
HEAD = 0      # samples ever written
TAIL = 1      # samples ever dropped
BASE = 2      # the number of the sample that is, was or will be in slot 0 of the first round
CLOSED = 3    # samples up to this number belong to closed episodes; those from it to head to the open one
SEGMENTS = 4  # how many records of episodes count
EDIT = 5      # grows when samples are changed in place: odd while that is going on
WRITER = 6    # the process that is writing, where several may; 0 if none is
BOOT = 7      # tells whether the machine has booted since
SIZES = 8     # three figures about the files, kept when they are closed in order
COMING = 11   # the head as it will be, while samples are overwritten: until then there are fewer than there will be
_COUNT = 16
# fmt: on

_MAGIC = b"UNIENV\x00\x01"
_SIZE = 4096
_LIVE, _HALVES, _SEAL = 64, (1024, 2048), 4088
_HALF = struct.Struct(f"<Q{_COUNT}q")  # a sequence number and the counters; their CRC32 follows
_SEAL_TAG = 0x5EA1ED << 32  # a seal is never 0, nor one bit away from it


#: What counters are, to be read and written one by one: a list where this process alone has them, which is quicker.
Cells = list[int] | memoryview


class Counters:
    """Counters in this process's memory."""

    def __init__(self, cells: Cells | None = None) -> None:
        self.cells: Cells = [0] * _COUNT if cells is None else cells

    #: What the buffer kept when it was closed in order; None if it was not.
    closed_sizes: tuple[int, int, int] | None = None

    def is_closed(self) -> bool:
        """Whether the buffer was closed in order, and nobody has begun to write since."""
        return False

    def commit(self) -> None:
        """Make the counters durable; everything they speak of must be by then."""

    def seal(self, sizes: tuple[int, int, int]) -> None:
        """Say that the buffer was closed in order, with these figures about its files."""

    def close(self) -> None:
        """Release what holds the counters."""

    def __getstate__(self) -> list[int]:
        return list(self.cells)

    def __setstate__(self, state: list[int]) -> None:
        self.cells = state


class MappedCounters(Counters):
    """Counters in a file of one page: on disk, or without a name and shared between processes."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        page = file.map(_SIZE)
        self._page = memoryview(page)  # type: ignore[arg-type]
        super().__init__(_live(self._page))

    @classmethod
    def create(cls, path: Path | None) -> MappedCounters:
        file = MappedFile.create(path, np.uint8, _SIZE)
        file.reserve(0, _SIZE)
        os.pwrite(file.fd, _MAGIC, 0)
        counters = cls(file)
        counters.cells[BOOT] = _boot_number()
        counters.commit()
        return counters

    @classmethod
    def open(cls, path: Path, *, writable: bool, data_is_live: bool = True) -> MappedCounters:
        """The counters in a file. Unless `data_is_live`, what they speak of is on disk only when it was committed."""
        file = MappedFile.open(path, np.uint8, writable=writable)
        try:
            file.check_length(_SIZE, exactly=True)
            counters = cls(file)
            counters._take_over(data_is_live=data_is_live)
        except BaseException:
            file.close()
            raise
        return counters

    def __reduce__(self) -> tuple[type[MappedCounters], tuple[MappedFile]]:
        return MappedCounters, (self._file,)

    def _take_over(self, *, data_is_live: bool) -> None:
        """Decide which counters to trust, and if this is to write, go on from them."""
        _check_magic(self._page, self._file)
        if self.is_closed():
            cells = self.cells
            self.closed_sizes = (cells[SIZES], cells[SIZES + 1], cells[SIZES + 2])
        elif _is_of_an_earlier_boot(self.cells):
            self._go_back_to(self._newest_half())
        elif not data_is_live:
            committed = self._newest_half()
            if any(self.cells[cell] != committed[cell] for cell in (TAIL, BASE, EDIT)):
                raise StorageCorruptedError(
                    f"{self._file}: samples were overwritten or removed since the last flush, and the writer is still "
                    f"at work or was killed; flush it there, or record with a storage that survives that"
                )
            self._go_back_to(committed)
        if not data_is_live and not self._file.writable:
            self._go_back_to(self.cells)  # as it is now, whatever a writer does from here on
        if self._file.writable:
            self._page[_SEAL:_SIZE] = bytes(8)
            self.cells[BOOT], self.cells[WRITER] = _boot_number(), 0

    def _go_back_to(self, cells: Cells) -> None:
        """Take these counters for the live ones; a reader does so for itself alone."""
        if self._file.writable:
            for place, value in enumerate(cells):
                self.cells[place] = value
        else:
            self.cells = list(cells)

    def is_closed(self) -> bool:
        """Whether the page says that the buffer is closed; a StorageCorruptedError if its checksum is wrong."""
        return _is_closed(lambda: bytes(self._page), self._file)

    def _newest_half(self) -> memoryview:
        return _newest_half(self._page, self._file)

    def commit(self) -> None:
        if self._file.path is None:
            return
        sequences = [int.from_bytes(self._page[start : start + 8], "little") for start in _HALVES]
        start = _HALVES[sequences.index(min(sequences))]
        half = _HALF.pack(max(sequences) + 1, *self.cells)
        crc = slice(start + _HALF.size, start + _HALF.size + 4)
        self._page[crc] = (_crc_of_half(self._page, start) ^ 0xFFFFFFFF).to_bytes(
            4, "little"
        )  # not valid while it changes
        self._page[start : start + _HALF.size] = half
        self._page[crc] = zlib.crc32(half).to_bytes(4, "little")
        self._file.sync()

    def seal(self, sizes: tuple[int, int, int]) -> None:
        for place, size in enumerate(sizes):
            self.cells[SIZES + place] = size
        self.commit()
        self._page[_SEAL:_SIZE] = _seal_of(bytes(self._page)).to_bytes(8, "little")
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def read_bounds(path: PathLike) -> tuple[int, int]:
    """Head and tail as `MappedCounters.open` takes them, with the same checks, for whoever wants no more of a file."""
    fd, size = open_sized(path)
    try:
        if size != _SIZE:
            raise StorageCorruptedError(f"{path}: {size} bytes, it must have {_SIZE}")
        page = os.pread(fd, _SIZE, 0)
        _check_magic(page, path)
        cells = _live(page)
        if not _is_closed(lambda: os.pread(fd, _SIZE, 0), path) and _is_of_an_earlier_boot(cells):
            cells = _newest_half(page, path)
        return cells[HEAD], cells[TAIL]
    finally:
        os.close(fd)


# -- what stands in a page; `place` names it in errors -------------------------------------------------------


def _live(page: bytes | memoryview) -> memoryview:
    return memoryview(page)[_LIVE : _LIVE + 8 * _COUNT].cast("q")


def _check_magic(page: bytes | memoryview, place: object) -> None:
    if page[: len(_MAGIC)] != _MAGIC:
        raise StorageCorruptedError(f"{place}: not the header of a replay buffer")


def _is_of_an_earlier_boot(cells: Cells) -> bool:
    return cells[BOOT] not in (_boot_number(), 0)


def _is_closed(read_page: Callable[[], bytes], place: object) -> bool:
    for attempt in range(3):
        page = read_page()
        seal = int.from_bytes(page[_SEAL:], "little")
        if seal in (0, _seal_of(page)):
            return seal != 0
        if attempt < 2:
            time.sleep(0.002)  # a writer may just be opening or closing it
    raise StorageCorruptedError(f"{place}: the checksum does not match, the file was changed or damaged")


def _newest_half(page: bytes | memoryview, place: object) -> memoryview:
    found = []
    for start in _HALVES:
        half = bytes(page[start : start + _HALF.size])
        if zlib.crc32(half) == _crc_of_half(page, start):
            found.append(_HALF.unpack(half))
    if not found:
        raise StorageCorruptedError(f"{place}: neither copy of the counters matches its checksum")
    return memoryview(bytearray(struct.pack(f"<{_COUNT}q", *max(found)[1:]))).cast("q")


def _crc_of_half(page: bytes | memoryview, start: int) -> int:
    return int.from_bytes(page[start + _HALF.size : start + _HALF.size + 4], "little")


def _seal_of(page: bytes) -> int:
    return _SEAL_TAG | zlib.crc32(page[:_SEAL])


@functools.cache
def _boot_number() -> int:
    """A number that changes when the machine boots; 0 where there is none to be had, which counts as no change."""
    try:
        return zlib.crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes())
    except OSError:
        return 0
