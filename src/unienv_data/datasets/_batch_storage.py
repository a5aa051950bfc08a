"""A batch as the storage of an experience replay: a replay buffer, a recorded dataset, a view of one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unienv_interface.backends.base import ComputeBackend
from unienv_interface.space import DictSpace
from unienv_interface.space.space_utils.serialization_utils import space_to_json

from ..base.common import BatchBase
from ._storage import SampleStorage
from ._tensordicts import Key, as_tensors, from_nested, leaves, to_nested, torch
from ._transitions import TransitionBatch

if TYPE_CHECKING:
    from tensordict import TensorDict, TensorDictBase

_SAVED = "changed.npz"


class BatchStorage(SampleStorage):
    """The samples of a batch whose values are arrays in dicts. An index is a position in the batch.

    Entries of a batch that cannot be changed itself can be overwritten here: the new column is then kept in memory,
    and what lies under it stays as it is.
    """

    def __init__(self, batch: BatchBase, *, identity: str | None = None) -> None:
        """`identity` tells batches apart that are saved as a mere reference."""
        if not isinstance(batch.single_space, DictSpace):
            raise TypeError(f"samples of {batch.single_space}, an experience replay wants a dict of arrays")
        self.batch, self._identity = batch, identity
        self.is_mutable = batch.is_mutable
        self.capacity = getattr(batch, "capacity", None) if batch.is_mutable else len(batch)
        self._is_torch = batch.backend.simplified_name == "pytorch"
        self._take = batch.take if isinstance(batch, TransitionBatch) else batch.get_at
        self._changed: dict[Key, torch.Tensor] = {}

    def __len__(self) -> int:
        return len(self.batch)

    def get(self, index: int | np.ndarray) -> TensorDict:
        if isinstance(index, int):
            nested, lead = self.batch.get_at(index), torch.Size(())
        else:
            nested, lead = self._take(index), torch.Size((len(index),))
        data = from_nested(nested if self._is_torch else as_tensors(nested), lead)
        for key, column in self._changed.items():
            data.set(key, column[index])
        return data

    def get_column(self, key: Key, index: np.ndarray) -> torch.Tensor:
        if key in self._changed:
            return self._changed[key][index]
        return torch.as_tensor(self.batch.get_column_at(key, index))

    # -- writing ---------------------------------------------------------------------------------------------

    def set_column(self, key: Key, index: np.ndarray, value: torch.Tensor) -> None:
        if self.is_mutable:
            data = self.get(index)
            data.set(key, value)
            self.set(index, data)
            return
        if key not in self._changed:
            self._changed[key] = self.get_column(key, np.arange(len(self))).clone()
        self._changed[key][index] = value
        self.revision += 1

    def set(self, index: np.ndarray, data: TensorDictBase) -> None:
        if self.is_mutable:
            self.batch.set_at(index, self._own(data))
        else:
            for key, value in leaves(data):
                if key != ("index",):
                    self.set_column(key, index, value)
        self.revision += 1

    def _own(self, data: TensorDictBase) -> Any:
        """The data as values of the batch."""
        nested = to_nested(data)
        return nested if self._is_torch else _as_arrays(nested, self.batch.backend)

    def extend(self, data: TensorDictBase, count: int) -> np.ndarray:
        self._check_mutable()
        self.batch.extend(self._own(data))
        self.revision += 1
        return np.arange(max(0, len(self) - count), len(self))

    def clear(self) -> None:
        self._check_mutable()
        self.batch.clear()  # type: ignore[attr-defined]
        self.revision += 1

    def _check_mutable(self) -> None:
        if not self.is_mutable:
            raise PermissionError(
                f"{type(self.batch).__name__} cannot be written to. For a copy that can: "
                f"ExperienceReplay(storage=TensorDictStorage(max_size)), and extend that with data[:]"
            )

    # -- as a source of index samplers -----------------------------------------------------------------------

    @property
    def sample_numbers(self) -> range:
        return getattr(self.batch, "sample_numbers", range(len(self)))

    def numbers_at(self, index: np.ndarray) -> np.ndarray:
        return index + self.sample_numbers.start

    def episodes_of(self, positions: Any) -> Any:
        find = getattr(self.batch, "episodes_of", None)
        return None if find is None else find(positions)

    # -- saving ----------------------------------------------------------------------------------------------

    def dumps(self, folder: Path) -> dict[str, Any]:
        folder.mkdir()
        if self.is_mutable:
            self.batch.dumps(folder / "buffer")  # type: ignore[attr-defined]
        columns = {f"column{number}": column.numpy() for number, column in enumerate(self._changed.values())}
        np.savez(folder / _SAVED, **columns)  # type: ignore[arg-type]
        return {
            "kind": "batch",
            "identity": self._identity,
            "length": len(self),
            "space": space_to_json(self.batch.single_space),
            "changed": [list(key) for key in self._changed],
        }

    def loads(self, folder: Path, description: dict[str, Any]) -> None:
        if description["space"] != space_to_json(self.batch.single_space):
            raise ValueError("what was saved has samples of another space: make the replay as it was made then")
        if self.is_mutable:
            from ..replay_buffer import ReplayBuffer

            self.clear()
            with ReplayBuffer.load_from(folder / "buffer", backend=self.batch.backend) as saved:
                self.batch.extend_from(saved, chunk_size=4096)
        elif (description["identity"], description["length"]) != (self._identity, len(self)):
            raise ValueError("what was saved belongs to another dataset, or to another version of it")
        with np.load(folder / _SAVED, allow_pickle=False) as saved_columns:
            self._changed = {
                tuple(key): torch.from_numpy(saved_columns[f"column{number}"])
                for number, key in enumerate(description["changed"])
            }
        self.revision += 1

    def close(self) -> None:
        self._changed = {}

    def __repr__(self) -> str:
        return f"BatchStorage({type(self.batch).__name__} of {len(self)})"


def _as_arrays(nested: Any, backend: ComputeBackend) -> Any:
    if isinstance(nested, dict):
        return {key: _as_arrays(value, backend) for key, value in nested.items()}
    return backend.from_numpy(nested.numpy())
