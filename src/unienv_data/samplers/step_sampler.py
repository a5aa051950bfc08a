"""Mini-batches of single samples."""

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

from ..base._index import is_single, resolve_index
from ..base.common import BatchBase, BatchT
from ..base.sampling import BatchSampler, Direct, Form, IndexBatch, Pipeline, drawn_state
from ._ahead import Ahead, InThread
from ._moving import Mover
from .index_sampler import IndexSampler
from .uniform_samplers import RandomSampler


class StepSampler(
    BatchSampler[
        BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType, BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType
    ]
):
    """Mini-batches of `batch_size` samples of a batch, drawn at random or epoch by epoch.

    Which samples `sample` draws is up to `sampler`, by default every one with the same probability. What a given one
    says of them (see its `info`) is in the metadata of `sample_with_metadata`, together with their `index`. Epochs are
    over all samples whatever the sampler.

    With `prefetch=k` a thread fetches up to k batches while the last one is used; they are as the data was then. With a
    `device` batches are moved there. With `pin_memory` (PyTorch) they pass through page-locked memory, or without a
    device stay in it.
    """

    def __init__(
        self,
        data: BatchBase,
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
        self._tells = sampler is not None  # metadata say what the sampler does
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
        self._ahead = self._new_ahead()
        super().__init__(single_space, metadata_space, batch_size)
        if seed is not None:
            self.manual_seed(seed)

    @property
    def data_rng(self) -> np.random.Generator:
        return self.sampler.rng

    @data_rng.setter
    def data_rng(self, rng: np.random.Generator) -> None:
        self.sampler.rng = rng

    def manual_seed(self, seed: int) -> None:
        super().manual_seed(seed)
        self.sampler.manual_seed(seed)
        self._ahead.clear()

    # -- drawing and fetching --------------------------------------------------------------------------------

    def draw_new(self) -> IndexBatch:
        return self.sampler.sample(self.data, self.batch_size)

    def _sample(self, form: Form) -> Any:
        if not self.prefetch:
            return self.fetch(self.draw(), form)
        _, batch = self._ahead.next(self.draw, form)  # type: ignore[misc] # draws never end
        return batch

    def fetch(self, drawn: IndexBatch, form: Form) -> Any:
        if self._mover is not None and form == "get_at":
            return self._mover.read(self.data, drawn.index)
        return super().fetch(drawn, form)

    @property
    def reader(self) -> BatchBase:
        return self.data

    def finish(self, batch: Any, drawn: IndexBatch, form: Form) -> Any:
        if self._mover is not None:
            batch = self._mover.in_form(batch, len(drawn.index), form)
        if not self._tells or not form.endswith("with_metadata"):
            return batch
        data, metadata = batch
        return data, {**(metadata or {}), **self._info(drawn)}

    def make_pipeline(self) -> Pipeline:
        return self._new_ahead() if self.prefetch else Direct(self)

    def _new_ahead(self) -> Ahead:
        return Ahead(self._submit, self.prefetch)

    def _submit(self, drawn: IndexBatch, form: Form) -> InThread:
        if self._threads is None or self._process != os.getpid():
            self._threads, self._process = ThreadPoolExecutor(1, "unienv-prefetch"), os.getpid()
        return InThread(self._threads, functools.partial(self.fetch, drawn, form))

    # -- what the index sampler says -------------------------------------------------------------------------

    def _info(self, drawn: IndexBatch) -> dict[str, Any]:
        backend, device = self.backend, self.device
        columns = {"index": drawn.index, **drawn.info}
        if self._index_limit is not None:
            for name, column in columns.items():
                if column.dtype.kind == "i" and column.size and column.max() > self._index_limit:
                    raise OverflowError(f"{name} {column.max()} does not fit the integers that {backend} has")
        return {name: backend.from_numpy(column, device=device) for name, column in columns.items()}

    def _make_sampled_metadata_space(self) -> DictSpace | None:
        if not self._tells:
            return super()._make_sampled_metadata_space()
        spaces = {} if self.single_metadata_space is None else dict(self.single_metadata_space.spaces)
        for name, dtype in {"index": np.dtype(np.int64), **self.sampler.info_fields()}.items():
            spaces[name] = _info_space(self.backend, dtype, self.device)
        return batch_space(DictSpace(self.backend, spaces, self.device), self.batch_size)

    # -- as a batch, on the device ---------------------------------------------------------------------------

    def get_at(self, idx: Any) -> Any:
        return self._get(idx, "get_at")

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self._get(idx, "get_at_with_metadata")

    def get_flattened_at(self, idx: Any) -> Any:
        return self._get(idx, "get_flattened_at")

    def get_flattened_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self._get(idx, "get_flattened_at_with_metadata")

    def _get(self, idx: Any, form: Form) -> Any:
        found = getattr(self.data, form)(idx)
        if self._mover is None:
            return found
        count = None if is_single(idx) else len(np.asarray(resolve_index(self.backend, idx, len(self))))
        return self._mover.in_form(found, count, form)

    # -- state and end ---------------------------------------------------------------------------------------

    def take_back(self) -> None:
        self.put_back(self._ahead.drawn())
        self._ahead.clear()

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["undelivered"] = [*map(drawn_state, self._ahead.drawn()), *state["undelivered"]]
        return state

    def _draws_state(self) -> dict[str, Any]:
        return self.sampler.state_dict()

    def _load_draws_state(self, state: Mapping[str, Any]) -> None:
        self.sampler.load_state_dict(state)
        self._ahead.clear()

    def __getstate__(self) -> dict[str, Any]:
        self.take_back()
        return {**self.__dict__, "_threads": None, "_ahead": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._ahead = self._new_ahead()

    def close(self) -> None:
        """End the thread that fetches in advance. The data stays open, and the sampler can still be used."""
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
