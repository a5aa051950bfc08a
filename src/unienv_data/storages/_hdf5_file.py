"""HDF5 files of a storage: their datasets and options, and the checks that nothing leads out of the file."""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unienv_interface.backends.dtypes import FOREIGN_FLOATING
from unienv_interface.backends.numpy import NumpyComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout, RowLeaf
from unienv_interface.space.spaces import ArraySpace, BinarySpace, BoxSpace, DictSpace, TextSpace
from unienv_interface.utils.optional import need

from ..base.files import open_regular
from ..base.storage import StorageCorruptedError, UnsupportedFormatError
from ._column_storage import DEFAULT_KEY, element_dtype, leaf_names

if TYPE_CHECKING:
    import h5py
else:
    h5py = need("h5py", extra="hdf5")

FORMAT_VERSION = 1
_VERSION, _UNCLEAN, _DTYPE = "unienv_format_version", "unienv_unclean", "unienv_dtype"

# HDF5 may have so much of a dataset in memory, besides a chunk, before it writes it to the file.
CACHE_BYTES = 2**20
# Object headers and indices of chunks of HDF5 1.10 carry checksums. Its superblock refuses what a killed writer has
# left, so a file begins with that of 1.8, which carries a checksum too.
_OPTIONS: dict[str, Any] = {"libver": ("v110", "latest"), "rdcc_nbytes": CACHE_BYTES}
_OPTIONS_OF_NEW: dict[str, Any] = {**_OPTIONS, "libver": ("v108", "latest")}
#: More than this is never taken into memory for one chunk, or for one value that is longer than its file may hold.
MOST_CHUNK_BYTES = 2**28
_MOST_RATIO = 1032  # of deflate, which compresses best of the known filters
# deflate, shuffle, fletcher32, szip, nbit, scaleoffset, lzf: the filters that no plugin has to be loaded for
_KNOWN_FILTERS = {1, 2, 3, 4, 5, 6, 32000}
_CHUNK_BYTES = 2**16
_CHUNK_ROWS = 1024
_NUMBERS = itertools.count()


# -- files -------------------------------------------------------------------------------------------------


def create_file(path: Path | None) -> h5py.File:
    """A new file; with None for a path, one in memory."""
    if path is None:
        # HDF5 knows files by their names, these too
        file = h5py.File(f"in memory {next(_NUMBERS)}", "w", driver="core", backing_store=False, **_OPTIONS)
    else:
        h5py.File(path, "x", **_OPTIONS_OF_NEW).close()
        file = h5py.File(path, "r+", **_OPTIONS)
    file.attrs[_VERSION] = np.int64(FORMAT_VERSION)
    return file


def open_file(path: Path, *, writable: bool) -> h5py.File:
    """A file that is there; a StorageCorruptedError unless it is one of HDF5's."""
    os.close(open_regular(path, writable=writable))  # a plain file, and no link
    try:
        file = h5py.File(path, "r+" if writable else "r", **_OPTIONS)
    except PermissionError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        if isinstance(error, BlockingIOError) or "already open" in str(error):
            what = f"the file is in use, and HDF5 has one writer or any number of readers ({error})"
            raise BlockingIOError(errno.EAGAIN, what, str(path)) from error
        raise StorageCorruptedError(f"{path}: not an HDF5 file that can be read, {error}") from error
    try:
        with named_errors(str(path)):
            version = file.attrs.get(_VERSION, 0)
    except BaseException:
        file.close()
        raise
    if not isinstance(version, (np.integer, int)) or version > FORMAT_VERSION:
        file.close()
        raise UnsupportedFormatError(f"{path}: format version {version}, this release reads up to {FORMAT_VERSION}")
    return file


@contextlib.contextmanager
def named_errors(place: str, name: str | None = None) -> Iterator[None]:
    """HDF5's errors name no file, nor a dataset: those of the system get the path, the others are damage to it."""
    try:
        yield
    except StorageCorruptedError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError) as error:
        number = getattr(error, "errno", None) or _errno_in(str(error))
        if number not in (None, errno.EINVAL):  # places that no file has are damage, too
            raise OSError(number, f"{os.strerror(number)}: {error}", place) from error
        where = place if name is None else f"{place}: {name!r}"
        raise StorageCorruptedError(f"{where}: HDF5 cannot do it, the file may be damaged: {error}") from error


def _errno_in(text: str) -> int | None:
    """The number of the system's error that a message of HDF5's carries."""
    match = re.search(r"errno = (\d+)", text)
    return int(match[1]) if match and int(match[1]) in errno.errorcode else None


def is_unclean(file: h5py.File) -> bool:
    """Whether something was written since the file was last flushed by us."""
    with named_errors(str(file.filename)):
        return bool(file.attrs.get(_UNCLEAN, 0))


def mark_unclean(file: h5py.File, unclean: bool) -> None:
    """Say so in the file. What this process has handed to HDF5 is in the file when this returns."""
    file.flush()  # everything else is there before the mark goes, and the mark before everything else
    file.attrs[_UNCLEAN] = np.uint8(unclean)
    file.flush()


# -- datasets ----------------------------------------------------------------------------------------------


def dataset_names(layout: RowLayout) -> list[str]:
    """The paths of the leaves' datasets; a ValueError for a key that HDF5 cannot name."""
    names = leaf_names(layout)
    for name in names:
        if {"", ".", ".."} & set(name.split("/")):
            raise ValueError(f"{name!r}: HDF5 has no name for this key, rename it or use PackedStorage")
    return names


def create_dataset(
    root: h5py.Group, name: str, leaf: RowLeaf, capacity: int | None, filters: dict[str, Any], chunks: Any
) -> None:
    """A dataset for the values of a leaf, in chunks with checksums."""
    dtype, row = stored_dtype(leaf), leaf.codec.shape
    shape, options = (capacity or 0, *row), {key: value for key, value in filters.items() if value is not None}
    if 0 in row:
        options = {"chunks": True}  # nothing to compress
    else:
        options.update(chunks=_chunk_shape(chunks, shape, dtype.itemsize), fletcher32=True)
        _check_chunk(name, options["chunks"], dtype.itemsize)
    dataset = root.create_dataset(name, shape, dtype, maxshape=(capacity, *row), **options)
    if isinstance(leaf.space, ArraySpace) and leaf.space.dtype_name in FOREIGN_FLOATING:
        dataset.attrs[_DTYPE] = leaf.space.dtype_name  # kept bit by bit, since HDF5 does not know it


def _check_chunk(name: str, chunk: tuple[int, ...], itemsize: int) -> None:
    """A ValueError for chunks that would not be read again."""
    nbytes = math.prod(chunk) * itemsize
    if nbytes > MOST_CHUNK_BYTES:
        raise ValueError(
            f"{name!r}: chunks of shape {chunk} have {nbytes} bytes, at most {MOST_CHUNK_BYTES} are read: give fewer "
            f"rows in one as `chunks`, or use PackedStorage"
        )


def rows_at_once(dataset: h5py.Dataset) -> int:
    """How many rows may be read in one go: texts of any length may all be as long as the file."""
    text = h5py.check_string_dtype(dataset.dtype)
    is_bounded = text is None or text.length is not None
    return sys.maxsize if is_bounded else max(1, MOST_CHUNK_BYTES // dataset.file.id.get_filesize())


def rows_of_chunk(dataset: h5py.Dataset) -> int | None:
    """The rows in a chunk, which are checked and read together; None without chunks, or for texts of any length."""
    return dataset.chunks[0] if dataset.chunks and rows_at_once(dataset) == sys.maxsize else None


def room_in_memory(datasets: list[h5py.Dataset]) -> int:
    """The most bytes that HDF5 may still have to write for datasets in chunks, with the tables of these."""
    chunks = [int(np.prod(dataset.chunks)) * dataset.dtype.itemsize for dataset in datasets if dataset.chunks]
    return 3 * sum(chunks) + (len(chunks) + 1) * CACHE_BYTES if chunks else 0


def stored_dtype(leaf: RowLeaf) -> np.dtype:
    """The dtype of a leaf's dataset."""
    if isinstance(leaf.space, ArraySpace):
        return element_dtype(leaf)
    text: Any = leaf.space if isinstance(leaf.space, TextSpace) else leaf.space.single_space  # type: ignore[attr-defined]
    width = 1 if text.charset is not None and all(char.isascii() for char in text.charset) else 4
    return h5py.string_dtype("utf-8", max(1, width * text.max_length))


def absent_rows(dataset: h5py.Dataset) -> list[tuple[int, int]]:
    """The rows [start, stop) of chunks that the file does not have; HDF5 reads them as zeros."""
    if dataset.chunks is None or not hasattr(dataset.id, "chunk_iter"):  # not so with HDF5 before 1.12.3
        return []
    wanted = int(np.prod([-(-size // step) for size, step in zip(dataset.shape[1:], dataset.chunks[1:], strict=True)]))
    present: Counter[int] = Counter()

    def count(chunk: Any) -> None:
        present[chunk.chunk_offset[0]] += 1

    with named_errors(str(dataset.file.filename), dataset.name):
        dataset.id.chunk_iter(count)
    length, step = dataset.shape[0], dataset.chunks[0]
    starts = (start for start in range(0, length, step) if present[start] < wanted)
    return [(start, min(start + step, length)) for start in starts]


def _chunk_shape(chunks: Any, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    rows, *row = shape
    if isinstance(chunks, tuple):
        if len(chunks) != len(shape):
            raise ValueError(f"chunks are {chunks} for a dataset of {len(shape)} axes; give the number of rows instead")
        return chunks
    if chunks is None or chunks is True:
        fitting = max(1, _CHUNK_BYTES // max(1, int(np.prod(row)) * itemsize))
        chunks = min(fitting, rows or _CHUNK_ROWS)
    if not isinstance(chunks, int) or chunks < 1:
        raise ValueError(f"chunks are {chunks!r}, wanted the number of rows in one, a shape, True or None")
    return (min(chunks, rows) if rows else chunks, *row)


def leaf_dataset(root: h5py.Group, name: str, leaf: RowLeaf, place: str) -> h5py.Dataset:
    """The dataset of a leaf, once it is known to be what the space wants; a StorageCorruptedError otherwise."""
    node = root
    with named_errors(place, name):
        for part in name.split("/"):
            node = _child(node, part, place)
    if not isinstance(node, h5py.Dataset):
        raise StorageCorruptedError(f"{place}: {name!r} is a group, wanted a dataset")
    check_dataset(node, place)
    dtype, wanted = node.dtype, stored_dtype(leaf)
    fits = h5py.check_string_dtype(dtype) is not None if wanted.kind == "S" else dtype == wanted
    if not fits or node.shape[1:] != leaf.codec.shape:
        raise StorageCorruptedError(
            f"{place}: dataset {name!r} has {dtype} of shape {node.shape}, the space wants {wanted} with samples of "
            f"shape {leaf.codec.shape}"
        )
    return node


def _child(group: Any, key: str, place: str) -> Any:
    """What lies in a group under a key. Links are not followed: they may lead out of the file."""
    link = group.get(key, getlink=True) if isinstance(group, h5py.Group) else None
    if not isinstance(link, h5py.HardLink):
        what = "is missing" if link is None else f"is a {type(link).__name__}, which is not followed"
        raise StorageCorruptedError(f"{place}: {key!r} {what}")
    try:
        return group[key]
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        raise StorageCorruptedError(f"{place}: {key!r} cannot be read, {error}") from error


def check_dataset(dataset: h5py.Dataset, place: str) -> None:
    """A StorageCorruptedError if a dataset has its data elsewhere, or needs more than it may to be read.

    That is a filter that would have to be loaded, or memory for more than the file can hold.
    """
    with named_errors(place, dataset.name):
        options = dataset.id.get_create_plist()
        filters = {options.get_filter(number)[0] for number in range(options.get_nfilters())}
        is_elsewhere = dataset.is_virtual or (
            options.get_layout() != h5py.h5d.VIRTUAL and options.get_external_count() > 0
        )
        itemsize, shape, chunk = dataset.dtype.itemsize, dataset.shape, dataset.chunks
        most = max(MOST_CHUNK_BYTES, _MOST_RATIO * dataset.file.id.get_filesize())
    if is_elsewhere:
        raise StorageCorruptedError(f"{place}: dataset {dataset.name!r} has its data in other files")
    if filters - _KNOWN_FILTERS:
        unknown = sorted(filters - _KNOWN_FILTERS)
        raise StorageCorruptedError(
            f"{place}: dataset {dataset.name!r} needs the filters {unknown}, which are not known"
        )
    if chunk is not None and math.prod(chunk) * itemsize > MOST_CHUNK_BYTES:
        raise StorageCorruptedError(
            f"{place}: dataset {dataset.name!r} has chunks of {math.prod(chunk) * itemsize} bytes, at most "
            f"{MOST_CHUNK_BYTES} are read"
        )
    if shape is not None and shape[:1] != (0,) and math.prod(shape[1:]) * itemsize > most:
        raise StorageCorruptedError(
            f"{place}: dataset {dataset.name!r} has samples of {math.prod(shape[1:]) * itemsize} bytes, which the file "
            f"cannot hold"
        )


# -- files that somebody else wrote ------------------------------------------------------------------------


def every_dataset(root: h5py.Group, place: str, seen: set[Any] | None = None) -> Iterator[h5py.Dataset]:
    """All datasets of a group and of the groups in it, checked."""
    seen = set() if seen is None else seen
    with named_errors(place):
        keys, seen_here = list(root), h5py.h5o.get_info(root.id).addr
    if seen_here in seen:
        raise StorageCorruptedError(f"{place}: group {root.name!r} is in the file more than once")
    seen.add(seen_here)
    for key in keys:
        node = _child(root, key, place)
        if isinstance(node, h5py.Group):
            yield from every_dataset(node, place, seen)
        elif isinstance(node, h5py.Dataset):
            check_dataset(node, place)
            yield node


def infer_space(root: h5py.Group, place: str) -> tuple[int, Space]:
    """The number of samples in a group of datasets, and the space of one; on NumPy, without bounds."""
    with named_errors(place):
        shapes = {dataset.name: dataset.shape for dataset in every_dataset(root, place)}
    if not all(shapes.values()) or len({shape[0] for shape in shapes.values()}) != 1:
        raise ValueError(f"{place}: datasets of one length are wanted, found shapes {shapes or 'of none'}")
    whole = set(root) == {DEFAULT_KEY} and isinstance(root[DEFAULT_KEY], h5py.Dataset)
    return next(iter(shapes.values()))[0], _infer(root[DEFAULT_KEY] if whole else root, place)


def _infer(node: Any, place: str) -> Space:
    backend = NumpyComputeBackend
    if isinstance(node, h5py.Group):
        return DictSpace(backend, {key: _infer(child, place) for key, child in node.items()})
    row, dtype = node.shape[1:], node.dtype
    text = h5py.check_string_dtype(dtype)
    if text is not None and not row:
        longest = _longest_text(node, place) if text.length is None else text.length
        return TextSpace(backend, max(1, longest))
    if dtype.kind == "b":
        return BinarySpace(backend, row)
    name = node.attrs.get(_DTYPE, dtype.newbyteorder("=").name)
    if dtype.kind not in "iufc" or not isinstance(name, str):
        raise ValueError(f"{place}: dataset {node.name!r} of dtype {dtype} and shape {node.shape} has no space")
    return BoxSpace(backend, -np.inf, np.inf, name, shape=row)


def _longest_text(dataset: h5py.Dataset, place: str) -> int:
    step, longest = rows_at_once(dataset), 0
    with named_errors(place, dataset.name):
        for start in range(0, len(dataset), step):
            longest = max(longest, *map(len, dataset.asstr()[start : start + step]))
    return longest
