"""What stands in the `_metadata.json` of a folder of Parquet pieces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from unienv_interface.backends.numpy import NumpyComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLeaf
from unienv_interface.space.spaces import ArraySpace, TextSpace

from ..base.files import json_field, read_json
from ..base.storage import StorageCorruptedError, UnsupportedFormatError
from ._column_storage import DEFAULT_KEY
from ._parquet_file import RowFile, column_space, infer_column, nest

METADATA = "_metadata.json"
FORMAT_VERSION = 1


def dtype_name(leaf: RowLeaf) -> str:
    return leaf.space.dtype_name if isinstance(leaf.space, ArraySpace) else "string"


def read_metadata(file: Path) -> dict[str, Any]:
    content = read_json(file, checksum=False)
    version = json_field(content, "format_version", int, file, default=0)
    if version > FORMAT_VERSION:
        raise UnsupportedFormatError(f"{file}: format version {version}, this release reads up to {FORMAT_VERSION}")
    if json_field(content, "piece_size", int, file) < 1:
        raise StorageCorruptedError(f"{file}: field 'piece_size' is 0")
    return content


def read_generations(content: dict[str, Any], file: Path) -> dict[int, int]:
    """How often each piece was written; in a folder of the reference's all have been that hold rows."""
    found = json_field(content, "generations", dict, file, default=None)
    if found is None:
        count = -(-content["num_rows"] // content["piece_size"])
        present = sum(name.endswith(".parquet") for name in os.listdir(file.parent))
        if count > present:
            raise StorageCorruptedError(f"{file}: {count} pieces, there are {present} files")
        return dict.fromkeys(range(count), 0)
    try:
        generations = {int(piece): number for piece, number in found.items()}
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
