"""Frames as they are, until they are encoded: packed rows in pieces, a folder for so many slots each.

A piece is deleted when nothing in it is needed any more, so that the raw frames take no more room than those that wait
to be encoded.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout

from ..base.files import sync_folder
from ..base.row_storage import ROW_WRONG
from ..base.storage import StorageCorruptedError
from ._checks import RowSums
from .packed import PackedStorage
from .row_memory import MappedMemory

_PIECE_BYTES, _PIECE_SLOTS = 64 * 2**20, 256
_MOST_OPEN = 8  # by a reader
_NAME = re.compile(r"raw-([0-9]+)\Z")


class RawFrames:
    """The pieces in a folder, each of as many slots; `bound` is how many bytes of frames there should be at most."""

    def __init__(self, space: Space, folder: Path, capacity: int | None, bound: int, *, writable: bool) -> None:
        self.layout, self._folder, self._writable = RowLayout(space), folder, writable
        codec = self.layout.leaves[0].codec
        self.dtype, self.shape = codec.dtype.base, codec.shape
        self.piece_slots = min(_PIECE_SLOTS, max(1, min(_PIECE_BYTES, bound // 8) // self.layout.nbytes))
        if capacity is not None:
            self.piece_slots = min(self.piece_slots, capacity)
        self._open: dict[int, tuple[PackedStorage, tuple[int, int]]] = {}  # with what tells one folder from the next
        if writable:
            for path in folder.glob(".raw-*"):
                shutil.rmtree(path, ignore_errors=True)

    def numbers(self) -> list[int]:
        """The numbers of the pieces that there are."""
        return sorted(int(match[1]) for name in os.listdir(self._folder) if (match := _NAME.match(name)))

    @property
    def nbytes(self) -> int:
        """The bytes of the frames that all pieces have room for."""
        return len(self.numbers()) * self.piece_slots * self.layout.nbytes

    def bounds(self, number: int) -> tuple[int, int]:
        """The slots [start, stop) of a piece."""
        return number * self.piece_slots, (number + 1) * self.piece_slots

    def has(self, number: int) -> bool:
        return self._path(number).exists()

    def _path(self, number: int) -> Path:
        return self._folder / f"raw-{number}"

    def make(self, number: int) -> None:
        """Have a piece to write to, all of its room reserved. It appears whole or not at all."""
        temporary, path = self._folder / f".raw-{number}-{time.monotonic_ns()}", self._path(number)
        temporary.mkdir()
        try:
            memory = MappedMemory.create(self.layout, None, temporary, self.piece_slots)
            sums = RowSums.create(memory, temporary)
            memory.reserve(0, self.piece_slots)
            sums.reserve(0, self.piece_slots)
            memory.populate(0, self.piece_slots)
            sums.populate(0, self.piece_slots)
            temporary.rename(path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)  # on a full disk its room is wanted
            raise
        piece = PackedStorage(self.layout.space, memory, capacity=self.piece_slots, path=path, sums=sums)
        self._open[number] = (piece, _mark_of(path))

    def piece(self, number: int) -> PackedStorage | None:
        """The piece of a number; None if there is none."""
        known, path = self._open.get(number), self._path(number)
        try:
            mark = _mark_of(path)
            if known is not None and known[1] == mark:
                return known[0]
            loaded = PackedStorage.load_from(
                path, self.layout.space, capacity=self.piece_slots, read_only=not self._writable
            )
        except (FileNotFoundError, StorageCorruptedError):
            if path.exists():
                raise
            return None  # it was deleted meanwhile
        self._open[number] = (loaded, mark)
        if not self._writable:  # a piece that stays open takes room on the disk after it is deleted
            while len(self._open) > _MOST_OPEN:
                self._open.pop(next(iter(self._open)), None)
        return loaded

    def parts(self, slots: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """The numbers of the pieces of slots, each with the places among these and the slots within the piece."""
        numbers = slots // self.piece_slots
        pieces = []
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            pieces.append((number, places, slots[places] - number * self.piece_slots))
        return pieces

    def write(self, slots: int | slice, encoded: Any, number: int) -> None:
        """Write an encoded frame, or a batch to a slice of slots, of which `number` is the first. The pieces exist."""
        if isinstance(slots, int):
            which, within = divmod(slots, self.piece_slots)
            piece = self._wanted(which)
            piece.reserve(within, within + 1)
            piece.write(within, encoded, number)
            return
        for which in range(slots.start // self.piece_slots, -(-slots.stop // self.piece_slots)):
            begin, end = self.bounds(which)
            start, stop = max(begin, slots.start), min(end, slots.stop)
            part = slice(start - slots.start, stop - slots.start)
            piece = self._wanted(which)
            piece.reserve(start - begin, stop - begin)
            piece.write(slice(start - begin, stop - begin), [leaf[part] for leaf in encoded], number + part.start)

    def write_raw_rows(self, slots: np.ndarray, raw: Any, numbers: np.ndarray) -> None:
        """Write the bytes of frames, one after the other, to any slots. The pieces exist."""
        frames = np.frombuffer(raw, self.dtype).reshape(len(slots), *self.shape)
        for which, places, within in self.parts(slots):
            piece = self._wanted(which)
            piece.reserve_at(within)
            piece.write_at(within, [frames[places]], numbers[places])

    def _wanted(self, number: int) -> PackedStorage:
        piece = self.piece(number)
        if piece is None:
            raise StorageCorruptedError(f"{self._path(number)}: it is gone, and was to be written")
        return piece

    def read(self, slots: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Read frames into `out`; which of the slots are in no piece."""
        is_missing = np.zeros(len(slots), bool)
        for number, places, within in self.parts(slots):
            piece = self.piece(number)
            if piece is None:
                is_missing[places] = True
            else:
                out[places] = piece.rows.columns[0][within]
        return is_missing

    def check(self, slots: np.ndarray, numbers: np.ndarray, *, numbers_only: bool) -> np.ndarray:
        """Of each slot whether its row is whole, as of `SpaceStorage.check_rows`; one in no piece is not."""
        states = np.full(len(slots), ROW_WRONG, np.int8)
        for number, places, within in self.parts(slots):
            piece = self.piece(number)
            if piece is not None:
                states[places] = piece.check_rows(within, numbers[places], numbers_only=numbers_only)
        return states

    def drop(self, number: int) -> Path | None:
        """Take a piece away; the folder to be deleted. What was read of it stays valid."""
        gone = self._folder / f".raw-{number}-{time.monotonic_ns()}"
        try:
            self._path(number).rename(gone)
        except FileNotFoundError:
            return None
        self._open.pop(number, None)
        return gone

    def flush(self) -> None:
        """Make all pieces durable."""
        for number in self.numbers():
            piece = self.piece(number)
            if piece is None:
                continue
            try:
                piece.flush()
                sync_folder(self._path(number))
            except OSError:
                if self.has(number):
                    raise
                # else its frames were encoded meanwhile, and are durable
        sync_folder(self._folder)

    def forget(self, head: int) -> bool:
        """Have no checksum for frames of samples with numbers from `head` on; whether there was one."""
        has_forgotten = False
        for number in self.numbers():
            piece = self.piece(number)
            if piece is not None and piece.forget_rows(head):
                has_forgotten = True
        return has_forgotten

    def close(self) -> None:
        pieces, self._open = [piece for piece, _ in self._open.values()], {}
        for piece in pieces:
            piece.close()


def _mark_of(folder: Path) -> tuple[int, int]:
    """What tells a folder from one that was in its place before."""
    status = folder.stat()
    return status.st_ino, status.st_mtime_ns
