"""Parquet files as a storage uses them: columns of rows written to one, and read back if they are what is wanted.

Also the `_metadata.json` of a folder of such files, one file for each piece of a storage.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from unienv_interface.backends.numpy import NumpyComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLeaf
from unienv_interface.space.spaces import ArraySpace, BinarySpace, BoxSpace, DictSpace, TextSpace
from unienv_interface.utils.optional import need

from ..base.files import format_version, json_field, open_regular, read_json
from ..base.storage import StorageCorruptedError
from ..base.thrift import ThriftReader
from ._column_storage import DEFAULT_KEY, text_column

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = need("pyarrow", extra="parquet")
    pq = need("pyarrow.parquet", extra="parquet")

Compression = str | Mapping[str, str | None] | None

METADATA = "_metadata.json"
FORMAT_VERSION = 1

_PIECE, _GENERATION = b"unienv_piece", b"unienv_generation"
_MOST_FOOTER_BYTES = 64 * 2**20
#: A column of more than this, in a row group or in a piece, is not read: pages of equal values take hardly any bytes.
MOST_COLUMN_BYTES = 2**30
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12, "BYTE_ARRAY": 16}
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{16,}")


# -- writing -----------------------------------------------------------------------------------------------


def write_rows(
    file: BinaryIO,
    names: Sequence[str],
    leaves: Sequence[RowLeaf],
    columns: Sequence[np.ndarray],
    compression: Compression,
    stamp: tuple[int, int],
) -> None:
    """Write columns as one row group with checksums. The stamp says which piece of a storage, and which version."""
    arrays = [_to_arrow(leaf, column) for leaf, column in zip(leaves, columns, strict=True)]
    table = pa.table(dict(zip(names, arrays, strict=True)))
    table = table.replace_schema_metadata({_PIECE: b"%d" % stamp[0], _GENERATION: b"%d" % stamp[1]})
    texts = [name for name, leaf in zip(names, leaves, strict=True) if not isinstance(leaf.space, ArraySpace)]
    pq.write_table(
        table,
        file,
        row_group_size=max(1, len(table)),
        compression=_physical_compression(names, compression),
        use_dictionary=texts or False,
        write_page_checksum=True,
    )


def check_compression(names: Sequence[str], compression: Any) -> None:
    """A ValueError unless these are codecs that Arrow has, for columns that there are."""
    if isinstance(compression, Mapping):
        unknown = sorted(set(compression) - set(names))
        if unknown:
            raise ValueError(f"compression of {unknown[0]!r}, the columns are {list(names)}")
    for codec in compression.values() if isinstance(compression, Mapping) else [compression]:
        if codec is not None and not (isinstance(codec, str) and _is_codec(codec)):
            raise ValueError(f"compression {codec!r} is not one that Arrow has, such as 'snappy', 'gzip' or 'zstd'")


def _is_codec(name: str) -> bool:
    try:
        return name.lower() == "none" or bool(pa.Codec.is_available(name.lower()))
    except ValueError:
        return False


def _physical_compression(names: Sequence[str], compression: Compression) -> str | dict[str, str]:
    if not isinstance(compression, Mapping):
        return compression or "NONE"
    codecs = {name: compression.get(name) or "NONE" for name in names}
    # a column of lists has its values one level further down
    return {path: codec for name, codec in codecs.items() for path in (name, f"{name}.list.element")}


def _to_arrow(leaf: RowLeaf, column: np.ndarray) -> Any:
    if not isinstance(leaf.space, ArraySpace):
        texts = pa.array(leaf.codec.decode(column, None).reshape(-1).tolist(), pa.string())
        return texts if not leaf.codec.shape else pa.FixedSizeListArray.from_arrays(texts, leaf.codec.shape[0])
    row_nbytes, values = leaf.codec.dtype.itemsize, np.ascontiguousarray(column).reshape(-1)
    if leaf.placement == "block":  # an image: nobody asks for one of its bytes, and lists of bytes are slow
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(row_nbytes), len(column), [None, pa.py_buffer(values)])
    elements = pa.array(_real(values))
    if leaf.codec.shape or values.dtype.kind == "c":
        return pa.FixedSizeListArray.from_arrays(elements, _elements(leaf))
    return elements


def _real(values: np.ndarray) -> np.ndarray:
    """Complex numbers as two real ones each; Parquet has no others."""
    return values.view(values.real.dtype) if values.dtype.kind == "c" else values


def _elements(leaf: RowLeaf) -> int:
    return int(np.prod(leaf.codec.shape)) * (2 if leaf.codec.dtype.base.kind == "c" else 1)


# -- reading -----------------------------------------------------------------------------------------------


class RowFile:
    """An open file of rows. Errors name it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        fd = open_regular(path, writable=False)
        try:
            self._footer = _read_footer(fd, path)
        finally:
            os.close(fd)
        with self._errors():
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            self._metadata = self._file.metadata
            texts = [column.path for column in self._columns() if column.physical_type == "BYTE_ARRAY"]
            if texts:  # those that are equal are read once, however many rows have them
                self._file.close()
                options: Any = {"metadata": self._metadata, "read_dictionary": texts}
                self._file = pq.ParquetFile(path, page_checksum_verification=True, **options)
        self.length: int = self._metadata.num_rows
        #: How many rows each row group has.
        self.groups = [self._metadata.row_group(group).num_rows for group in range(self._metadata.num_row_groups)]
        if sum(self.groups) != self.length:
            raise StorageCorruptedError(f"{path}: row groups of {sum(self.groups)} rows, the file says {self.length}")

    def _columns(self) -> Iterator[Any]:
        schema = self._metadata.schema
        return (schema.column(index) for index in range(len(schema)))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise StorageCorruptedError(f"{self.path}: {error}") from error

    def __enter__(self) -> RowFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

    @property
    def stamp(self) -> tuple[int, int] | None:
        """Which piece of a storage it is, and which version; None in a file that somebody else wrote."""
        metadata = self._metadata.metadata or {}
        try:
            return int(metadata[_PIECE]), int(metadata[_GENERATION])
        except (KeyError, ValueError):
            return None

    def column(self, name: str, leaf: RowLeaf, group: int | None = None) -> np.ndarray:
        """A column, of all rows or of a row group, not to be written to; it is what the leaf wants, or an error."""
        groups = list(range(len(self.groups))) if group is None else [group]
        rows = sum(self.groups[each] for each in groups)
        with self._errors():
            self._check_size(name, groups, rows * leaf.codec.dtype.itemsize)
            column = self._file.read_row_groups(groups, columns=[name], use_threads=False).column(name)
            if len(column) != rows:
                raise ValueError(f"column {name!r} has {len(column)} rows, the file says {rows}")
            return _from_arrow(leaf, _whole(column))

    def _check_size(self, name: str, groups: Sequence[int], nbytes: int = 0) -> None:
        """A ValueError if the values of a column, or what is made of them, take more memory than any should."""
        in_file = 0
        for index, column in enumerate(self._columns()):
            if column.path == name or column.path.startswith(f"{name}."):
                width = _WIDTHS.get(column.physical_type) or column.length
                for group in groups:
                    values, uncompressed = self._chunk_sizes[group][index]
                    in_file += max(values * width, uncompressed)
        if max(nbytes, in_file) > MOST_COLUMN_BYTES:
            raise ValueError(
                f"column {name!r} says that it has {max(nbytes, in_file)} bytes in one row group or piece, at most "
                f"{MOST_COLUMN_BYTES} are read; if that is so, write it anew with fewer rows in each"
            )

    @functools.cached_property
    def _chunk_sizes(self) -> list[list[tuple[int, int]]]:
        """By row group and column, how many values and bytes a chunk says that it has.

        PyArrow knows, too, and ends the process when it is asked for those of some damaged footers.
        """
        try:
            groups = ThriftReader(self._footer).struct()[4][1][1]
            chunks = [[column[3][1] for column in group[1][1][1]] for group in groups]
            sizes = [[(int(chunk[5][1]), int(chunk[6][1])) for chunk in group] for group in chunks]
        except (IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError("the footer cannot be read") from error
        if [len(group) for group in sizes] != [len(self._metadata.schema)] * len(self.groups):
            raise ValueError("a row group does not have all columns")
        return sizes

    @property
    def schema(self) -> Any:
        with self._errors():
            return self._file.schema_arrow

    def arrays(self, name: str) -> Iterator[Any]:
        """A column of any type, as Arrow has it: an array for each row group, and an empty one if there is none."""
        with self._errors():
            for group in range(len(self.groups)):
                self._check_size(name, [group])
                yield _whole(self._file.read_row_group(group, columns=[name], use_threads=False).column(name))
            if not self.groups:
                yield self._file.schema_arrow.empty_table().column(name).combine_chunks()


def _whole(column: Any) -> Any:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    array.validate(full=True)
    if array.null_count:
        raise ValueError(f"{array.null_count} values are missing")
    return array


def _read_footer(fd: int, path: Path) -> bytes:
    """The footer of a file; a StorageCorruptedError if it names an extension type, for which Arrow would run code."""
    size = os.fstat(fd).st_size
    tail = os.pread(fd, 8, max(0, size - 8))
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or not 0 < length <= min(size - 12, _MOST_FOOTER_BYTES):
        raise StorageCorruptedError(f"{path}: not a whole Parquet file")
    footer = os.pread(fd, length, size - 8 - length)
    for match in _BASE64.finditer(footer):  # the schema as Arrow wrote it down; where in the run it begins is not known
        for start in range(4):
            text = match[0][start:]
            if b"ARROW:extension" in base64.b64decode(text[: len(text) // 4 * 4]):
                raise StorageCorruptedError(f"{path}: it has columns of an extension type, which are not read")
    return footer


def _from_arrow(leaf: RowLeaf, array: Any) -> np.ndarray:
    types, lead = pa.types, (len(array),)
    if not isinstance(leaf.space, ArraySpace):
        flat = array.flatten() if types.is_fixed_size_list(array.type) else array
        texts = np.empty(lead + leaf.codec.shape, object)
        texts.reshape(-1)[:] = _texts(flat)
        return text_column(leaf, leaf.codec.encode(texts, lead), lead)
    dtype, shape = leaf.codec.dtype.base, lead + leaf.codec.shape
    if types.is_fixed_size_binary(array.type):
        if array.type.byte_width != leaf.codec.dtype.itemsize:
            raise ValueError(f"{array.type.byte_width} bytes a row, wanted {leaf.codec.dtype.itemsize}")
        start, buffer = array.offset * array.type.byte_width, array.buffers()[1]
        return np.frombuffer(buffer, np.uint8, len(array) * array.type.byte_width, start).view(dtype).reshape(shape)
    values = _values(array).to_numpy(zero_copy_only=False)
    if dtype.kind == "c" and values.dtype == _real(np.zeros(0, dtype)).dtype:
        values = np.ascontiguousarray(values).view(dtype)
    if values.dtype != dtype or values.size != np.prod(shape, dtype=object):
        raise ValueError(
            f"column {leaf.name!r} has {len(values)} values of {values.dtype}, the space wants {dtype} of shape {shape}"
        )
    return values.reshape(shape)


def _texts(array: Any) -> Any:
    """The texts of a column, those that are equal once in memory."""
    if not isinstance(array, pa.DictionaryArray):
        return array.to_pylist()
    known = np.array([*array.dictionary.to_pylist(), None], object)
    return known[array.indices.to_numpy(zero_copy_only=False)]


def _values(array: Any) -> Any:
    """The values of a column of lists, or of lists of lists, all of one length; of other columns they themselves."""
    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        array = array.flatten()
        if array.null_count:
            raise ValueError(f"{array.null_count} values are missing")
    return array


# -- spaces ------------------------------------------------------------------------------------------------


def infer_column(file: RowFile, name: str) -> Space:
    """The space of a column that somebody else wrote; on NumPy, without bounds."""
    kinds = {_infer_array(array, f"{file.path}: column {name!r}") for array in file.arrays(name)}
    texts = [shape[0] for dtype, shape in kinds if dtype == "text"]
    if texts:
        return TextSpace(NumpyComputeBackend, max(texts) or 1)
    if len(kinds) != 1:
        shapes = sorted(str(list(shape)) for _, shape in kinds)
        raise ValueError(f"{file.path}: column {name!r} has lists of lengths {', '.join(shapes[:10])}, wanted one")
    dtype, shape = kinds.pop()
    return column_space(dtype, shape, f"{file.path}: column {name!r}")


def _infer_array(array: Any, place: str) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape of the values of an array; of texts "text" and the length of the longest."""
    kind = array.type.value_type if isinstance(array, pa.DictionaryArray) else array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = array.dictionary if isinstance(array, pa.DictionaryArray) else array
        return "text", (max(map(len, texts.to_pylist()), default=0),)
    shape: list[int] = []
    while hasattr(array.type, "value_type") and not pa.types.is_dictionary(array.type):
        lengths = set(array.value_lengths().to_pylist())
        if len(lengths) != 1:
            raise ValueError(f"{place} has lists of lengths {sorted(lengths)[:10]}, wanted one")
        shape.append(lengths.pop())
        array = array.flatten()
    return str(array.to_numpy(zero_copy_only=False).dtype), tuple(shape)


def column_space(dtype: str, shape: Sequence[int], place: str) -> Space:
    """The space of arrays of a dtype and a shape, without bounds."""
    try:
        if dtype == "bool":
            return BinarySpace(NumpyComputeBackend, tuple(shape))
        return BoxSpace(NumpyComputeBackend, -np.inf, np.inf, dtype, shape=tuple(shape))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{place}: no space for arrays of {dtype!r} and shape {shape}, {error}") from error


def nest(columns: Mapping[str, Space], default_key: str) -> Space:
    """The space of samples with these columns, whose names are paths ("obs/rgb")."""
    if list(columns) == [default_key]:
        return columns[default_key]
    root: dict[str, Any] = {}
    for name, space in columns.items():
        *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in name.split("/"))
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = space
    return DictSpace(NumpyComputeBackend, root)


# -- the metadata of a folder of pieces --------------------------------------------------------------------


def dtype_name(leaf: RowLeaf) -> str:
    return leaf.space.dtype_name if isinstance(leaf.space, ArraySpace) else "string"


def read_metadata(file: Path) -> dict[str, Any]:
    content = read_json(file, checksum=False)
    format_version(content, file, FORMAT_VERSION, default=0)
    if json_field(content, "piece_size", int, file) < 1:
        raise StorageCorruptedError(f"{file}: field 'piece_size' is 0")
    return content


def read_generations(content: dict[str, Any], file: Path) -> dict[int, int]:
    """How often each piece was written; in a folder of the reference's all have been that hold rows."""
    stored = json_field(content, "generations", dict, file, default=None)
    if stored is None:
        count = -(-content["num_rows"] // content["piece_size"])
        present = sum(name.endswith(".parquet") for name in os.listdir(file.parent))
        if count > present:
            raise StorageCorruptedError(f"{file}: {count} pieces, there are {present} files")
        return dict.fromkeys(range(count), 0)
    try:
        generations = {int(piece): number for piece, number in stored.items()}
    except ValueError as error:
        raise StorageCorruptedError(f"{file}: field 'generations': {error}") from None
    if any(type(number) is not int or piece < 0 for piece, number in generations.items()):
        raise StorageCorruptedError(f"{file}: field 'generations' wants numbers by piece")
    return generations


def described_space(content: dict[str, Any], folder: Path) -> Space:
    """The space of samples that a storage's metadata describes; on NumPy, without bounds."""
    file = folder / METADATA
    shapes, dtypes = (json_field(content, name, dict, file) for name in ("column_shapes", "column_dtypes"))
    lengths = json_field(content, "text_lengths", dict, file, default={})
    columns: dict[str, Space] = {}
    for name, shape in shapes.items():
        place, dtype = f"{file}: column {name!r}", str(dtypes.get(name))
        if dtype not in ("string", "str", "text"):
            columns[name] = column_space(dtype, shape, place)
        elif name in lengths:
            columns[name] = TextSpace(NumpyComputeBackend, int(lengths[name]))
        else:
            columns[name] = _longest_text(content, folder, name)
    return nest(columns, DEFAULT_KEY)


def _longest_text(content: dict[str, Any], folder: Path, name: str) -> Space:
    spaces: list[Any] = []
    for piece in read_generations(content, folder / METADATA):
        with RowFile(folder / f"part-{piece:06d}.parquet") as file:
            spaces.append(infer_column(file, name))
    if not spaces or not all(isinstance(space, TextSpace) for space in spaces):
        raise ValueError(f"{folder / METADATA}: column {name!r} has no texts to tell their length from")
    return max(spaces, key=lambda space: space.max_length)
