"""Properties of dtypes that are the same on every backend, by array-API name.

A backend only converts between dtypes of its library and names. This module knows their kinds, sizes, safe casts and
memory formats.
"""

from __future__ import annotations

import functools

import numpy as np

BOOLEAN = frozenset({"bool"})
SIGNED = frozenset({"int8", "int16", "int32", "int64"})
UNSIGNED = frozenset({"uint8", "uint16", "uint32", "uint64"})
INTEGER = SIGNED | UNSIGNED
NATIVE_FLOATING = frozenset({"float16", "float32", "float64"})
# Floats that NumPy has no arithmetic for, with the number of bytes they take.
FOREIGN_FLOATING = {"bfloat16": 2}
FLOATING = NATIVE_FLOATING | frozenset(FOREIGN_FLOATING)
COMPLEX = frozenset({"complex64", "complex128"})
KNOWN = BOOLEAN | INTEGER | FLOATING | COMPLEX


@functools.lru_cache(maxsize=256)
def name_of(dtype: np.dtype) -> str:
    """The name of a NumPy dtype, cached: NumPy takes 3 us to make it."""
    return dtype.name


def host_dtype(name: str) -> np.dtype:
    """The NumPy dtype that holds every value of the named dtype exactly and can be computed with.

    This is the dtype itself, except for bfloat16, whose values fit float32.
    """
    return np.dtype(np.float32) if name in FOREIGN_FLOATING else np.dtype(name)


def raw_dtype(name: str) -> np.dtype:
    """The little-endian NumPy dtype that holds the bits of the named dtype in rows and files."""
    if name in FOREIGN_FLOATING:
        return np.dtype(f"<u{FOREIGN_FLOATING[name]}")
    # from its string: on a little-endian machine this gives NumPy's builtin dtype object, comparable by identity
    return np.dtype(np.dtype(name).newbyteorder("<").str)


def can_cast_safely(source: str, target: str) -> bool:
    """Whether the target dtype holds every value of the source dtype."""
    if source == target:
        return True
    if source in {"int64", "uint64"} and target in FLOATING | COMPLEX:
        return False  # NumPy calls this safe, although float64 holds no more than 53 bits
    if target in FOREIGN_FLOATING:
        return source in {"bool", "int8", "uint8"}
    if source in FOREIGN_FLOATING:
        return target in COMPLEX | {"float32", "float64"}
    return np.can_cast(np.dtype(source), np.dtype(target), casting="safe")
