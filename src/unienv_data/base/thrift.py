"""Thrift's compact protocol, the encoding of Parquet footers and page headers."""

from __future__ import annotations

from typing import Any

_TRUE, _FALSE, _BYTE, _I16, _I32, I64, _DOUBLE, _BINARY, LIST, _SET, _MAP, STRUCT = range(1, 13)

#: The type and value of each field, by field number.
Fields = dict[int, tuple[int, Any]]


class ThriftReader:
    """Reads structs from bytes; an IndexError if the bytes end too early."""

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
                raise ValueError("Thrift: a varint has more than 10 bytes")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _bytes(self, count: int) -> bytes:
        if self.position + count > len(self._data):
            raise IndexError(count)
        self.position += count
        return self._data[self.position - count : self.position]

    def struct(self) -> Fields:
        """Read the struct that begins at `position`."""
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
        if kind in (_I16, _I32, I64):
            return self._integer()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind in (LIST, _SET):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            return head & 0x0F, [self._value(head & 0x0F, in_list=True) for _ in range(count)]
        if kind == STRUCT:
            return self.struct()
        raise ValueError(f"type {kind} of Thrift is not in Parquet")


def write_struct(fields: Fields) -> bytes:
    """Encode a struct."""
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
    if kind in (_I16, _I32, I64):
        return _integer(value)
    if kind == _DOUBLE:
        return bytes(value)
    if kind == _BINARY:
        return _varint(len(value)) + bytes(value)
    if kind in (LIST, _SET):
        inner, items = value
        head = bytes([len(items) << 4 | inner]) if len(items) < 15 else bytes([0xF0 | inner]) + _varint(len(items))
        return head + b"".join(_write_value(inner, item) for item in items)
    return write_struct(value)


def _integer(value: int) -> bytes:
    return _varint((value << 1) ^ (value >> 63))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
