"""Parquet files that were never finished: the pages are there, and the footer that says where they lie is not.

The pages are walked from the beginning of the file, and a footer is made of that of a table with the same columns.
Footers and page headers are in Thrift's compact protocol.
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

_MAGIC = b"PAR1"
_HEADER_BYTES = 2**16
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_BOOLEAN = 0
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)

#: A value by the number of its field, with its type.
Fields = dict[int, tuple[int, Any]]


def restore_footer(path: Path, target: Path, table: Any) -> int:
    """Copy the whole row groups of an unfinished file to `target`, with a footer; how many rows they have.

    `table` is a table with one row, or more, and the columns that the file has.
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
        footer = _write_struct(_footer(template, groups))
        file.write(footer + struct.pack("<I", len(footer)) + _MAGIC)
    return sum(rows for rows, _ in groups)


def _template(table: Any) -> Fields:
    """The footer of a file that holds this table."""
    pq = need("pyarrow.parquet", extra="lerobot")
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="snappy", use_dictionary=True)
    data = sink.getvalue()
    size = struct.unpack("<I", data[-8:-4])[0]
    return _Reader(data[-8 - size : -8]).struct()


class _Chunk:
    """The pages of one column in a row group: where they are, and how many bytes and values they have."""

    def __init__(self) -> None:
        self.start = self.data_start = -1
        self.dictionary_start: int | None = None
        self.values = self.compressed = self.uncompressed = 0


def _walk_groups(path: Path, per_row: list[int], is_boolean: list[bool]) -> tuple[list[tuple[int, list[_Chunk]]], int]:
    """The row groups that are there as a whole, each with its rows and columns, and where the last one ends."""
    groups: list[tuple[int, list[_Chunk]]] = []
    size, position, end = os.path.getsize(path), len(_MAGIC), 0
    chunks: list[_Chunk] = []
    rows: int | None = None
    with open(path, "rb") as file:
        while position < size:
            file.seek(position)
            try:
                reader = _Reader(file.read(_HEADER_BYTES))
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
            # the first column ends where the next one begins: with a dictionary, which booleans do not have
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
    """The template's footer with the places of these row groups."""
    columns = template[4][1][1][0][1][1][1]
    row_groups = []
    for rows, chunks in groups:
        placed = []
        for column, chunk in zip(columns, chunks, strict=True):
            known = column[3][1]
            meta: Fields = {field: known[field] for field in (1, 2, 3, 4)}
            meta[5] = (_I64, chunk.values)
            meta[6], meta[7] = (_I64, chunk.uncompressed), (_I64, chunk.compressed)
            meta[9] = (_I64, chunk.data_start)
            if chunk.dictionary_start is not None:
                meta[11] = (_I64, chunk.dictionary_start)
            placed.append({2: (_I64, 0), 3: (_STRUCT, meta)})
        total = sum(chunk.uncompressed for chunk in chunks)
        row_groups.append({1: (_LIST, (_STRUCT, placed)), 2: (_I64, total), 3: (_I64, rows)})
    footer = dict(template)
    footer[3] = (_I64, sum(rows for rows, _ in groups))
    footer[4] = (_LIST, (_STRUCT, row_groups))
    return footer


# -- Thrift's compact protocol ---------------------------------------------------------------------------------


class _Reader:
    """Reads structs from bytes; an IndexError where they end too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self.position = data, 0

    def _byte(self) -> int:
        value = self._data[self.position]
        self.position += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 70:
                raise ValueError("not a number")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _bytes(self, count: int) -> bytes:
        if self.position + count > len(self._data):
            raise IndexError(count)
        self.position += count
        return self._data[self.position - count : self.position]

    def struct(self) -> Fields:
        fields: Fields = {}
        number = 0
        while (head := self._byte()) != 0:
            kind = head & 0x0F
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = (kind, self._value(kind))
        return fields

    def _value(self, kind: int, *, in_list: bool = False) -> Any:
        if kind in (_TRUE, _FALSE):
            return self._byte() == _TRUE if in_list else kind == _TRUE
        if kind == _BYTE:
            return self._byte()
        if kind in (_I16, _I32, _I64):
            return self._integer()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind in (_LIST, _SET):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            return head & 0x0F, [self._value(head & 0x0F, in_list=True) for _ in range(count)]
        if kind == _STRUCT:
            return self.struct()
        raise ValueError(f"type {kind} of Thrift is not in Parquet")


def _write_struct(fields: Fields) -> bytes:
    out = bytearray()
    last = 0
    for number in sorted(fields):
        kind, value = fields[number]
        if kind in (_TRUE, _FALSE):
            kind = _TRUE if value else _FALSE
        step = number - last
        out += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + _integer(number)
        if kind not in (_TRUE, _FALSE):
            out += _write_value(kind, value)
        last = number
    return bytes(out) + b"\0"


def _write_value(kind: int, value: Any) -> bytes:
    if kind in (_TRUE, _FALSE):
        return bytes([_TRUE if value else _FALSE])
    if kind == _BYTE:
        return bytes([value])
    if kind in (_I16, _I32, _I64):
        return _integer(value)
    if kind == _DOUBLE:
        return bytes(value)
    if kind == _BINARY:
        return _varint(len(value)) + bytes(value)
    if kind in (_LIST, _SET):
        inner, items = value
        head = bytes([len(items) << 4 | inner]) if len(items) < 15 else bytes([0xF0 | inner]) + _varint(len(items))
        return head + b"".join(_write_value(inner, item) for item in items)
    return _write_struct(value)


def _integer(value: int) -> bytes:
    return _varint((value << 1) ^ (value >> 63))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def one_row_of(features: dict[str, dict[str, Any]]) -> dict[str, np.ndarray]:
    """One row of zeros for features, in their order, without videos."""
    columns: dict[str, np.ndarray] = {}
    for name, feature in features.items():
        if feature["dtype"] == "string":
            columns[name] = np.array([""], object)
        elif feature["dtype"] not in ("video", "image"):
            columns[name] = np.zeros((1, *feature["shape"]), feature["dtype"])
    return columns
