"""`UnionSpace`: values of one of several spaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ...backends.base import BDeviceType, BDtypeType, BRNGType
from ...backends.serialization import BackendLike, parse_backend
from ..mismatch import at_path, describe_mismatch, join_path
from ..space import BoundedManner, Space


class UnionSpace(Space[tuple[int, Any], BDeviceType, BDtypeType, BRNGType]):
    """Pairs of the index of an alternative and a value of this alternative.

    Parameters
    ----------
    backend
        The library of the arrays.
    spaces
        The alternatives, at least one.
    device
        The device of the arrays; None for any.

    Raises
    ------
    ValueError
        `spaces` is empty, or an alternative is on another backend.
    TypeError
        An alternative is no space.

    Examples
    --------
    >>> space = UnionSpace("numpy", [BinarySpace("numpy", ()), TextSpace("numpy", 8)])
    >>> space.contains((1, "left"))
    True
    """

    spaces: tuple[Space, ...]

    def __init__(self, backend: BackendLike, spaces: Iterable[Space], device: Any = None) -> None:
        backend = parse_backend(backend)
        alternatives = tuple(spaces)
        if not alternatives:
            raise ValueError("a UnionSpace wants at least one alternative")
        for index, child in enumerate(alternatives):
            if not isinstance(child, Space):
                raise TypeError(f"{index}: {type(child).__name__}, the alternatives of a UnionSpace are spaces")
            if child.backend is not backend:
                raise ValueError(f"{index}: backend {child.backend}, the UnionSpace wants {backend}")
        if device is not None:
            alternatives = tuple(child.to(device=device) for child in alternatives)
        super().__init__(backend, device=device if device is not None else self.abbr_device(alternatives))
        self.spaces = alternatives

    def to(self, backend: BackendLike | None = None, device: Any = None) -> UnionSpace:
        moved = [child.to(backend, device) for child in self.spaces]
        if all(new is old for new, old in zip(moved, self.spaces, strict=True)):
            return self
        return UnionSpace(backend or self.backend, moved)

    def data_to(self, data: tuple[int, Any], backend: BackendLike | None = None, device: Any = None) -> Any:
        index, value = data
        return (index, self.spaces[index].data_to(value, backend, device))

    def sample(self, rng: BRNGType, **kwargs: Any) -> tuple[BRNGType, tuple[int, Any]]:
        rng, drawn = self.backend.random.random_discrete_uniform((), 0, len(self.spaces), rng=rng)
        index = int(drawn)
        rng, value = self.spaces[index].sample(rng, **kwargs)
        return rng, (index, value)

    def create_empty(self) -> tuple[int, Any]:
        return (0, self.spaces[0].create_empty())

    def is_bounded(self, manner: BoundedManner = "both") -> bool:
        return all(child.is_bounded(manner) for child in self.spaces)

    def contains(self, x: Any) -> bool:
        return describe_mismatch(self, x) is None

    def is_subspaceeq(self, other: Any) -> bool:
        return (
            isinstance(other, UnionSpace)
            and self.backend is other.backend
            and len(self.spaces) == len(other.spaces)
            and all(mine.is_subspaceeq(theirs) for mine, theirs in zip(self.spaces, other.spaces, strict=True))
        )

    def _key(self) -> tuple[Any, ...]:
        return self.spaces

    def __getitem__(self, index: int) -> Space:
        return self.spaces[index]

    def __iter__(self) -> Iterator[Space]:
        return iter(self.spaces)

    def __len__(self) -> int:
        return len(self.spaces)

    def get_repr(
        self,
        abbreviate: bool = False,
        include_backend: bool = True,
        include_device: bool = True,
        include_dtype: bool = True,
    ) -> str:
        suffix = self._backend_repr(include_backend, include_device)
        inner = " | ".join(child.get_repr(abbreviate, False, False, include_dtype) for child in self.spaces)
        return f"{'Union' if abbreviate else 'UnionSpace'}({inner}{suffix})"


@describe_mismatch.register
def _(space: UnionSpace, x: Any, path: str = "") -> str | None:
    if not isinstance(x, tuple) or len(x) != 2:
        return at_path(path, f"{type(x).__name__}, the space wants a pair of an index and a value")
    index, value = x
    if not isinstance(index, (int, np.integer)) or isinstance(index, bool) or not 0 <= index < len(space.spaces):
        return at_path(path, f"alternative {index!r}, the space has 0 to {len(space.spaces) - 1}")
    return describe_mismatch(space.spaces[index], value, join_path(path, index))
