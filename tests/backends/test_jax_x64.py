"""JAX with 64-bit dtypes, which must be switched on before its first array: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

SCRIPT = """
import sys
import warnings

warnings.simplefilter("error")
sys.path.insert(0, sys.argv[1])

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np
from catalogue import SPACES, assert_same, rng_of, sample

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.backends.jax import JaxComputeBackend as backend

for name in ("int64", "uint64", "float64", "complex128"):
    assert backend.dtype_name(backend.dtype_from_name(name)) == name
assert backend.dtype_name(backend.default_integer_dtype) == "int64"
assert backend.dtype_name(backend.default_floating_dtype) == "float64"

for values in (np.array([-(2**63), 2**63 - 1]), np.array([2**64 - 1], np.uint64), np.array([1e300])):
    assert_same(None, backend.to_numpy(backend.from_numpy(values)), values)

low, high = -(2**63), 2**63 - 1
least, most = np.array([[high - 1], [low], [low]]), np.array([[high], [low + 1], [high]])
_, drawn = backend.random.random_discrete_uniform((3, 64), least, most, rng=rng_of(backend), endpoint=True)
last, first, whole = np.asarray(drawn).tolist()
assert set(last) == {high - 1, high}
assert set(first) == {low, low + 1}
assert len(set(whole)) == 64

for name in ("box_float64", "box_int64_ends", "box_uint64_top"):
    space = SPACES[name](backend)
    assert space.dtype_name == SPACES[name](NumpyComputeBackend).dtype_name
    assert space.to(NumpyComputeBackend) == SPACES[name](NumpyComputeBackend)
    value = sample(SPACES[name](NumpyComputeBackend))
    moved = SPACES[name](NumpyComputeBackend).data_to(value, backend)
    assert_same(None, space.data_to(moved, NumpyComputeBackend), value)
print("done")
"""


def test_64_bits_are_kept_where_jax_has_them() -> None:
    pytest.importorskip("jax")
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(TESTS)], env=environment, capture_output=True, text=True, timeout=100
    )
    assert result.stdout == "done\n", result.stderr
