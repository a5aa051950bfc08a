"""`BatchedSpace`: batches of values that are not arrays of one shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...backends.base import BDeviceType, BDtypeType, BRNGType
from ...backends.serialization import BackendLike
from ..mismatch import at_path, describe_mismatch, join_path
from ..space import BoundedManner, Space, parse_shape
from .dynamic_box import sample_size


class BatchedSpace(Space[np.ndarray, BDeviceType, BDtypeType, BRNGType]):
    """NumPy object arrays whose entries are values of one space.

    This is the batch of values that no numeric array holds: texts, unions, arrays of different shapes.

    Parameters
    ----------
    single_space
        The space of one entry.
    batch_shape
        The shape of the arrays; a size of None stands for any size.

    Raises
    ------
    TypeError
        `single_space` is no space, or `batch_shape` no sequence of sizes.
    ValueError
        `batch_shape` has a negative size.

    Examples
    --------
    >>> BatchedSpace(TextSpace("numpy", 8), (3,)).contains(np.array(["a", "b", "c"], object))
    True
    """

    def __init__(self, single_space: Space, batch_shape: Sequence[int | None]) -> None:
        if not isinstance(single_space, Space):
            raise TypeError(f"single_space is {type(single_space).__name__}, a BatchedSpace wants a space")
        super().__init__(single_space.backend, device=single_space.device)
        self.single_space = single_space
        self.batch_shape: tuple[int | None, ...] = parse_shape(batch_shape, "batch_shape", open_ended=True)
        if None not in self.batch_shape:
            self._shape = self.batch_shape

    def _map(self, data: np.ndarray, fn: Callable[[Any], Any]) -> np.ndarray:
        return object_array(data.shape, (fn(item) for item in data.flat))

    def to(self, backend: BackendLike | None = None, device: Any = None) -> BatchedSpace:
        moved = self.single_space.to(backend, device)
        return self if moved is self.single_space else BatchedSpace(moved, self.batch_shape)

    def data_to(self, data: np.ndarray, backend: BackendLike | None = None, device: Any = None) -> np.ndarray:
        return self._map(data, lambda item: self.single_space.data_to(item, backend, device))

    def sample(self, rng: BRNGType, **kwargs: Any) -> tuple[BRNGType, np.ndarray]:
        shape = []
        for size in self.batch_shape:
            rng, drawn = (rng, size) if size is not None else sample_size(self.backend, rng, 0, None)
            shape.append(drawn)
        items = []
        for _ in range(int(np.prod(shape, dtype=np.int64))):
            rng, item = self.single_space.sample(rng, **kwargs)
            items.append(item)
        return rng, object_array(shape, items)

    def create_empty(self) -> np.ndarray:
        shape = tuple(size or 0 for size in self.batch_shape)
        count = int(np.prod(shape, dtype=np.int64))
        return object_array(shape, (self.single_space.create_empty() for _ in range(count)))

    def is_bounded(self, manner: BoundedManner = "both") -> bool:
        return self.single_space.is_bounded(manner)

    def contains(self, x: Any) -> bool:
        return describe_mismatch(self, x) is None

    def is_subspaceeq(self, other: Any) -> bool:
        return (
            isinstance(other, BatchedSpace)
            and len(self.batch_shape) == len(other.batch_shape)
            and all(theirs in (None, mine) for mine, theirs in zip(self.batch_shape, other.batch_shape, strict=True))
            and self.single_space.is_subspaceeq(other.single_space)
        )

    def _key(self) -> tuple[Any, ...]:
        return (self.batch_shape, self.single_space)

    def get_repr(
        self,
        abbreviate: bool = False,
        include_backend: bool = True,
        include_device: bool = True,
        include_dtype: bool = True,
    ) -> str:
        inner = self.single_space.get_repr(abbreviate, include_backend, include_device, include_dtype)
        return f"{'Batched' if abbreviate else 'BatchedSpace'}({inner}, batch_shape={self.batch_shape})"


def object_array(shape: Sequence[int], items: Any) -> np.ndarray:
    """Make a NumPy object array from items in C order; an item may be a sequence."""
    array = np.empty(int(np.prod(shape, dtype=np.int64)), dtype=object)
    for position, item in enumerate(items):
        array[position] = item
    return array.reshape(tuple(shape))


@describe_mismatch.register
def _(space: BatchedSpace, x: Any, path: str = "") -> str | None:
    if not isinstance(x, np.ndarray) or x.dtype != object:
        return at_path(path, f"{type(x).__name__}, the space wants a NumPy array of objects")
    fits = x.ndim == len(space.batch_shape) and all(
        size in (None, length) for size, length in zip(space.batch_shape, x.shape, strict=True)
    )
    if not fits:
        return at_path(path, f"shape {x.shape}, the space wants a batch of {space.batch_shape}")
    for index in np.ndindex(x.shape):
        finding = describe_mismatch(space.single_space, x[index], join_path(path, list(index)))
        if finding is not None:
            return finding
    return None
