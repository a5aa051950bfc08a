"""The base class of batches: samples of one space, read by index."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from typing_extensions import Self, TypeVar

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType, ComputeBackend
from unienv_interface.space import DictSpace, Space
from unienv_interface.space.row_layout import Rows
from unienv_interface.space.space_utils import (
    batch_size_data,
    batch_space,
    concatenate,
    flatten_data,
    unflatten_data,
)
from unienv_interface.utils.lazy import lazy_exports

from .encoded_frames import EncodedFrames
from .index import IndexableType, convert_index_to_backendarray, is_single, resolve_index
from .nested import nested_item, path_keys, select_columns
from .windows import (
    EpisodeMarks,
    Episodes,
    Limits,
    WindowQuery,
    Windows,
    padding_of,
    parse_offsets,
    split_axis,
    window_frames,
)

__all__ = ["BatchBase", "BatchT", "IndexableType", "WrapperBatchT", "convert_index_to_backendarray", "resolve_index"]

BatchT = TypeVar("BatchT", default=Any)
WrapperBatchT = TypeVar("WrapperBatchT", default=Any)


class BatchBase(abc.ABC, Generic[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """Samples of one space by index, oldest first.

    A subclass implements `__len__` and `get_at`, and `get_at_with_metadata` if it has metadata. A subclass that can be
    written sets `is_mutable` and implements `set_at`, `extend` and `remove_at` as far as they make sense. All other
    methods have defaults over these. A subclass that keeps flat data overrides the flattened forms too.

    An int index gives one sample, every other index (slice, Ellipsis, list, integer array, mask) a batch with a leading
    axis. The samples that a method returns do not change afterwards.

    Parameters
    ----------
    single_space
        The space of one sample.
    single_metadata_space
        The space of the metadata of one sample; None without metadata.

    Examples
    --------
    >>> class Squares(BatchBase):
    ...     is_mutable = False
    ...
    ...     def __len__(self):
    ...         return 100
    ...
    ...     def get_at(self, idx):
    ...         positions = resolve_index(self.backend, idx, len(self))
    ...         return np.asarray(positions, np.float32) ** 2
    """

    is_mutable: bool = True
    #: Whether single columns can be read without the rest of the samples.
    has_column_access: bool = False
    #: Whether `read_windows` resolves negative positions and checks the range of positions.
    checks_positions: bool = False
    #: Whether `get_segments` gives the episodes of the samples.
    is_segment_aware: bool = False

    single_space: Space
    single_metadata_space: DictSpace | None

    def __init__(self, single_space: Space, single_metadata_space: DictSpace | None = None) -> None:
        self.single_space = single_space
        self.single_metadata_space = single_metadata_space
        self._last_batched_space: tuple[int, Space] = (-1, single_space)

    @property
    def backend(self) -> ComputeBackend:
        """The backend of the samples and of `single_space`."""
        return self.single_space.backend

    @property
    def device(self) -> Any:
        """The device of the samples and of `single_space`."""
        return self.single_space.device

    # -- methods that subclasses implement -----------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def get_at(self, idx: IndexableType | BArrayType) -> BatchT:
        """Fetch samples in their structured form.

        Raises
        ------
        IndexError
            An index is out of range.
        TypeError
            The index is no integer, slice, Ellipsis, list, integer array or mask.
        """

    def get_at_with_metadata(self, idx: IndexableType | BArrayType) -> tuple[BatchT, dict[str, Any] | None]:
        """Fetch structured samples together with optional metadata."""
        return self.get_at(idx), None

    def set_at(self, idx: IndexableType | BArrayType, value: BatchT) -> None:
        """Overwrite existing samples using structured data.

        Raises
        ------
        ValueError
            A value does not fit the space; the message has its path, the value and the rule.
        TypeError
            The batch is read-only.
        """
        raise self._unsupported("set_at")

    def extend(self, value: BatchT) -> None:
        """Append a batched block of samples."""
        raise self._unsupported("extend")

    def remove_at(self, idx: IndexableType | BArrayType) -> None:
        """Remove one or more samples from the batch."""
        raise self._unsupported("remove_at")

    def get_segments(self) -> list[tuple[int, int]] | None:
        """Return the closed episodes as ranges [start, stop) of indices, oldest first; None if not known."""
        return None

    def read_rows(self, positions: np.ndarray) -> Rows | None:
        """Read samples as a copy of their rows in `RowLayout(single_space)`; None if the batch has no rows."""
        return None

    @property
    def sample_numbers(self) -> range:
        """The numbers of the samples, oldest first: index i has number `sample_numbers[i]`.

        A sample keeps its number while its index falls as older ones are dropped.
        """
        return range(len(self))

    @property
    def renumbered(self) -> int:
        """How often samples got other numbers, because samples other than the oldest were removed."""
        return 0

    def episodes_of(self, positions: np.ndarray) -> Episodes | None:
        """Return the episode of each sample; None if episodes are not known.

        An open episode reaches to the last sample; samples between two closed episodes form a separate episode.

        Parameters
        ----------
        positions
            The samples: int64 on the host, in range.
        """
        return None

    def episode_marks(self, positions: np.ndarray) -> EpisodeMarks | None:
        """Return whether the episodes of samples are complete at their beginning and end; None if not known.

        Parameters
        ----------
        positions
            The samples: int64 on the host, in range.
        """
        return None

    @property
    def may_grow(self) -> bool:
        """Whether the number of samples may still change."""
        return True

    def fingerprint(self) -> str | None:
        """Return a text that changes whenever the samples on disk change, equal in every process; None if unknown."""
        return None

    def close(self) -> None:
        """Release the resources of this batch; a batch under it stays open."""

    # -- methods with defaults -----------------------------------------------------------------------------

    def append(self, value: BatchT) -> None:
        """Append one sample."""
        self.extend(self._as_batch(value))

    def get_flattened_at(self, idx: IndexableType | BArrayType) -> BArrayType:
        """Fetch samples as flattened backend arrays."""
        return self._flatten(self.get_at(idx), idx)

    def get_flattened_at_with_metadata(
        self, idx: IndexableType | BArrayType
    ) -> tuple[BArrayType, dict[str, Any] | None]:
        """Fetch flattened samples together with optional per-sample metadata."""
        data, metadata = self.get_at_with_metadata(idx)
        return self._flatten(data, idx), metadata

    def set_flattened_at(self, idx: IndexableType | BArrayType, value: BArrayType) -> None:
        """Overwrite existing samples using flattened data."""
        self.set_at(idx, self._unflatten(value))

    def append_flattened(self, value: BArrayType) -> None:
        """Append one flattened sample to the batch."""
        self.append(self._unflatten(value))

    def extend_flattened(self, value: BArrayType) -> None:
        """Append a batched block of flattened samples."""
        self.extend(self._unflatten(value))

    def extend_from(self, other: BatchBase, chunk_size: int = 8, tqdm: bool = False) -> None:
        """Copy data from another batch in bounded-size chunks.

        Parameters
        ----------
        other
            The batch to copy from, of the same space.
        chunk_size
            The number of samples in memory at a time.
        tqdm
            Show a progress bar.

        Raises
        ------
        ValueError
            `chunk_size` is below 1.
        """
        if chunk_size < 1:
            raise ValueError(f"chunk_size is {chunk_size}, it must be at least 1")
        for chunk in chunks_of(len(other), chunk_size, show_progress=tqdm):
            self.extend(other.get_at(chunk))

    def get_slice(
        self, idx: IndexableType | BArrayType
    ) -> BatchBase[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]:
        """Create a lazy view over a subset of indices."""
        from ..batches.subindex_batch import SubIndexedBatch

        return SubIndexedBatch(self, idx)

    def get_column_at(self, nested_keys: Sequence[Any], idx: IndexableType | BArrayType) -> Any:
        """Fetch one nested field of samples; where the storage allows it, only that field is read.

        The last key may be a `Columns`, which selects several fields of a dict (see `select`).

        Raises
        ------
        KeyError
            The field does not exist.
        """
        return nested_item(self.get_at(idx), nested_keys)

    def get_column_at_with_metadata(
        self, nested_keys: Sequence[Any], idx: IndexableType | BArrayType
    ) -> tuple[Any, dict[str, Any] | None]:
        """Fetch one nested field of samples together with their metadata."""
        if self.single_metadata_space is None:
            return self.get_column_at(nested_keys, idx), None
        data, metadata = self.get_at_with_metadata(idx)
        return nested_item(data, nested_keys), metadata

    def encoded_frames(self, nested_keys: Sequence[Any], idx: Any) -> EncodedFrames | None:
        """Return the positions of a column's frames in video files, in order.

        None unless video files contain all of the frames, exactly as they are read. A writer that drops samples may
        delete their files.
        """
        return None

    def get_column(self, nested_keys: str | Sequence[Any]) -> BatchBase:
        """Create a lazy view over a nested field inside each sample, by its keys or its path, such as "obs/cam"."""
        from ..batches.subitem_batch import SubItemBatch

        return SubItemBatch(self, path_keys(self.single_space, nested_keys))

    def select(self, columns: str | Iterable[str | Sequence[Any]]) -> BatchBase:
        """Create a lazy view with some columns of each sample; other columns are not read.

        Parameters
        ----------
        columns
            Paths such as "action" or "obs/state", paths of dicts such as "obs", which select all their columns, and
            patterns such as "obs/cam_*".

        Raises
        ------
        ValueError
            An entry names no column.

        Examples
        --------
        >>> small = buffer.select(["action", "obs/state"])
        >>> small.get_at(0).keys()
        dict_keys(['action', 'obs'])
        """
        from ..batches.subitem_batch import SubItemBatch

        return SubItemBatch(self, (select_columns(self.single_space, columns),))

    # -- windows -------------------------------------------------------------------------------------------

    def get_windows_at(
        self, positions: Any, offsets: Any, *, nested_keys: Sequence[Any] = (), fill: bool = True
    ) -> tuple[Any, np.ndarray]:
        """Fetch windows: for each of B samples, the T samples at fixed offsets from it in its episode.

        Parameters
        ----------
        positions
            The B samples: any index but an int.
        offsets
            The T offsets: sorted integers without repetition, with 0 (the sample itself) among them.
        nested_keys
            Read only the field under these keys.
        fill
            Whether an invalid frame repeats the next valid frame towards offset 0; otherwise its values are arbitrary.

        Returns
        -------
        data
            The frames, with leading axes (B, T).
        valid
            A host array of booleans (B, T): whether a frame lies in the episode of its sample or, if episodes are not
            known, inside the batch.

        Raises
        ------
        IndexError
            A position is out of range, or `positions` is an int.
        ValueError
            The offsets are not sorted integers with 0 among them.
        """
        query = WindowQuery(parse_offsets(self.backend, offsets), tuple(nested_keys), fill=fill)
        index = resolve_index(self.backend, positions, len(self))
        if isinstance(index, int):
            raise IndexError(f"positions is {positions!r}, an int: must be an array, a slice or a list")
        return self.read_windows(index, query)[:2]

    def read_windows(self, positions: np.ndarray, query: WindowQuery, limits: Limits | None = None) -> Windows:
        """Fetch the windows of a query, which can be used for many reads.

        A batch with a faster way, or whose samples move while they are read, overrides this method.

        Parameters
        ----------
        positions
            The samples: int64 on the host, in range unless the batch `checks_positions`.
        query
            The description of the windows.
        limits
            Ranges of samples that the windows must not leave, in addition to the episodes.
        """
        bounds = self.episode_bounds(positions, within_episodes=query.within_episodes)
        frames, valid = window_frames(positions, query, bounds, limits, len(self))
        data, metadata = self._fetch(frames.reshape(-1), query)
        if metadata is not None:
            metadata = split_axis(self.backend, metadata, frames.shape)
        padding = None
        if query.tells_padding:
            padding = padding_of(query, bounds, limits, self.episode_marks(positions), valid)
        return Windows(split_axis(self.backend, data, frames.shape), valid, metadata, padding)

    def read_column_windows(
        self, positions: np.ndarray, queries: Sequence[WindowQuery], limits: Limits | None = None
    ) -> list[Windows]:
        """Fetch the windows of the same samples for several queries, such as one query for each column.

        A batch whose samples move while they are read overrides this method and reads one snapshot.
        """
        return [self.read_windows(positions, query, limits) for query in queries]

    def applies_mask(self, mask_keys: tuple[Any, ...]) -> bool:
        """Whether `read_windows` applies the mask of a query that compares the column under these keys."""
        return False

    def _fetch(self, index: Any, query: WindowQuery) -> tuple[Any, dict[str, Any] | None]:
        if query.with_metadata and self.single_metadata_space is not None:
            return self.get_column_at_with_metadata(query.nested_keys, index)
        return self.get_column_at(query.nested_keys, index) if query.nested_keys else self.get_at(index), None

    def episode_bounds(self, positions: np.ndarray, *, within_episodes: bool = True) -> Episodes:
        """Where windows end: the episodes of samples, or all samples where episodes are not known or not wanted."""
        episodes = self.episodes_of(positions) if within_episodes else None
        if episodes is None:
            return Episodes(np.zeros_like(positions), np.full_like(positions, len(self)), 1)
        return episodes

    # -- as a sequence -------------------------------------------------------------------------------------

    def __getitem__(self, idx: Any) -> BatchT:
        return self.get_at(idx)

    def __setitem__(self, idx: Any, value: BatchT) -> None:
        self.set_at(idx, value)

    def __delitem__(self, idx: Any) -> None:
        self.remove_at(idx)

    def __iter__(self) -> Iterator[BatchT]:
        return (self.get_at(index) for index in range(len(self)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- shared --------------------------------------------------------------------------------------------

    def _unsupported(self, verb: str) -> TypeError:
        reason = "does not support it" if self.is_mutable else "is read-only"
        return TypeError(f"{verb}: {type(self).__name__} {reason}")

    def _batched_space(self, count: int) -> Space:
        known, space = self._last_batched_space
        if known != count:
            space = batch_space(self.single_space, count)
            self._last_batched_space = (count, space)
        return space

    def _as_batch(self, value: BatchT) -> Any:
        """One sample as a batch of one."""
        return concatenate(self.single_space, [value])

    def _flatten(self, data: Any, idx: Any) -> Any:
        if is_single(idx):
            return flatten_data(self.single_space, data)
        return flatten_data(self._batched_space(batch_size_data(data) or 0), data, start_dim=1)

    def _unflatten(self, value: Any) -> Any:
        if value.ndim == 1:
            return unflatten_data(self.single_space, value)
        return unflatten_data(self._batched_space(value.shape[0]), value, start_dim=1)


def chunks_of(length: int, size: int, *, show_progress: bool) -> Iterator[slice]:
    """Yield slices of at most `size` of `length` samples, in order, with a progress bar if wanted."""
    starts: Any = range(0, length, size)
    if show_progress:
        from tqdm import tqdm

        starts = tqdm(starts, unit="chunk")
    for start in starts:
        yield slice(start, min(start + size, length))


# Documented names of `sampling`, which imports this module: resolved at first use.
if TYPE_CHECKING:
    from .sampling import BatchSampler as BatchSampler
    from .sampling import SamplerArrayType as SamplerArrayType
    from .sampling import SamplerBatchT as SamplerBatchT
    from .sampling import SamplerDeviceType as SamplerDeviceType
    from .sampling import SamplerDtypeType as SamplerDtypeType
    from .sampling import SamplerRNGType as SamplerRNGType
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "unienv_data.base.sampling": (
                "BatchSampler",
                "SamplerArrayType",
                "SamplerBatchT",
                "SamplerDeviceType",
                "SamplerDtypeType",
                "SamplerRNGType",
            )
        },
    )
