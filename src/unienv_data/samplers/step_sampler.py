"""The sampler of mini-batches of single samples."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType, ComputeBackend
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace, Space
from unienv_interface.space.space_utils import batch_space
from unienv_interface.utils.channel import no_interrupt

from ..base.common import BatchBase, BatchT
from ..base.index import is_single, resolve_index
from ..base.sampling import STRUCTURED, BatchSampler, Direct, Form, IndexBatch, Pipeline, drawn_state
from ._prefetch import Prefetcher, ThreadFetch
from .index_sampler import IndexSampler
from .uniform_samplers import RandomSampler


class StepSampler(
    BatchSampler[
        BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType, BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType
    ]
):
    """Mini-batches of `batch_size` samples of a batch, drawn at random or epoch by epoch.

    An epoch contains every sample once; the `sampler` does not change this.

    Parameters
    ----------
    data
        The samples: a replay buffer, a view, a dataset. It stays open when the sampler is closed.
    batch_size
        The number of samples in a mini-batch.
    seed
        The same seed and the same calls give the same batches. By default the seed comes from the system.
    device
        The device to move batches to; by default they stay on the device of the data.
    sampler
        Draws the indices of `sample`, by default all with the same probability. The metadata of
        `sample_with_metadata` have the columns of its `info`, and the `index` and `number` of each sample; the number
        of a sample never changes, while its index does when older samples are dropped.
    prefetch
        The number of batches that a thread fetches in advance; they have the data of the time of the fetch.
    pin_memory
        Whether batches of PyTorch tensors are copied through page-locked memory; without a `device` they stay there.

    Raises
    ------
    ValueError
        The batch size is less than 1, `prefetch` is negative, or `pin_memory` is used with another backend.

    Examples
    --------
    >>> sampler = StepSampler(buffer, batch_size=256, seed=0)
    >>> batch = sampler.sample()
    >>> for batch in sampler.epoch_iter():
    ...     learn(batch)
    """

    def __init__(
        self,
        data: BatchBase[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType],
        batch_size: int,
        seed: int | None = None,
        device: Any = None,
        *,
        sampler: IndexSampler | None = None,
        prefetch: int = 0,
        pin_memory: bool = False,
    ) -> None:
        if prefetch < 0:
            raise ValueError(f"prefetch is {prefetch}, it must be 0 or more")
        self.data = data
        self.sampler = RandomSampler() if sampler is None else sampler
        self.prefetch = prefetch
        index_dtype = _index_dtype(data.backend)
        self._index_limit = np.iinfo(index_dtype).max if index_dtype.itemsize < 8 else None
        single_space, metadata_space = data.single_space, data.single_metadata_space
        moves = device is not None and not data.backend.same_device(device, data.device)
        self._mover: Mover | None = None
        if moves or pin_memory:
            self._mover = Mover(single_space, metadata_space, device if moves else None, pinned=pin_memory)
        if moves:
            single_space = single_space.to(device=device)
            metadata_space = None if metadata_space is None else metadata_space.to(device=device)
        self._threads: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._prefetcher = self._new_prefetcher()
        super().__init__(single_space, metadata_space, batch_size)
        self._info_device = single_space.device  # cached: a composite space asks all its children
        if seed is not None:
            self.manual_seed(seed)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: batches of {self.batch_size} of {self.data!r}>"

    @property
    def data_rng(self) -> np.random.Generator:
        """The generator that draws the indices."""
        return self.sampler.rng

    @data_rng.setter
    def data_rng(self, rng: np.random.Generator) -> None:
        self.sampler.rng = rng

    def manual_seed(self, seed: int) -> None:
        super().manual_seed(seed)
        self.sampler.manual_seed(seed)
        self._prefetcher.clear()

    # -- drawing and fetching --------------------------------------------------------------------------------

    def draw_new(self) -> IndexBatch:
        return self.sampler.sample(self.data, self.batch_size)

    def _sample(self, form: Form) -> Any:
        if not self.prefetch:
            return self.fetch(self.draw(), form)
        _, batch = self._prefetcher.next(self.draw, form)  # type: ignore[misc] # draws never end
        return batch

    def fetch(self, drawn: IndexBatch, form: Form) -> Any:
        if self._mover is not None and form is STRUCTURED:
            return self._mover.read(self.data, drawn.index)
        if form.with_metadata:  # first: a writer may drop samples during the read
            drawn = self._with_numbers(drawn)
        batch = form.read(self.data, drawn.index)
        return batch if self._mover is None and not form.with_metadata else self.finish(batch, drawn, form)

    @property
    def source(self) -> BatchBase:
        return self.data

    def finish(self, batch: Any, drawn: IndexBatch, form: Form) -> Any:
        if self._mover is not None:
            batch = self._mover.move(batch, len(drawn.index), form)
        if not form.with_metadata:
            return batch
        data, metadata = batch
        return data, {**(metadata or {}), **self._info(self._with_numbers(drawn))}

    def make_pipeline(self) -> Pipeline:
        return self._new_prefetcher() if self.prefetch else Direct(self)

    def _new_prefetcher(self) -> Prefetcher:
        return Prefetcher(self._submit, self.prefetch)

    def _submit(self, drawn: IndexBatch, form: Form) -> ThreadFetch:
        if self._threads is None or self._process != os.getpid():
            self._threads, self._process = ThreadPoolExecutor(1, "unienv-prefetch"), os.getpid()
        return ThreadFetch(self._threads, functools.partial(self.fetch, drawn, form))

    # -- metadata of the drawn samples -----------------------------------------------------------------------

    def _with_numbers(self, drawn: IndexBatch) -> IndexBatch:
        """Add the number of each sample to the info of a drawn batch."""
        if "number" in drawn.info:
            return drawn
        return IndexBatch(drawn.index, {"number": drawn.index + self.data.sample_numbers.start, **drawn.info})

    def _info(self, drawn: IndexBatch) -> dict[str, Any]:
        backend, device = self.backend, self._info_device
        columns = {"index": drawn.index, **drawn.info}
        if self._index_limit is not None:
            for name, column in columns.items():
                if column.dtype.kind == "i" and column.size and column.max() > self._index_limit:
                    raise OverflowError(f"{name} {column.max()} does not fit the integers of {backend}")
        return {name: backend.from_numpy(column, device=device) for name, column in columns.items()}

    def _make_sampled_metadata_space(self) -> DictSpace | None:
        spaces = {} if self.single_metadata_space is None else dict(self.single_metadata_space.spaces)
        int64 = np.dtype(np.int64)
        for name, dtype in {"index": int64, "number": int64, **self.sampler.info_fields()}.items():
            spaces[name] = _info_space(self.backend, dtype, self.device)
        return batch_space(DictSpace(self.backend, spaces, self.device), self.batch_size)

    # -- the sampler as a batch ------------------------------------------------------------------------------

    def read_as(self, idx: Any, form: Form) -> Any:
        batch = form.read(self.data, idx)
        if self._mover is None:
            return batch
        count = None if is_single(idx) else len(np.asarray(resolve_index(self.backend, idx, len(self))))
        return self._mover.move(batch, count, form)

    # -- state and closing -----------------------------------------------------------------------------------

    def take_back(self) -> None:
        with no_interrupt():  # Ctrl-C must not lose or duplicate a drawn batch
            self.put_back(self._prefetcher.drawn())
            self._prefetcher.clear()

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["undelivered"] = [*map(drawn_state, self._prefetcher.drawn()), *state["undelivered"]]
        return state

    def _draws_state(self) -> dict[str, Any]:
        return self.sampler.state_dict()

    def _load_draws_state(self, state: Mapping[str, Any]) -> None:
        self.sampler.load_state_dict(state)
        self._prefetcher.clear()

    def __getstate__(self) -> dict[str, Any]:
        self.take_back()
        return {**self.__dict__, "_threads": None, "_prefetcher": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prefetcher = self._new_prefetcher()

    def close(self) -> None:
        """End the prefetch thread. The data stay open, and the sampler can still be used."""
        self.take_back()
        if self._threads is not None and self._process == os.getpid():
            self._threads.shutdown(wait=True, cancel_futures=True)
        self._threads = None


def _info_space(backend: ComputeBackend, dtype: np.dtype, device: Any) -> Space:
    if dtype.kind == "b":
        return BinarySpace(backend, (), device=device)
    if dtype.kind == "f":
        return BoxSpace(backend, 0.0, 1.0, dtype.name, device, shape=())
    return BoxSpace(backend, 0, np.iinfo(_index_dtype(backend)).max, _index_dtype(backend).name, device, shape=())


def _index_dtype(backend: ComputeBackend) -> np.dtype:
    return np.dtype(backend.dtype_name(backend.default_index_dtype))


class Mover:
    """Moves samples of a space, and their metadata, to a device.

    If `pinned`, batches are copied through page-locked memory, and stay there without a device (None). Single samples,
    metadata and leaves other than plain arrays are not. A count of None means one sample, without a leading axis.
    """

    def __init__(self, space: Space, metadata_space: DictSpace | None, device: Any, *, pinned: bool) -> None:
        self._backend, self._device, self._pinned = space.backend, device, pinned
        self._rows = _row_mover(space, device, pinned=pinned)
        self._spaces = _BatchSpaces(space)
        self._metadata_spaces = None if metadata_space is None else _BatchSpaces(metadata_space)

    def move(self, value: Any, count: int | None, form: Form) -> Any:
        """Move data that was read in this form."""
        data, metadata = value if form.with_metadata else (value, None)
        data = self._move_flat(data) if form.is_flat else self._move_data(data, count)
        return (data, self._move_metadata(metadata, count)) if form.with_metadata else data

    def read(self, source: BatchBase, index: np.ndarray) -> Any:
        """Read samples of a source and move them, as rows if the source has rows."""
        rows = None if self._rows is None else source.read_rows(index)
        return self._move_data(source.get_at(index), len(index)) if rows is None else self._rows.move_rows(rows)

    def _move_data(self, batch: Any, count: int | None) -> Any:
        if self._rows is not None and count is not None:
            return self._rows.move(batch, count)
        return self._spaces.of(count).data_to(batch, device=self._device)

    def _move_flat(self, flat: Any) -> Any:
        return self._backend.to_device(flat.pin_memory() if self._pinned else flat, self._device)

    def _move_metadata(self, metadata: dict[str, Any] | None, count: int | None) -> dict[str, Any] | None:
        if metadata is None or self._metadata_spaces is None:
            return metadata
        moved: dict[str, Any] = self._metadata_spaces.of(count).data_to(metadata, device=self._device)
        return moved


class _BatchSpaces:
    """The spaces of batches, of which the last is remembered: most are of one size."""

    def __init__(self, single: Space) -> None:
        self._single = single
        self._last: tuple[int, Space] = (-1, single)

    def of(self, count: int | None) -> Space:
        if count is None:
            return self._single
        if self._last[0] != count:
            self._last = (count, batch_space(self._single, count))
        return self._last[1]


def _row_mover(space: Space, device: Any, *, pinned: bool) -> Any:
    """Make a mover of packed rows; None if batches of the space are moved leaf by leaf."""
    if space.backend.simplified_name != "pytorch":
        if pinned:
            raise ValueError(f"pin_memory is for PyTorch, the data is of backend {space.backend}")
        return None
    from ._pytorch_rows import RowMover

    return RowMover.for_space(space, device, pinned=pinned)
