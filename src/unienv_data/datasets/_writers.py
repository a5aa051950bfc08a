"""Where new samples go: over the oldest ones, or nowhere."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ._storage import SampleStorage


class Writer(abc.ABC):
    """Puts samples into a storage and says where they lie."""

    #: The number of samples written through `add` and `extend`.
    write_count = 0

    @abc.abstractmethod
    def write(self, storage: SampleStorage, data: Any, count: int) -> np.ndarray:
        """Write a batch of samples and return their indices."""

    def empty(self, empty_write_count: bool = True) -> None:
        """The storage was emptied."""
        if empty_write_count:
            self.write_count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"writer": type(self).__name__, "write_count": self.write_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("writer") != type(self).__name__:
            raise ValueError(f"the state is that of {state.get('writer')!r}, this is a {type(self).__name__}")
        self.write_count = int(state["write_count"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RoundRobinWriter(Writer):
    """New samples follow the last ones; a full storage drops its oldest sample for each."""

    def write(self, storage: SampleStorage, data: Any, count: int) -> np.ndarray:
        index = storage.extend(data, count)
        self.write_count += count
        return index


class ImmutableDatasetWriter(Writer):
    """For recorded datasets, which nothing is added to."""

    def write(self, storage: SampleStorage, data: Any, count: int) -> np.ndarray:
        raise PermissionError(
            "this is a recorded dataset, nothing can be added to it. For a copy that can be written to: "
            "ExperienceReplay(storage=TensorDictStorage(max_size)), and extend that with data[:]; "
            "for a changed copy on disk: data.preprocess(fn, dest=path)"
        )
