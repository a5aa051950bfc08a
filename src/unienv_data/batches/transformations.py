"""A view of a batch through a transformation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import DictSpace, Space
from unienv_interface.space.space_utils import batch_size_data, batch_space
from unienv_interface.transformations import DataTransformation, IdentityTransformation
from unienv_interface.transformations.space_mapping import SpaceMapping

from ..base.common import BatchBase, BatchT, resolve_index
from ..base.index import is_single
from ..base.nested import Columns, column_paths, columns_under, nested_item
from ..base.windows import Limits, WindowQuery, Windows, merge_axes, split_axis
from ._view import BatchView, QueriesBelow


class TransformedBatch(BatchView[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A batch whose samples go through a transformation when they are read, and through its inverse when written.

    Parameters
    ----------
    batch
        The samples; it stays open when the view is closed.
    transformation
        Transforms samples, one or many at a time. The view can be written if the transformation has an inverse. Reading
        then returns the written values, as far as the inverse is exact.
    metadata_transformation
        Transforms metadata; None leaves metadata unchanged.

    Raises
    ------
    TypeError
        The transformation of metadata does not result in a `DictSpace`.

    Examples
    --------
    >>> small = TransformedBatch(buffer, DictIncludeKeyTransformation(["obs", "action"]))
    >>> sorted(small.get_at(0))
    ['action', 'obs']
    """

    def __init__(
        self,
        batch: BatchBase,
        transformation: DataTransformation,
        metadata_transformation: DataTransformation | None = None,
    ) -> None:
        self.transformation = transformation
        self.metadata_transformation = None if batch.single_metadata_space is None else metadata_transformation
        self._samples = _Mappings(transformation, batch.single_space)
        self._metadata: _Mappings | None = None
        metadata_space = batch.single_metadata_space
        if metadata_space is not None and self.metadata_transformation is not None:
            self._metadata = _Mappings(self.metadata_transformation, metadata_space)
            target = self._metadata.of(None).target_space
            if not isinstance(target, DictSpace):
                raise TypeError(f"{metadata_transformation!r} makes {target!r} of metadata, it must make a DictSpace")
            metadata_space = target
        super().__init__(batch, self._samples.of(None).target_space, metadata_space)
        self._columns: dict[tuple[Any, ...], tuple[tuple[Any, ...], _Mappings]] = {}
        self._queries = QueriesBelow(lambda query: replace(query, nested_keys=self._column(query.nested_keys)[0]))

    def _column(self, keys: tuple[Any, ...]) -> tuple[tuple[Any, ...], _Mappings]:
        """Return the keys to read from the batch for the field under `keys`, and the transformation of that data."""
        column = self._columns.get(keys)
        if column is None:
            column = self._columns[keys] = self._make_column(keys)
        return column

    def _make_column(self, keys: tuple[Any, ...]) -> tuple[tuple[Any, ...], _Mappings]:
        source = self.batch.single_space
        above, columns = columns_under(keys)
        wanted = [above] if columns is None else [(*above, *path) for path in columns.paths()]
        narrowed = self.transformation.narrow(source, wanted) if wanted else ([], IdentityTransformation())
        if narrowed is None:
            return (), self._samples
        every = column_paths(source)
        needed = {path for path in every for start in narrowed[0] if path[: len(start)] == tuple(start)}
        if len(needed) == len(every) or not (needed or isinstance(source, DictSpace)):
            return (), self._samples
        below = Columns.of_paths(path for path in every if path in needed)
        return (below,), _Mappings(narrowed[1], below.of(source))

    @property
    def is_mutable(self) -> bool:  # type: ignore[override]
        """Whether samples can be written: the batch below can be, and the transformation has an inverse."""
        return self.batch.is_mutable and self.transformation.has_inverse

    # -- reading ---------------------------------------------------------------------------------------------

    def get_at(self, idx: Any = ...) -> Any:
        return self.get_column_at((), idx)

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self.get_column_at_with_metadata((), idx)

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        index = resolve_index(self.backend, idx, len(self))
        below, samples = self._column(tuple(nested_keys))
        data = self.batch.get_column_at(below, index) if below else self.batch.get_at(index)
        return nested_item(samples.of(_count(index)).forward(data), nested_keys)

    def get_column_at_with_metadata(self, nested_keys: Sequence[Any], idx: Any) -> tuple[Any, dict[str, Any] | None]:
        index = resolve_index(self.backend, idx, len(self))
        below, samples = self._column(tuple(nested_keys))
        batch = self.batch
        both = batch.get_column_at_with_metadata(below, index) if below else batch.get_at_with_metadata(index)
        data, metadata = self._forward(samples, both, _count(index))
        return nested_item(data, nested_keys), metadata

    def _forward(
        self, samples: _Mappings, both: tuple[Any, dict[str, Any] | None], count: int | None
    ) -> tuple[Any, dict[str, Any] | None]:
        data, metadata = both
        if metadata is not None and self._metadata is not None:
            metadata = self._metadata.of(count).forward(metadata)
        return samples.of(count).forward(data), metadata

    def read_windows(self, positions: np.ndarray, query: WindowQuery, limits: Limits | None = None) -> Windows:
        return self.read_column_windows(positions, (query,), limits)[0]

    def read_column_windows(
        self, positions: np.ndarray, queries: Sequence[WindowQuery], limits: Limits | None = None
    ) -> list[Windows]:
        read = self.batch.read_column_windows(positions, self._queries.of(queries), limits)
        return [self._forward_windows(query, windows) for query, windows in zip(queries, read, strict=True)]

    def _forward_windows(self, query: WindowQuery, windows: Windows) -> Windows:
        data, valid, metadata, _ = windows
        shape, backend = valid.shape, self.batch.backend
        data = merge_axes(backend, data, shape)
        metadata = None if metadata is None else merge_axes(backend, metadata, shape)
        data, metadata = self._forward(self._column(query.nested_keys)[1], (data, metadata), valid.size)
        if metadata is not None:
            metadata = split_axis(self.backend, metadata, shape)
        data = nested_item(split_axis(self.backend, data, shape), query.nested_keys)
        return windows._replace(data=data, metadata=metadata)

    # -- writing ---------------------------------------------------------------------------------------------

    def set_at(self, idx: Any, value: Any) -> None:
        below = resolve_index(self.backend, idx, len(self))
        self.batch.set_at(below, self._backward("set_at", value, None if is_single(idx) else batch_size_data(value)))

    def append(self, value: Any) -> None:
        self.batch.append(self._backward("append", value, None))

    def extend(self, value: Any) -> None:
        self.batch.extend(self._backward("extend", value, batch_size_data(value)))

    def remove_at(self, idx: Any) -> None:
        self.batch.remove_at(resolve_index(self.backend, idx, len(self)))

    def _backward(self, verb: str, value: Any, count: int | None) -> Any:
        if not self.transformation.has_inverse:
            under = type(self.batch).__name__
            raise TypeError(
                f"{verb}: {self.transformation!r} has no inverse: change the {under} under it, its `batch`, instead"
            )
        return self._samples.of(count).backward(value)


def _count(below: Any) -> int | None:
    return None if isinstance(below, int) else len(below)


class _Mappings:
    """A transformation bound to the space of one value, and to the space of a batch of the last size."""

    def __init__(self, transformation: DataTransformation, single_space: Space) -> None:
        self._transformation, self._single_space = transformation, single_space
        self._single = SpaceMapping(transformation, single_space, None)
        self._last: tuple[int, SpaceMapping] | None = None

    def of(self, count: int | None) -> SpaceMapping:
        """Return the mapping for a batch of `count` values, or for one value if `count` is None."""
        if count is None:
            return self._single
        last = self._last
        if last is None or last[0] != count:
            mapping = SpaceMapping(self._transformation, batch_space(self._single_space, count), None)
            last = self._last = (count, mapping)
        return last[1]
