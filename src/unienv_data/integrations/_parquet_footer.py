"""Recovery of unfinished Parquet files, which have pages but no footer with their positions.

The pages are parsed from the beginning of the file, and a new footer is made from the footer of a table with the same
columns.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.utils.optional import need

from ..base.thrift import I64, LIST, STRUCT, Fields, ThriftReader, write_struct

_MAGIC = b"PAR1"
_HEADER_BYTES = 2**16
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_BOOLEAN = 0


def restore_footer(path: Path, target: Path, table: Any) -> int:
    """Copy the complete row groups of an unfinished file to `target`, with a footer; return the number of rows.

    `table` is a table with at least one row and the columns of the file.
    """
    template = _template(table)
    columns = template[4][1][1][0][1][1][1]
    values_per_row = [column[3][1][5][1] // table.num_rows for column in columns]
    is_boolean = [column[3][1][1][1] == _BOOLEAN for column in columns]
    groups, end = _walk_groups(path, values_per_row, is_boolean)
    if not groups:
        return 0
    shutil.copyfile(path, target)
    with open(target, "r+b") as file:
        file.truncate(end)
        file.seek(end)
        footer = write_struct(_footer(template, groups))
        file.write(footer + struct.pack("<I", len(footer)) + _MAGIC)
    return sum(rows for rows, _ in groups)


def _template(table: Any) -> Fields:
    """Return the footer of a Parquet file with this table."""
    pq = need("pyarrow.parquet", extra="lerobot")
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="snappy", use_dictionary=True)
    data = sink.getvalue()
    size = struct.unpack("<I", data[-8:-4])[0]
    return ThriftReader(data[-8 - size : -8]).struct()


class _Chunk:
    """The pages of one column in a row group: their positions, bytes and number of values."""

    def __init__(self) -> None:
        self.start = self.data_start = -1
        self.dictionary_start: int | None = None
        self.values = self.compressed = self.uncompressed = 0


def _walk_groups(path: Path, per_row: list[int], is_boolean: list[bool]) -> tuple[list[tuple[int, list[_Chunk]]], int]:
    """Find the complete row groups, each with its number of rows and its columns; return them with their end."""
    groups: list[tuple[int, list[_Chunk]]] = []
    size, position, end = os.path.getsize(path), len(_MAGIC), 0
    chunks: list[_Chunk] = []
    rows: int | None = None
    with open(path, "rb") as file:
        while position < size:
            file.seek(position)
            try:
                reader = ThriftReader(file.read(_HEADER_BYTES))
                header = reader.struct()
                kind, whole, packed = (header[field][1] for field in (1, 2, 3))
                begun = position
                position += reader.position + packed
            except (IndexError, KeyError, struct.error, ValueError):
                break
            if position > size or kind not in (_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2) or packed < 0:
                break
            is_dictionary = kind == _DICTIONARY_PAGE
            current = chunks[-1] if chunks else None
            is_full = current is not None and rows is not None and current.values == rows * per_row[len(chunks) - 1]
            # The first column ends where the next column begins: with a dictionary page, except for booleans.
            if current is not None and rows is None and current.values and len(chunks) < len(per_row):
                is_full = is_dictionary or (is_boolean[len(chunks)] and not _has_dictionary_codes(header))
                if is_full:
                    rows, rest = divmod(current.values, per_row[0])
                    if rest:
                        break
            if current is None or is_full:
                chunks.append(_Chunk())
                current = chunks[-1]
                current.start = begun
            if is_dictionary:
                current.dictionary_start = begun
            else:
                current.data_start = begun if current.data_start < 0 else current.data_start
                current.values += header[5 if kind == _DATA_PAGE else 8][1][1][1]
            current.compressed += position - begun
            current.uncompressed += position - begun - packed + whole
            if len(chunks) == len(per_row) and (rows is None or current.values == rows * per_row[-1]):
                rows = current.values // per_row[-1] if rows is None else rows
                groups.append((rows, chunks))
                chunks, rows, end = [], None, position
    return groups, end


def _has_dictionary_codes(header: Fields) -> bool:
    page = header.get(5, header.get(8, (0, {})))[1]
    encoding = page.get(2 if 5 in header else 4, (0, 0))[1]
    return encoding in (2, 8)


def _footer(template: Fields, groups: list[tuple[int, list[_Chunk]]]) -> Fields:
    """Make a footer from the template, with the positions of these row groups."""
    columns = template[4][1][1][0][1][1][1]
    row_groups = []
    for rows, chunks in groups:
        columns_of_group = []
        for column, chunk in zip(columns, chunks, strict=True):
            known = column[3][1]
            meta: Fields = {field: known[field] for field in (1, 2, 3, 4)}
            meta[5] = (I64, chunk.values)
            meta[6], meta[7] = (I64, chunk.uncompressed), (I64, chunk.compressed)
            meta[9] = (I64, chunk.data_start)
            if chunk.dictionary_start is not None:
                meta[11] = (I64, chunk.dictionary_start)
            columns_of_group.append({2: (I64, 0), 3: (STRUCT, meta)})
        total = sum(chunk.uncompressed for chunk in chunks)
        row_groups.append({1: (LIST, (STRUCT, columns_of_group)), 2: (I64, total), 3: (I64, rows)})
    footer = dict(template)
    footer[3] = (I64, sum(rows for rows, _ in groups))
    footer[4] = (LIST, (STRUCT, row_groups))
    return footer


def one_row_of(features: dict[str, dict[str, Any]]) -> dict[str, np.ndarray]:
    """Make one row of zeros for features, in their order, without videos, which are in no table."""
    columns: dict[str, np.ndarray] = {}
    for name, feature in features.items():
        if feature["dtype"] == "string":
            columns[name] = np.array([""], object)
        elif feature["dtype"] == "image":
            columns[name] = np.array([{"bytes": b"", "path": ""}], object)
        elif feature["dtype"] != "video":
            columns[name] = np.zeros((1, *feature["shape"]), feature["dtype"])
    return columns
