"""`TupleSpace`: tuples of values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...backends.base import BDeviceType, BDtypeType, BRNGType
from ...backends.serialization import BackendLike
from ..mismatch import at_path
from ..space import Space
from ._composite import CompositeSpace


class TupleSpace(CompositeSpace[tuple[Any, ...], BDeviceType, BDtypeType, BRNGType]):
    """Tuples with one value per space.

    Parameters
    ----------
    backend
        The library of the arrays.
    spaces
        The space of each position.
    device
        The device of the arrays; None for any.

    Raises
    ------
    ValueError
        A child is on another backend.
    TypeError
        A child is no space.

    Examples
    --------
    >>> space = TupleSpace("numpy", [BinarySpace("numpy", ()), TextSpace("numpy", 8)])
    >>> space.contains((np.array(True), "left"))
    True
    """

    spaces: tuple[Space, ...]

    def __init__(self, backend: BackendLike, spaces: Iterable[Space], device: Any = None) -> None:
        super().__init__(backend, device=device)
        self.spaces = tuple(self._adopt(key, child, device) for key, child in enumerate(spaces))

    def child_items(self) -> Sequence[tuple[int, Space]]:
        return list(enumerate(self.spaces))

    def with_children(self, children: Iterable[Space], backend: BackendLike | None = None) -> TupleSpace:
        return TupleSpace(backend or self.backend, children)

    def child_values(self, data: tuple[Any, ...]) -> Sequence[Any]:
        return data

    def build_value(self, values: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(values)

    def structure_mismatch(self, x: Any, path: str) -> str | None:
        if not isinstance(x, tuple):
            return at_path(path, f"{type(x).__name__}, the space wants a tuple of {len(self)}")
        if len(x) != len(self):
            return at_path(path, f"a tuple of {len(x)}, the space wants {len(self)}")
        return None

    def is_subspaceeq(self, other: Any) -> bool:
        return (
            isinstance(other, TupleSpace)
            and self.backend is other.backend
            and len(self) == len(other)
            and all(mine.is_subspaceeq(theirs) for mine, theirs in zip(self.spaces, other.spaces, strict=True))
        )

    def __getitem__(self, index: int) -> Any:
        return self.spaces[index]

    def __iter__(self) -> Iterator[Space]:
        return iter(self.spaces)

    def get_repr(
        self,
        abbreviate: bool = False,
        include_backend: bool = True,
        include_device: bool = True,
        include_dtype: bool = True,
    ) -> str:
        suffix = self._backend_repr(include_backend, include_device)
        inner = ", ".join(child.get_repr(abbreviate, False, False, include_dtype) for child in self.spaces)
        return f"{'Tuple' if abbreviate else 'TupleSpace'}(({inner}){suffix})"
