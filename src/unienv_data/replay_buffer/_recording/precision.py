"""Columns with another precision than the environment's values, which are converted at the write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from unienv_interface.space import BoxSpace, DictSpace, Space
from unienv_interface.space.spaces import ArraySpace, CompositeSpace
from unienv_interface.space.spaces.array import parse_dtype


def with_dtype(space: Space, dtype: Any, path: str) -> Space:
    """The space with another dtype in its arrays of the same kind (floats or integers); a ValueError if it has none.

    `dtype` is one dtype, or for a dict space a mapping from keys to dtypes.
    """
    if isinstance(dtype, Mapping):
        if not isinstance(space, DictSpace):
            raise ValueError(f"dtype of {path} is by key, {dtype!r:.80}, but {path} is {space}: give one dtype")
        unknown = [key for key in dtype if key not in space.spaces]
        if unknown:
            raise KeyError(f"dtype of {path}/{unknown[0]}: {path} has no such key, it has {', '.join(space.spaces)}")
        chosen = {key: with_dtype(space.spaces[key], child, f"{path}/{key}") for key, child in dtype.items()}
        return DictSpace(space.backend, {**space.spaces, **chosen}, space.device)
    backend = space.backend
    dtype = parse_dtype(backend, dtype)
    if _kind(backend, dtype) is None:
        raise ValueError(f"dtype of {path} is {backend.dtype_name(dtype)}, wanted one of floats or of integers")
    converted = _converted(space, dtype, path)
    if converted is None:
        raise ValueError(
            f"dtype of {path} is {backend.dtype_name(dtype)}, but {path} is {space}: floats become other floats and "
            f"integers other integers, nothing else"
        )
    return converted


def _converted(space: Space, dtype: Any, path: str) -> Space | None:
    """The space with this dtype in its arrays of the same kind; None if it has none."""
    if isinstance(space, CompositeSpace):
        found = [(child, _converted(child, dtype, f"{path}/{key}")) for key, child in space.child_items()]
        if all(new is None for _, new in found):
            return None
        converted: Space = space.with_children([child if new is None else new for child, new in found])
        return converted
    backend = space.backend
    if not isinstance(space, BoxSpace) or _kind(backend, space.dtype) != _kind(backend, dtype):
        return None
    if backend.dtype_is_real_integer(dtype):
        try:
            low, high = space.bounds.narrowed(space.dtype_name, backend.dtype_name(dtype))
        except OverflowError as error:
            raise ValueError(f"dtype of {path} is {backend.dtype_name(dtype)}: {error}") from None
    else:
        largest = float(backend.finfo(dtype).max)
        low, high = (np.where(abs(bound) > largest, np.sign(bound) * np.inf, bound) for bound in space.bounds)
    return BoxSpace(backend, low, high, dtype, space.device, space.shape)


def _kind(backend: Any, dtype: Any) -> str | None:
    if backend.dtype_is_real_floating(dtype):
        return "floats"
    return "integers" if backend.dtype_is_real_integer(dtype) else None


def precision_converter(source: Space, target: Space, path: str) -> Callable[[Any], Any] | None:
    """A function that converts values of one space to the precision of another; None if both are equal.

    Differences in structure, shape or kind stay for the storage, which raises an error with the path.
    """
    if isinstance(source, CompositeSpace) and type(source) is type(target):
        keys = [key for key, _ in source.child_items()]
        if keys != [key for key, _ in target.child_items()]:
            return None
        pairs = zip(keys, source.children, target.children, strict=True)
        converters = [precision_converter(one, other, f"{path}/{key}") for key, one, other in pairs]
        if not any(converters):
            return None

        def convert_children(value: Any) -> Any:
            if source.structure_mismatch(value, path) is not None:
                return value
            children = zip(converters, source.child_values(value), strict=True)
            return source.build_value([child if convert is None else convert(child) for convert, child in children])

        return convert_children
    backend = target.backend
    if not (isinstance(source, ArraySpace) and isinstance(target, ArraySpace) and source.backend is backend):
        return None
    kind, dtype = _kind(backend, target.dtype), target.dtype
    if kind is None or source.dtype == dtype or _kind(backend, source.dtype) != kind:
        return None

    def convert(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = np.asarray(value)
        if not backend.is_backendarray(value) or value.dtype == dtype or _kind(backend, value.dtype) != kind:
            return value
        with np.errstate(over="ignore", invalid="ignore"):
            converted = backend.astype(value, dtype)
            is_kept = (
                backend.astype(converted, value.dtype) == value
                if kind == "integers"
                else backend.isfinite(converted) == backend.isfinite(value)
            )
        if not is_kept.all():
            raise ValueError(
                f"{path}: {backend.to_host(value)!r:.100} holds a value beyond the range of "
                f"{backend.dtype_name(dtype)}, the dtype of its column: record it in a wider one"
            )
        return converted

    return convert
