"""The base class of samplers, which draw the indices of mini-batches and then fetch their samples.

A sampler fetches a mini-batch in one of four forms. `sample` and its variants draw at random, `epoch_iter` and its
variants yield all samples once, in a random order. Both can be saved and resumed: the state covers the batches that
were handed out, not the batches that were fetched in advance.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol

import numpy as np
from typing_extensions import TypeVar

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.space import DictSpace, Space
from unienv_interface.space.space_utils import batch_space

from .common import BatchBase, BatchT
from .epoch_order import Epoch
from .random_state import fresh_seed, generator_from_state, generator_state, uniform_indices
from .tracing import refuse_trace

SamplerBatchT = TypeVar("SamplerBatchT", default=Any)
SamplerArrayType = TypeVar("SamplerArrayType", default=Any)
SamplerDeviceType = TypeVar("SamplerDeviceType", default=Any)
SamplerDtypeType = TypeVar("SamplerDtypeType", default=Any)
SamplerRNGType = TypeVar("SamplerRNGType", default=Any)

_STATE_VERSION = 1


@dataclass(frozen=True)
class Form:
    """The form of a fetched batch: structured or flat, with or without metadata.

    `read` reads the samples at an index of a batch in this form.
    """

    read: Callable[[BatchBase, Any], Any]
    is_flat: bool = False
    with_metadata: bool = False


STRUCTURED = Form(lambda batch, index: batch.get_at(index))
STRUCTURED_WITH_METADATA = Form(lambda batch, index: batch.get_at_with_metadata(index), with_metadata=True)
FLAT = Form(lambda batch, index: batch.get_flattened_at(index), is_flat=True)
FLAT_WITH_METADATA = Form(
    lambda batch, index: batch.get_flattened_at_with_metadata(index), is_flat=True, with_metadata=True
)


class IndexBatch(NamedTuple):
    """The indices of one batch, as an index sampler draws them.

    Attributes
    ----------
    index
        The indices, int64.
    info
        Further columns by name, with a value for each index.

    Examples
    --------
    >>> index, info = PrioritizedSampler(seed=0).sample(buffer, 256)
    >>> info["weight"].shape
    (256,)
    """

    index: np.ndarray  # type: ignore[assignment] # hides the method of tuples
    info: dict[str, np.ndarray]


#: Draws the next batch; None after the last batch.
Draw = Callable[[], IndexBatch | None]


class Pipeline(Protocol):
    """Fetches batches in the order of the draws, on demand or in advance."""

    def next(self, draw: Draw, form: Form) -> tuple[IndexBatch, Any] | None:
        """Return the next batch in this form, with its indices; None after the last batch.

        If a fetch fails, its error is raised in place of the batch, and the next call continues with the next batch.
        """


class BatchSampler(
    BatchBase[SamplerBatchT, SamplerArrayType, SamplerDeviceType, SamplerDtypeType, SamplerRNGType],
    Generic[
        SamplerBatchT,
        SamplerArrayType,
        SamplerDeviceType,
        SamplerDtypeType,
        SamplerRNGType,
        BatchT,
        BArrayType,
        BDeviceType,
        BDtypeType,
        BRNGType,
    ],
):
    """Read-only batch wrapper that samples mini-batches from another batch.

    A subclass sets `data`, and may override `draw_new`, which draws all indices with the same probability. A sampler is
    itself a batch, with the samples of `data`.

    Parameters
    ----------
    single_space
        The space of one sample.
    single_metadata_space
        The space of the metadata of one sample; None without metadata.
    batch_size
        The number of samples in a mini-batch.

    Raises
    ------
    TypeError, ValueError
        The batch size is no integer, or less than 1.
    RuntimeError
        When drawing: JAX is tracing a function to compile it, which would return the same samples in every call.

    Examples
    --------
    >>> class Sequential(BatchSampler):
    ...     def __init__(self, data, batch_size):
    ...         super().__init__(data.single_space, data.single_metadata_space, batch_size)
    ...         self.data, self.position = data, 0
    ...
    ...     def draw_new(self):
    ...         index = np.arange(self.position, self.position + self.batch_size) % len(self.data)
    ...         self.position += self.batch_size
    ...         return IndexBatch(index, {})
    >>> sampler = Sequential(buffer, 32)
    >>> sampler.sample()["obs"].shape
    (32, 4)
    """

    is_mutable = False
    data: BatchBase
    #: A generator for other random numbers of a subclass.
    rng: Any = None
    #: The generator for indices.
    data_rng: Any = None

    def __init__(
        self, single_space: Space, single_metadata_space: DictSpace | None = None, batch_size: int = 1
    ) -> None:
        super().__init__(single_space, single_metadata_space)
        self.batch_size = parse_batch_size(batch_size)
        self._sampled_metadata_space: tuple[int, DictSpace | None] = (-1, None)
        self._begin_anew(fresh_seed())

    # -- the sampler as a batch ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.data)

    def get_at(self, idx: Any) -> Any:
        return self.read_as(idx, STRUCTURED)

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        both: tuple[Any, dict[str, Any] | None] = self.read_as(idx, STRUCTURED_WITH_METADATA)
        return both

    def get_flattened_at(self, idx: Any) -> Any:
        return self.read_as(idx, FLAT)

    def get_flattened_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        both: tuple[Any, dict[str, Any] | None] = self.read_as(idx, FLAT_WITH_METADATA)
        return both

    def read_as(self, idx: Any, form: Form) -> Any:
        """Read samples of the data in this form."""
        return form.read(self.data, idx)

    def get_segments(self) -> list[tuple[int, int]] | None:
        return self.data.get_segments()

    @property
    def sample_numbers(self) -> range:
        return self.data.sample_numbers

    @property
    def renumbered(self) -> int:
        return self.data.renumbered

    @property
    def sampled_space(self) -> Space:
        """The space of one batch; the last of an epoch may be shorter."""
        return self._batched_space(self.batch_size)

    @property
    def sampled_metadata_space(self) -> DictSpace | None:
        """The space of the metadata of one batch; None without metadata."""
        size, space = self._sampled_metadata_space
        if size != self.batch_size:
            space = self._make_sampled_metadata_space()
            self._sampled_metadata_space = (self.batch_size, space)
        return space

    def _make_sampled_metadata_space(self) -> DictSpace | None:
        single = self.single_metadata_space
        return None if single is None else batch_space(single, self.batch_size)

    # -- drawing -------------------------------------------------------------------------------------------

    def manual_seed(self, seed: int) -> None:
        """Restart the draws and the epochs like a new sampler with this seed."""
        self.data_rng = np.random.default_rng(seed)
        self._begin_anew(seed)

    def _begin_anew(self, seed: int) -> None:
        self._seed = seed
        self._epochs_begun = 0
        self._epoch: Epoch | None = None  # the current epoch
        self._interrupted: Epoch | None = None  # from a loaded state, the next to continue
        self._undelivered: list[IndexBatch] = []  # drawn and not handed out

    def draw(self) -> IndexBatch:
        """Draw the indices of the next batch."""
        return self._undelivered.pop(0) if self._undelivered else self.draw_new()

    def draw_new(self) -> IndexBatch:
        """Draw the indices of a batch that was not drawn before.

        Raises
        ------
        ValueError
            There are no samples.
        """
        length = len(self)
        if not length:
            raise ValueError("the batch has no samples to draw from: add samples first")
        return IndexBatch(uniform_indices(self._generator(), length, self.batch_size), {})

    def _generator(self) -> np.random.Generator:
        if self.data_rng is None:
            self.data_rng = np.random.default_rng(self._seed)
        generator: np.random.Generator = self.data_rng
        return generator

    def put_back(self, drawn: Sequence[IndexBatch]) -> None:
        """Queue drawn batches, to be handed out before any other batch is drawn."""
        self._undelivered = [*drawn, *self._undelivered]

    def take_back(self) -> None:
        """Drop the batches that were fetched in advance; the next draws return their indices again."""

    def sample_index(self) -> SamplerArrayType:
        """Draw the next batch and return its indices as an array of the backend; the batch counts as handed out."""
        refuse_trace("sample_index()")
        backend = self.backend
        return backend.from_numpy(self.draw().index, dtype=backend.default_index_dtype, device=self.device, copy=True)

    # -- random batches ------------------------------------------------------------------------------------

    def sample(self) -> SamplerBatchT:
        """Sample a structured batch."""
        return self._sample_as(STRUCTURED)

    def sample_with_metadata(self) -> tuple[SamplerBatchT, dict[str, Any] | None]:
        """Sample a structured batch together with optional metadata."""
        return self._sample_as(STRUCTURED_WITH_METADATA)

    def sample_flat(self) -> SamplerArrayType:
        """Sample a flattened batch."""
        return self._sample_as(FLAT)

    def sample_flat_with_metadata(self) -> tuple[SamplerArrayType, dict[str, Any] | None]:
        """Sample a flattened batch together with optional metadata."""
        return self._sample_as(FLAT_WITH_METADATA)

    def _sample_as(self, form: Form) -> Any:
        refuse_trace("sample()")
        return self._sample(form)

    def _sample(self, form: Form) -> Any:
        return self.fetch(self.draw(), form)

    def fetch(self, drawn: IndexBatch, form: Form) -> Any:
        """Read the samples of a drawn batch and finish it."""
        return self.finish(form.read(self.source, drawn.index), drawn, form)

    @property
    def source(self) -> BatchBase:
        """The batch that samples are read from, in this process or in workers."""
        return self

    def finish(self, batch: Any, drawn: IndexBatch, form: Form) -> Any:
        """Finish a fetched batch in the caller's process; a subclass may transform it."""
        return batch

    # -- epochs --------------------------------------------------------------------------------------------

    def epoch_iter(self) -> Iterator[SamplerBatchT]:
        """Iterate over one epoch: every sample once, in random order, in batches."""
        return EpochIterator(self, STRUCTURED)

    def epoch_iter_with_metadata(self) -> Iterator[tuple[SamplerBatchT, dict[str, Any] | None]]:
        """Iterate once over shuffled structured batches plus metadata."""
        return EpochIterator(self, STRUCTURED_WITH_METADATA)

    def epoch_flat_iter(self) -> Iterator[SamplerArrayType]:
        """Iterate once over shuffled batches in flattened form."""
        return EpochIterator(self, FLAT)

    def epoch_flat_iter_with_metadata(self) -> Iterator[tuple[SamplerArrayType, dict[str, Any] | None]]:
        """Iterate once over shuffled flattened batches plus metadata."""
        return EpochIterator(self, FLAT_WITH_METADATA)

    def __iter__(self) -> Iterator[SamplerBatchT]:
        return self.epoch_iter()

    def begin_epoch(self) -> Epoch:
        """Begin a new epoch, or continue the epoch of a loaded state."""
        epoch, self._interrupted = self._interrupted, None
        if epoch is None:
            epoch = Epoch(self.sample_numbers, self.renumbered, self._seed, self._epochs_begun)
            self._epochs_begun += 1
        else:
            epoch.adopt(self.sample_numbers)
        self._epoch = epoch
        return epoch

    def end_epoch(self, epoch: Epoch) -> None:
        """Record the end of an epoch."""
        if self._epoch is epoch:
            self._epoch = None

    def make_pipeline(self) -> Pipeline:
        """Make a pipeline that fetches the batches of one epoch."""
        return Direct(self)

    # -- state ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the draws, as plain values and NumPy arrays.

        A sampler over the same data that loads the state continues at the same position: with the next random batch,
        and in `epoch_iter` with the rest of the current epoch, in batches of any size.

        Examples
        --------
        >>> state = sampler.state_dict()
        >>> resumed = StepSampler(buffer, 256)
        >>> resumed.load_state_dict(state)
        """
        epoch = self._epoch or self._interrupted
        epoch_state = None
        if epoch is not None:
            epoch_state = {
                "number": epoch.number,
                "first": epoch.numbers.start,
                "length": len(epoch.numbers),
                "renumbered": epoch.renumbered,
                "position": epoch.position,
            }
        return {
            "version": _STATE_VERSION,
            "seed": self._seed,
            "epochs_begun": self._epochs_begun,
            "epoch": epoch_state,
            "undelivered": [drawn_state(drawn) for drawn in self._undelivered],
            "draws": self._draws_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of the sampler that saved the state.

        Raises
        ------
        ValueError
            The state is of another version, or of another kind of sampler.
        """
        version = state.get("version")
        if version != _STATE_VERSION:
            raise ValueError(f"the sampler state is of version {version!r}, this library reads {_STATE_VERSION}")
        self._load_draws_state(state["draws"])
        self._seed, self._epochs_begun = int(state["seed"]), int(state["epochs_begun"])
        self._epoch = self._interrupted = None
        if state["epoch"] is not None:
            names = ("number", "first", "length", "renumbered", "position")
            number, first, length, renumbered, position = (int(state["epoch"][key]) for key in names)
            self._interrupted = Epoch(range(first, first + length), renumbered, self._seed, number, position)
        self._undelivered = [
            IndexBatch(
                np.asarray(drawn["index"], np.int64), {key: np.asarray(value) for key, value in drawn["info"].items()}
            )
            for drawn in state["undelivered"]
        ]

    def _draws_state(self) -> dict[str, Any]:
        return generator_state(self._generator())

    def _load_draws_state(self, state: Mapping[str, Any]) -> None:
        self.data_rng = generator_from_state(state)


def drawn_state(drawn: IndexBatch) -> dict[str, Any]:
    """Convert a drawn batch for a sampler's state."""
    return {"index": drawn.index, "info": dict(drawn.info)}


class Direct:
    """Fetches each batch on demand, in the caller's thread."""

    def __init__(self, sampler: BatchSampler) -> None:
        self._sampler = sampler

    def next(self, draw: Draw, form: Form) -> tuple[IndexBatch, Any] | None:
        drawn = draw()
        return None if drawn is None else (drawn, self._sampler.fetch(drawn, form))


class EpochIterator(Iterator[Any]):
    """Iterator over the batches of one epoch. After an error in one batch, the next call returns the next batch."""

    def __init__(self, sampler: BatchSampler, form: Form) -> None:
        self._sampler, self._form = sampler, form
        self._batch_size = sampler.batch_size
        self._epoch: Epoch | None = None  # begins with the first `next`
        self._drawn: deque[tuple[np.ndarray, int]] = deque()  # the indices and the position behind them

    def __next__(self) -> Any:
        refuse_trace("next() of an epoch")
        if self._epoch is None:
            epoch = self._sampler.begin_epoch()
            self._drawn_to = epoch.position
            self._pipeline = self._sampler.make_pipeline()
            self._epoch = epoch
        try:
            finished = self._pipeline.next(self._draw, self._form)
        except StopIteration as error:  # would end the epoch silently
            raise RuntimeError("StopIteration while a batch was fetched") from error
        if finished is None:
            self._sampler.end_epoch(self._epoch)
            raise StopIteration
        drawn, batch = finished
        index = None
        while index is not drawn.index:  # earlier batches have failed
            index, self._epoch.position = self._drawn.popleft()
        return batch

    def _draw(self) -> IndexBatch | None:
        epoch: Any = self._epoch
        sampler = self._sampler
        index, stop = epoch.after(self._drawn_to, self._batch_size, sampler.sample_numbers, sampler.renumbered)
        if not len(index):
            return None
        self._drawn.append((index, stop))
        self._drawn_to = stop
        return IndexBatch(index, {})


def parse_batch_size(batch_size: Any) -> int:
    """Check a batch size as a user gives it.

    Parameters
    ----------
    batch_size
        The batch size.

    Returns
    -------
    int
        The batch size.

    Raises
    ------
    TypeError
        This is no integer.
    ValueError
        The batch size is below 1.
    """
    try:
        size = operator.index(batch_size)
    except TypeError:
        raise TypeError(f"batch_size is {batch_size!r}, it wants an integer") from None
    if size < 1:
        raise ValueError(f"batch_size is {size}, it must be at least 1")
    return size
