"""`CompositeSpace`, the base class of spaces with child spaces: `DictSpace` and `TupleSpace`.

Rules for composite spaces use four methods: `child_items` and `with_children` take a space apart and build another,
`child_values` and `build_value` do the same with values.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from typing import Any

from typing_extensions import Self

from ...backends.base import BDeviceType, BDtypeType, BRNGType
from ...backends.serialization import BackendLike, parse_backend
from ..mismatch import describe_mismatch, join_path
from ..space import BoundedManner, Space, SpaceDataT


class CompositeSpace(Space[SpaceDataT, BDeviceType, BDtypeType, BRNGType]):
    """A space whose values hold one value per child space.

    Children have a canonical order (sorted keys of a dict), so that equal spaces sample, flatten and pack equally, in
    whatever order their children were given.
    """

    @abc.abstractmethod
    def child_items(self) -> Sequence[tuple[Any, Space]]:
        """The children with their keys, in canonical order."""

    @abc.abstractmethod
    def with_children(self, children: Iterable[Space], backend: BackendLike | None = None) -> Any:
        """Make a space of the same keys with other children, given in canonical order."""

    @abc.abstractmethod
    def child_values(self, data: SpaceDataT) -> Sequence[Any]:
        """The values of the children in a value, in canonical order."""

    @abc.abstractmethod
    def build_value(self, values: Iterable[Any]) -> SpaceDataT:
        """Build a value from the values of the children, given in canonical order."""

    @abc.abstractmethod
    def structure_mismatch(self, x: Any, path: str) -> str | None:
        """Describe why `x` has not the structure of this space, without checking the children; None if it has."""

    @property
    def children(self) -> Sequence[Space]:
        return [child for _, child in self.child_items()]

    @property
    def device(self) -> Any:
        return self._device if self._device is not None else self.abbr_device(self.children)

    def to(self, backend: BackendLike | None = None, device: Any = None) -> Any:
        backend = None if backend is None else parse_backend(backend)
        if self._is_on(backend, device):
            return self
        moved = self.with_children([child.to(backend, device) for child in self.children], backend)
        moved._device = device
        return moved

    def data_to(self, data: SpaceDataT, backend: BackendLike | None = None, device: Any = None) -> Any:
        pairs = zip(self.children, self.child_values(data), strict=True)
        return self.build_value(child.data_to(value, backend, device) for child, value in pairs)

    def sample(self, rng: BRNGType, **kwargs: Any) -> tuple[BRNGType, SpaceDataT]:
        values = []
        for child in self.children:
            rng, value = child.sample(rng, **kwargs)
            values.append(value)
        return rng, self.build_value(values)

    def create_empty(self) -> SpaceDataT:
        return self.build_value(child.create_empty() for child in self.children)

    def is_bounded(self, manner: BoundedManner = "both") -> bool:
        return all(child.is_bounded(manner) for child in self.children)

    def contains(self, x: Any) -> bool:
        return describe_mismatch(self, x) is None

    def _key(self) -> tuple[Any, ...]:
        return tuple(self.child_items())

    def _adopt(self, key: Any, child: Any, device: Any) -> Space:
        """Check the backend of a child space and move it to a device."""
        if not isinstance(child, Space):
            raise TypeError(f"{key}: {type(child).__name__}, the children of a {type(self).__name__} are spaces")
        if child.backend is not self.backend:
            raise ValueError(f"{key}: backend {child.backend}, the {type(self).__name__} wants {self.backend}")
        return child if device is None else child.to(device=device)

    def __len__(self) -> int:
        return len(self.child_items())

    def __copy__(self) -> Self:
        copied = self.with_children(self.children)
        copied._device = self._device
        return copied


@describe_mismatch.register
def _(space: CompositeSpace, x: Any, path: str = "") -> str | None:
    finding = space.structure_mismatch(x, path)
    if finding is not None:
        return finding
    for (key, child), value in zip(space.child_items(), space.child_values(x), strict=True):
        finding = describe_mismatch(child, value, join_path(path, key))
        if finding is not None:
            return finding
    return None
