"""Construct spaces from data.

A dict becomes a `DictSpace`, a tuple a `TupleSpace`, a string a `TextSpace`, booleans a `BinarySpace`, numbers a
`BoxSpace`, and arrays of numbers whose sizes vary a `DynamicBoxSpace`. NumPy arrays keep their dtype. Python numbers
and lists of numbers take the dtype of the space so far if they fit, else the backend's default dtype, or a 64-bit
dtype if a value needs it. Python integers become floats if a Python float follows at the same path.

The constructed space contains all the data. Data that no space can hold (NaN, ragged lists, other objects, different
kinds or keys at the same path) raise a ValueError with the path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ...backends import dtypes
from ...backends.base import ComputeBackend
from ...backends.numpy import NumpyComputeBackend
from ...backends.serialization import BackendLike, parse_backend
from ..mismatch import at_path, describe_mismatch, validate
from ..space import Space
from ..spaces import BinarySpace, BoxSpace, DictSpace, DynamicBoxSpace, TextSpace, TupleSpace

__all__ = ["construct_space_from_data", "construct_space_from_data_stream"]

# The keys from the root to a value. Joined only for messages: keys may contain slashes or be empty.
_Path = tuple[Any, ...]
_CONSTRUCTED_KINDS = (BinarySpace, BoxSpace, DictSpace, DynamicBoxSpace, TextSpace, TupleSpace)


def construct_space_from_data(
    data: Any, backend: BackendLike, candidate_space: Space | None = None, add_bounds: bool = False
) -> Space:
    """Construct a space that contains `data` and all values of `candidate_space`.

    Parameters
    ----------
    data
        A value: numbers, arrays, texts, and dicts and tuples of these.
    backend
        The library of the arrays.
    candidate_space
        The space so far, widened if needed: a bound that the data exceed moves with `add_bounds` and is dropped
        without, dtypes become the common dtype, axes with different sizes vary. Unions, graphs and batches of objects
        are never widened.
    add_bounds
        Take the bounds of numbers, and the lengths and characters of texts, from the data. Without it, only texts are
        bounded, by their largest length.

    Returns
    -------
    Space
        `candidate_space` itself if it contains the data, else a new space.

    Raises
    ------
    ValueError
        No space holds the data (the message says where), or `candidate_space` has another backend.

    Examples
    --------
    >>> space = construct_space_from_data({"speed": 1.5, "gear": 2}, "numpy")
    >>> sorted(space.spaces)
    ['gear', 'speed']
    """
    backend = parse_backend(backend)
    if candidate_space is not None and candidate_space.backend is not backend:
        raise ValueError(f"candidate_space has the backend {candidate_space.backend}, the data {backend}")
    return _Finder(backend, add_bounds).find(data, candidate_space, ())


def construct_space_from_data_stream(data: Iterable[Any], backend: BackendLike, add_bounds: bool = True) -> Space:
    """Construct the space of all values in an iterable, widening it value by value.

    Parameters
    ----------
    data
        The values, at least one.
    backend, add_bounds
        As for `construct_space_from_data`.

    Returns
    -------
    Space
        The space of all values.

    Raises
    ------
    ValueError
        `data` is empty, or no space holds all values; the message names the value and the path that fail.

    Examples
    --------
    >>> space = construct_space_from_data_stream([{"speed": 1.5}, {"speed": 3.0}], "numpy")
    >>> float(space["speed"].high)
    3.0
    """
    finder = _Finder(parse_backend(backend), add_bounds)
    space: Space | None = None
    for position, item in enumerate(data):
        try:
            space = finder.find(item, space, ())
        except ValueError as error:
            raise ValueError(f"item {position}: {error}") from error
    if space is None:
        raise ValueError("the stream is empty, constructing a space wants at least one value")
    return space


def reshape_to_broadcastable(
    backend: ComputeBackend, target_shape: Sequence[int], array: Any, method: Literal["min", "max"] = "min"
) -> Any:
    """Reduce an array to its smallest or largest entries until it broadcasts to `target_shape`.

    Axes are compared from the last one. An axis whose size is neither 1 nor the size of the target is reduced to one
    entry; surplus leading axes are removed.
    """
    if method not in ("min", "max"):
        raise ValueError(f"method is {method!r}, it must be 'min' or 'max'")
    shape, target = tuple(array.shape), tuple(target_shape)
    surplus = max(len(shape) - len(target), 0)
    aligned = target[len(target) - (len(shape) - surplus) :]
    axes = [*range(surplus)]
    axes += [axis for axis, size in enumerate(aligned, start=surplus) if shape[axis] not in (size, 1)]
    if not axes:
        return array
    if any(shape[axis] == 0 for axis in axes):
        raise ValueError(f"shape {shape} has no entries to reduce to {target}")
    reduced = getattr(backend, method)(array, axis=tuple(axes), keepdims=True)
    return backend.reshape(reduced, tuple(reduced.shape)[surplus:])


@dataclass(frozen=True)
class _Numbers:
    """An array of numbers in the data, on the backend and in NumPy."""

    native: Any
    dtype_name: str
    device: Any
    host: np.ndarray
    from_python: bool


@dataclass(frozen=True)
class _Finder:
    """Constructs spaces on one backend, with or without bounds.

    `python_integers` are the paths where all numbers so far were Python integers, which may still become floats.
    """

    backend: ComputeBackend
    add_bounds: bool
    python_integers: set[_Path] = field(default_factory=set)

    def find(self, data: Any, known: Space | None, path: _Path) -> Space:
        """Widen `known` to contain `data`, or make a new space; returns `known` itself if it contains the data."""
        if known is not None and not isinstance(known, _CONSTRUCTED_KINDS):
            validate(known, data, _as_path(path))
            return known
        if isinstance(data, str):
            return self._find_text(data, _of_kind(TextSpace, known, data, path))
        if isinstance(data, Mapping):
            return self._find_dict(data, _of_kind(DictSpace, known, data, path), path)
        if isinstance(data, tuple):
            return self._find_tuple(data, _of_kind(TupleSpace, known, data, path), path)
        numbers = self._read_numbers(data, path)
        if numbers.dtype_name in dtypes.BOOLEAN:
            return self._find_booleans(numbers, _of_kind(BinarySpace, known, data, path), path)
        return self._find_numbers(numbers, _of_kind((BoxSpace, DynamicBoxSpace), known, data, path), path)

    # -- composites and texts ------------------------------------------------------------------------------

    def _find_dict(self, data: Mapping[str, Any], known: DictSpace | None, path: _Path) -> Space:
        invalid = [key for key in data if not isinstance(key, str)]
        if invalid:
            raise ValueError(_at(path, f"key {invalid[0]!r} is {type(invalid[0]).__name__}, keys are strings"))
        if known is None:
            children = {key: self.find(value, None, (*path, key)) for key, value in data.items()}
            return DictSpace(self.backend, children)
        return self._widen_children(data, known, path)

    def _find_tuple(self, data: tuple[Any, ...], known: TupleSpace | None, path: _Path) -> Space:
        if known is None:
            pairs = enumerate(data)
            return TupleSpace(self.backend, [self.find(value, None, (*path, key)) for key, value in pairs])
        return self._widen_children(data, known, path)

    def _widen_children(self, data: Any, known: DictSpace | TupleSpace, path: _Path) -> Space:
        finding = known.structure_mismatch(data, _as_path(path))
        if finding is not None:
            raise ValueError(finding)
        items = known.child_items()
        widened = [self.find(data[key], child, (*path, key)) for key, child in items]
        if all(new is old for new, (_, old) in zip(widened, items, strict=True)):
            return known
        return known.with_children(widened)

    def _find_text(self, text: str, known: TextSpace | None) -> Space:
        if known is not None and text in known:
            return known
        length, charset = len(text), frozenset(text) if self.add_bounds else None
        if known is None:
            return TextSpace(self.backend, length, min_length=length if self.add_bounds else 0, charset=charset)
        if known.charset is None or frozenset(text) <= known.charset:
            charset = known.charset
        elif charset is not None:
            charset |= known.charset
        shortest, longest = min(known.min_length, length), max(known.max_length, length)
        if shortest < known.min_length and not self.add_bounds:
            shortest = 0
        return TextSpace(self.backend, longest, min_length=shortest, charset=charset, device=known.device)

    # -- arrays --------------------------------------------------------------------------------------------

    def _read_numbers(self, data: Any, path: _Path) -> _Numbers:
        backend = self.backend
        if backend.is_backendarray(data):
            name = self._name_of(data.dtype)
            if name not in dtypes.KNOWN:
                raise ValueError(_at(path, f"dtype {name}, an array of a space holds numbers or booleans"))
            device = None if backend is NumpyComputeBackend else backend.device(data)
            numbers = _Numbers(data, name, device, backend.to_host(data), False)
        else:
            host, name = self._read_host(data, path)
            native = backend.from_host(host, backend.dtype_from_name(name))
            numbers = _Numbers(native, name, None, host, not isinstance(data, (np.ndarray, np.generic)))
        if numbers.host.dtype.kind in "fc" and np.isnan(numbers.host).any():
            raise ValueError(_at(path, "NaN, which no space contains: replace it first"))
        return numbers

    def _name_of(self, dtype: Any) -> str:
        try:
            return self.backend.dtype_name(dtype)
        except TypeError:
            return str(dtype)

    def _read_host(self, data: Any, path: _Path) -> tuple[np.ndarray, str]:
        """Convert numbers, lists or NumPy arrays to a dtype that the backend has; returns values and dtype name."""
        try:
            array = np.asarray(data)
        except Exception as error:
            raise ValueError(_at(path, f"{type(data).__name__} is no array of one shape: {error}")) from None
        if array.dtype.name not in dtypes.KNOWN:
            finding = f"{type(data).__name__} of dtype {array.dtype}"
            raise ValueError(_at(path, f"{finding}, a space wants numbers, texts, or dicts and tuples of these"))
        dtype_name = array.dtype.name if isinstance(data, (np.ndarray, np.generic)) else self._default_dtype(array)
        name = self.backend.dtype_name(self.backend.dtype_from_name(dtype_name))
        with np.errstate(over="ignore"):
            host = array.astype(dtypes.host_dtype(name))
        lost = np.isinf(host) & np.isfinite(array) if host.dtype.kind in "fc" else host != array
        if lost.any():
            raise ValueError(_at(path, f"value {array[lost].flat[0]} does not fit {name} of {self.backend}"))
        return host, name

    def _default_dtype(self, values: np.ndarray) -> str:
        """The backend's default dtype for Python numbers, or a 64-bit dtype if they do not fit."""
        backend, kind = self.backend, values.dtype.kind
        if kind == "b":
            return "bool"
        if kind == "c":
            return "complex128"
        if kind == "f":
            name = backend.dtype_name(backend.default_floating_dtype)
            finite = values[np.isfinite(values)]
            return name if np.abs(finite).max(initial=0) <= np.finfo(name).max else "float64"
        for name in (backend.dtype_name(backend.default_integer_dtype), "int64"):
            limits = np.iinfo(name)
            if values.size == 0 or (limits.min <= values.min() and values.max() <= limits.max):
                return name
        return "uint64"

    def _find_booleans(self, booleans: _Numbers, known: BinarySpace | None, path: _Path) -> Space:
        if known is None:
            return BinarySpace(self.backend, booleans.host.shape, device=booleans.device)
        if known.shape != booleans.host.shape:
            advice = "booleans of varying shape have no space: make them uint8"
            raise ValueError(_at(path, f"shape {booleans.host.shape} after {known.shape}, {advice}"))
        return known

    def _find_numbers(self, numbers: _Numbers, known: BoxSpace | DynamicBoxSpace | None, path: _Path) -> Space:
        shape = numbers.host.shape
        if known is None:
            if numbers.from_python and numbers.dtype_name in dtypes.INTEGER:
                self.python_integers.add(path)
            low, high = self._bounds_of(numbers.host, numbers.dtype_name)
            return BoxSpace(self.backend, low, high, numbers.dtype_name, numbers.device, shape)
        known, numbers = self._reconcile_python_numbers(known, numbers, path)
        if describe_mismatch(known, numbers.native) is None:
            return known
        name = self._common_dtype(known.dtype_name, numbers.dtype_name, path)
        least, most = _sizes(known)
        if len(least) != len(shape):
            raise ValueError(_at(path, f"{len(shape)} axes after {len(least)}, no space holds arrays of both"))
        least = tuple(min(pair) for pair in zip(least, shape, strict=True))
        most = tuple(None if size is None else max(size, other) for size, other in zip(most, shape, strict=True))
        bound_shape = tuple(size if size == other else 1 for size, other in zip(least, most, strict=True))
        if least != most and name in dtypes.COMPLEX:
            raise ValueError(_at(path, f"shape {shape} of complex numbers varies, which no space holds"))
        return _like(known, self._widened_bounds(known, numbers.host, name, bound_shape), least, most, name)

    def _reconcile_python_numbers(
        self, known: BoxSpace | DynamicBoxSpace, numbers: _Numbers, path: _Path
    ) -> tuple[BoxSpace | DynamicBoxSpace, _Numbers]:
        """Give the space and the numbers one dtype if either was made of Python numbers, which have no dtype."""
        only_integers_so_far = path in self.python_integers
        if not numbers.from_python or numbers.dtype_name not in dtypes.INTEGER:
            self.python_integers.discard(path)
        if not numbers.from_python:
            return known, numbers
        if numbers.dtype_name in dtypes.FLOATING and only_integers_so_far:
            name = numbers.dtype_name
            return _like(known, self._recast_bounds(known, name), *_sizes(known), name), numbers
        return known, self._with_dtype(numbers, known)

    def _with_dtype(self, numbers: _Numbers, known: BoxSpace | DynamicBoxSpace) -> _Numbers:
        """Convert Python numbers to the dtype of `known` if they fit it."""
        fitting = dtypes.INTEGER if known.dtype_name in dtypes.INTEGER else dtypes.INTEGER | dtypes.FLOATING
        if known.dtype_name in dtypes.COMPLEX or numbers.dtype_name not in fitting:
            return numbers
        with np.errstate(over="ignore"):
            host = numbers.host.astype(dtypes.host_dtype(known.dtype_name))
        fits = host == numbers.host if host.dtype.kind != "f" else np.isfinite(host) | ~np.isfinite(numbers.host)
        if not fits.all():
            return numbers
        return _Numbers(self.backend.from_host(host, known.dtype), known.dtype_name, None, host, True)

    def _common_dtype(self, known: str, new: str, path: _Path) -> str:
        if known == new:
            return known
        if dtypes.can_cast_safely(known, new):
            return new
        if dtypes.can_cast_safely(new, known):
            return known
        wide = np.result_type(dtypes.host_dtype(known), dtypes.host_dtype(new)).name
        name = self.backend.dtype_name(self.backend.dtype_from_name(wide))
        if not all(dtypes.can_cast_safely(dtype, name) for dtype in (known, new)):
            raise ValueError(_at(path, f"dtype {new} after {known}, {self.backend} has none that holds both"))
        return name

    # -- bounds, in NumPy ----------------------------------------------------------------------------------

    def _bounds_of(self, values: np.ndarray, name: str) -> tuple[Any, Any]:
        if not self.add_bounds or name in dtypes.COMPLEX:
            return _ends(name)
        if name in dtypes.INTEGER:
            return values, values
        # A box must not have a lower bound of +inf or an upper bound of -inf: use the largest float.
        largest = _largest_float(name)
        return np.minimum(values, largest), np.maximum(values, -largest)

    def _widened_bounds(
        self, known: BoxSpace | DynamicBoxSpace, values: np.ndarray, name: str, shape: tuple[int, ...]
    ) -> tuple[Any, Any]:
        """Move or drop the bounds of `known` that `values` exceed, and reduce them to broadcast to `shape`."""

        def fit(array: Any, method: Literal["min", "max"]) -> np.ndarray:
            return reshape_to_broadcastable(NumpyComputeBackend, shape, np.asarray(array), method)

        lowest, highest = _ends(name)
        if name in dtypes.COMPLEX:
            return lowest, highest
        values = values.astype(dtypes.host_dtype(name))
        low, high = self._recast_bounds(known, name)
        if values.size and 0 in _sizes(known)[1]:  # `known` came from arrays without entries
            low, high = self._bounds_of(values, name)
        low, high = fit(low, "min"), fit(high, "max")
        if values.size == 0:
            return low, high
        smallest, largest = fit(values, "min"), fit(values, "max")
        if self.add_bounds:
            return np.minimum(low, smallest), np.maximum(high, largest)
        return np.where(smallest < low, lowest, low), np.where(largest > high, highest, high)

    def _recast_bounds(self, known: BoxSpace | DynamicBoxSpace, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Cast the bounds of `known` to a wider dtype; "no bound" stays "no bound"."""
        low, high = (bound.astype(dtypes.host_dtype(name)) for bound in known.bounds)
        if not self.add_bounds:
            (old_lowest, old_highest), (lowest, highest) = _ends(known.dtype_name), _ends(name)
            low = np.where(known.bounds.low == old_lowest, lowest, low)
            high = np.where(known.bounds.high == old_highest, highest, high)
        return low, high


def _as_path(path: _Path) -> str:
    return "/".join(str(key) for key in path)


def _at(path: _Path, finding: str) -> str:
    return at_path(_as_path(path), finding)


def _of_kind(kinds: Any, known: Any, data: Any, path: _Path) -> Any:
    """Return `known`, or raise a ValueError if it is neither None nor of one of the kinds."""
    if known is None or isinstance(known, kinds):
        return known
    raise ValueError(_at(path, f"{type(data).__name__}, but the space so far is {known}: no space holds both"))


def _like(
    known: BoxSpace | DynamicBoxSpace,
    bounds: tuple[Any, Any],
    least: tuple[int, ...],
    most: tuple[int | None, ...],
    dtype_name: str,
) -> BoxSpace | DynamicBoxSpace:
    """Make a box like `known`, a `DynamicBoxSpace` if its sizes vary."""
    if least == most:
        return BoxSpace(known.backend, *bounds, dtype_name, known.device, least)
    fill = known.fill_value if isinstance(known, DynamicBoxSpace) else 0
    return DynamicBoxSpace(known.backend, *bounds, least, most, dtype_name, known.device, fill)


def _sizes(space: BoxSpace | DynamicBoxSpace) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
    """The smallest and the largest size of each axis."""
    if isinstance(space, DynamicBoxSpace):
        return space.shape_low, space.shape_high
    return space.shape, space.shape


def _ends(name: str) -> tuple[Any, Any]:
    """The bounds that mean "no bound" for a dtype."""
    if name in dtypes.INTEGER:
        dtype = np.dtype(name)
        return dtype.type(np.iinfo(dtype).min), dtype.type(np.iinfo(dtype).max)
    return -np.inf, np.inf


def _largest_float(name: str) -> Any:
    if name == "bfloat16":
        return np.uint32(0x7F7F0000).view(np.float32)  # the bits of the largest bfloat16, then 16 zeros
    return np.finfo(name).max
