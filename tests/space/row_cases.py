"""What the tests of rows share."""

from __future__ import annotations

from typing import Any

import numpy as np
from catalogue import BACKENDS, INF

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space.row_layout import RowLayout, Rows
from unienv_interface.space.spaces import BoxSpace

NUMPY = NumpyComputeBackend
JAX = [backend for backend in BACKENDS if backend.simplified_name == "jax"]
MUTABLE = [backend for backend in BACKENDS if backend not in JAX]  # whose arrays can be written to


def box(*shape: int, dtype: str = "float32", backend: ComputeBackend = NUMPY) -> BoxSpace:
    return BoxSpace(backend, -INF, INF, dtype, shape=shape)


def contents(rows: Rows) -> list[bytes]:
    """Everything that lies in the rows, byte for byte."""
    return [rows.records.tobytes(), *(block.tobytes() for block in rows.blocks.values())]


def zeroed(layout: RowLayout, shape: Any) -> Rows:
    rows = layout.empty(shape)
    for memory in (rows.records, *rows.blocks.values()):
        memory[...] = np.zeros((), memory.dtype)
    return rows
