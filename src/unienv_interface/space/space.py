"""Spaces: descriptions of values on one backend.

A space describes a value (its kind, shape, dtype and bounds), its backend and its device. It holds no data.
Environments, storages and samplers describe their data by spaces. Operations on values (batching, flattening, packing
into rows, JSON) are functions outside these classes that dispatch on the kind of space; a new kind registers its
rules with these functions.
"""

from __future__ import annotations

import abc
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Generic, Literal

from typing_extensions import Self, TypeVar

from ..backends.base import ComputeBackend
from ..backends.serialization import BackendLike, parse_backend

SpaceDataT = TypeVar("SpaceDataT", default=Any)
_SpaceBDeviceT = TypeVar("_SpaceBDeviceT", default=Any)
_SpaceBDTypeT = TypeVar("_SpaceBDTypeT", default=Any)
_SpaceBDRNGT = TypeVar("_SpaceBDRNGT", default=Any)
BoundedManner = Literal["both", "below", "above"]


def parse_integer(value: Any, name: str) -> int:
    """Convert an argument to an int; raises a TypeError for anything but integers, also for floats."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, it wants an integer") from None


def parse_shape(shape: Any, name: str = "shape", *, open_ended: bool = False) -> tuple[Any, ...]:
    """Check a shape and return it as a tuple; with `open_ended`, a size may be None for any size."""
    try:
        sizes = tuple(None if open_ended and size is None else operator.index(size) for size in shape)
    except TypeError:
        raise TypeError(f"{name} is {shape!r}, it wants a sequence of integers") from None
    if any(size is not None and size < 0 for size in sizes):
        raise ValueError(f"{name} {sizes} has a negative size")
    return sizes


class Space(abc.ABC, Generic[SpaceDataT, _SpaceBDeviceT, _SpaceBDTypeT, _SpaceBDRNGT]):
    """The description of one value; see the module's docstring.

    Spaces of the same structure, dtype and bounds on the same backend are equal and have the same hash, whatever
    their device.

    Parameters
    ----------
    backend
        The library of the arrays.
    shape, dtype
        The shape and dtype of the array; None for kinds whose values are not single arrays.
    device
        The device of the arrays; None for any.

    Raises
    ------
    ValueError
        `shape` has a negative size, or no backend has this name.
    TypeError
        `shape` is no sequence of integers, or `backend` is none.

    Examples
    --------
    >>> space = BoxSpace("numpy", -1.0, 1.0, "float32", shape=(3,))
    >>> rng, value = space.sample(np.random.default_rng(0))
    >>> space.contains(value)
    True
    >>> space.to("torch").contains(space.data_to(value, "torch"))
    True
    """

    backend: ComputeBackend
    dtype: Any

    def __init__(
        self,
        backend: BackendLike,
        shape: tuple[int, ...] | None = None,
        device: _SpaceBDeviceT | None = None,
        dtype: _SpaceBDTypeT | None = None,
    ) -> None:
        self.backend = backend = parse_backend(backend)
        backend.check_device(device)
        self.dtype = dtype
        self._shape = None if shape is None else parse_shape(shape)
        self._device = device

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of a value; None if values have no shape or different shapes."""
        return self._shape

    @property
    def device(self) -> _SpaceBDeviceT | None:
        """The device of the values; None for the backend's default."""
        return self._device

    @staticmethod
    def abbr_device(spaces: Iterable[Space]) -> Any:
        """The common device of the spaces; None if they differ."""
        # get each device once: a composite space computes it from its children
        devices = [(space.backend, space.device) for space in spaces]
        if not devices or not all(backend.same_device(device, devices[0][1]) for backend, device in devices):
            return None
        return devices[0][1]

    # -- implemented by every kind -------------------------------------------------------------------------

    @abc.abstractmethod
    def to(self, backend: BackendLike | None = None, device: Any = None) -> Any:
        """Return the space on another backend or device.

        Parameters
        ----------
        backend, device
            The new backend and device; by default they do not change.

        Returns
        -------
        Space
            The space; the space itself if nothing changes.
        """

    @abc.abstractmethod
    def data_to(self, data: SpaceDataT, backend: BackendLike | None = None, device: Any = None) -> Any:
        """Convert a value of this space to a value of `self.to(backend, device)`.

        Parameters
        ----------
        data
            The value.
        backend, device
            The new backend and device; by default they do not change.

        Returns
        -------
        value
            The value; it may share memory with `data` as `ComputeBackend.from_numpy` documents.
        """

    @abc.abstractmethod
    def sample(self, rng: _SpaceBDRNGT, **kwargs: Any) -> tuple[_SpaceBDRNGT, SpaceDataT]:
        """Draw a random value; the same state of the generator gives the same value.

        Parameters
        ----------
        rng
            The generator.
        **kwargs
            Options of a kind of space.

        Returns
        -------
        tuple
            The new generator, and the value.
        """

    @abc.abstractmethod
    def create_empty(self) -> SpaceDataT:
        """Make a value of the right structure, shape and dtype with arbitrary contents, to be written to."""

    @abc.abstractmethod
    def is_bounded(self, manner: BoundedManner = "both") -> bool:
        """Whether every number in a value has a finite bound below, above, or on both sides."""

    @abc.abstractmethod
    def contains(self, x: Any) -> bool:
        """Whether `x`, any object, is a value of this space. Never raises."""

    def is_in(self, x: Any) -> bool:
        """Whether `x` is a value of this space or a batch of values, like `is_in` of TorchRL's specs.

        Mappings count as dicts, and a batch may have any number of leading axes.
        """
        from .space_utils import batch_space

        x = _as_dicts(x)
        leaf_space, leaf = self, x
        while isinstance(leaf, dict) and leaf and hasattr(leaf_space, "spaces"):
            key = next(iter(leaf))
            if key not in leaf_space.spaces:
                return False
            leaf_space, leaf = leaf_space.spaces[key], leaf[key]
        shape = tuple(getattr(leaf, "shape", ()))
        space = self
        for length in reversed(shape[: max(0, len(shape) - len(leaf_space.shape or ()))]):
            space = batch_space(space, length)
        return space.contains(x)

    @abc.abstractmethod
    def get_repr(
        self,
        abbreviate: bool = False,
        include_backend: bool = True,
        include_device: bool = True,
        include_dtype: bool = True,
    ) -> str:
        """Format the space as text."""

    def is_subspaceeq(self, other: Any) -> bool:
        """Whether every value of this space is a value of `other`. Backend and dtype must be the same."""
        raise NotImplementedError(f"{type(self).__name__} must define is_subspaceeq to be compared")

    def _key(self) -> tuple[Any, ...]:
        """A hashable value that is equal for equal spaces of one class."""
        raise NotImplementedError(f"{type(self).__name__} must define _key to be compared")

    # -- comparison and text -------------------------------------------------------------------------------

    def is_subspace(self, other: Any) -> bool:
        """Whether this space is a proper subspace of `other`."""
        return self.is_subspaceeq(other) and not other.is_subspaceeq(self)

    def __contains__(self, x: Any) -> bool:
        return self.contains(x)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return NotImplemented
        return self.backend is other.backend and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self.backend.simplified_name, self._key()))

    def __repr__(self) -> str:
        return self.get_repr()

    def __str__(self) -> str:
        return self.get_repr(abbreviate=True, include_dtype=False)

    # -- helpers of the kinds ------------------------------------------------------------------------------

    def _is_on(self, backend: ComputeBackend | None, device: Any) -> bool:
        """Whether `to(backend, device)` changes nothing."""
        if backend is not None and backend is not self.backend:
            return False
        return device is None or (self.device is not None and self.backend.same_device(device, self.device))

    def _backend_repr(self, include_backend: bool, include_device: bool) -> str:
        backend = f", backend={self.backend}" if include_backend else ""
        return backend + (f", device={self.device}" if include_device and self.device is not None else "")

    def __copy__(self) -> Self:
        copied = self.__class__.__new__(self.__class__)
        copied.__dict__.update(self.__dict__)
        return copied


def _as_dicts(value: Any) -> Any:
    """Convert all mappings in a value to dicts."""
    return {key: _as_dicts(child) for key, child in value.items()} if isinstance(value, Mapping) else value
