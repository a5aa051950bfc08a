"""What is done to samples on their way out, and undone on their way in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tensordict import TensorDictBase

Transform = Callable[["TensorDictBase"], "TensorDictBase"]


class _Entry(NamedTuple):
    transform: Transform
    is_inverted: bool


class TransformChain:
    """Transforms in order. One that is inverted runs forward when samples are written, and back when they are read.

    The way back is the transform's method `inv`; of one without it, there is none.
    """

    def __init__(self, transform: Transform | None = None) -> None:
        self._entries: list[_Entry] = [] if transform is None else [_Entry(transform, False)]

    def insert(self, index: int, transform: Transform, *, invert: bool) -> None:
        if not callable(transform):
            raise TypeError(f"transform is {type(transform).__name__}, wanted a function of a TensorDict")
        if not -len(self) - 1 <= index <= len(self):
            raise IndexError(f"index {index} for {len(self)} transforms")
        self._entries.insert(index if index >= 0 else len(self) + 1 + index, _Entry(transform, invert))

    def on_read(self, data: Any) -> Any:
        for transform, is_inverted in self._entries:
            data = _backward(transform, data) if is_inverted else transform(data)
        return data

    def on_write(self, data: Any) -> Any:
        for transform, is_inverted in reversed(self._entries):
            data = transform(data) if is_inverted else _backward(transform, data)
        return data

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> Transform:
        return self._entries[index].transform

    def __iter__(self) -> Iterator[Transform]:
        return (entry.transform for entry in self._entries)

    def __repr__(self) -> str:
        return f"TransformChain({', '.join(map(repr, self))})"


def _backward(transform: Transform, data: Any) -> Any:
    back = getattr(transform, "inv", None)
    return data if back is None else back(data)
