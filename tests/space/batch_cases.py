"""What the tests of batches share."""

from __future__ import annotations

from typing import Any

from catalogue import BACKENDS, assert_same, space_cases

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import Space, describe_mismatch
from unienv_interface.space.space_utils.batch_utils import batch_size, batch_space, concatenate, iterate
from unienv_interface.space.spaces import GraphSpace

NUMPY = NumpyComputeBackend
JAX = [backend for backend in BACKENDS if backend.simplified_name == "jax"]
MUTABLE = [backend for backend in BACKENDS if backend not in JAX]  # whose arrays can be written to


def holds_values(space: Space) -> bool:
    """Whether a batch of the space says how many values it holds, and none of these is an empty batch of graphs."""
    if isinstance(space, GraphSpace) and 0 in space.batch_shape:
        return False  # there is nothing but filling in it, of which a batch keeps no more than it needs
    return batch_size(batch_space(space, 2)) is not None


def cases(*on_jax: str) -> list[Any]:
    """Every space on NumPy and PyTorch, on JAX only some: it compiles each operation for each shape."""
    everywhere = space_cases(backends=MUTABLE, where=holds_values)
    return everywhere + (space_cases(*on_jax, backends=JAX) if on_jax else [])


def batch_of(space: Space, items: list[Any]) -> Any:
    batch = concatenate(space, items)
    assert describe_mismatch(batch_space(space, len(items)), batch) is None
    return batch


def assert_holds(space: Space, batch: Any, items: list[Any]) -> None:
    """Compare a batch with the single values that should be in it."""
    found = list(iterate(batch_space(space, len(items)), batch))
    for mine, theirs in zip(found, items, strict=True):
        assert_same(space, mine, theirs)
