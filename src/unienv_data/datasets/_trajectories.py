"""Whole trajectories as samples, padded to the length of the longest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ._batch_storage import BatchStorage
from ._storage import SampleStorage
from ._tensordicts import Key, leaves, torch
from ._transitions import TransitionBatch

if TYPE_CHECKING:
    from tensordict import TensorDict, TensorDictBase


class TrajectoryStorage(SampleStorage):
    """The trajectories of a dataset in order; a batch of them has the axes [trajectories, time].

    A trajectory ends where an episode of the dataset does, and where a step was terminated or truncated. What lies
    behind its end is zero, and False in the entry `mask`.
    """

    is_mutable = False

    def __init__(self, steps: BatchStorage) -> None:
        batch = steps.batch
        if not isinstance(batch, TransitionBatch):
            raise TypeError(f"split_trajs of {type(batch).__name__}, wanted the steps of a recorded dataset")
        self._steps = steps
        self._ends = np.unique(np.concatenate((batch.rows.ends, batch.rows.done() + 1)))
        self._ends = self._ends[self._ends > 0]
        self._starts = np.concatenate(([0], self._ends[:-1]))
        self._longest = int((self._ends - self._starts).max())
        self.capacity, self.inner_batch = len(self._ends), (self._longest,)

    def __len__(self) -> int:
        return len(self._ends)

    def _places(self, index: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
        """The steps of trajectories, the last one again behind the end, and which are theirs; both [n, time]."""
        places = self._starts[index][:, None] + np.arange(self._longest)
        ends = self._ends[index][:, None]
        return np.minimum(places, ends - 1), torch.from_numpy(places < ends)

    def get(self, index: int | np.ndarray) -> TensorDict:
        if isinstance(index, int):
            return self.get(np.array([index]))[0]
        places, mask = self._places(index)
        data = self._steps.get(places.reshape(-1))
        padding = ~mask.reshape(-1)
        for key, value in leaves(data):
            value = value.contiguous()
            value[padding] = 0
            data.set(key, value)
        data.set("mask", mask.reshape(-1))
        return data.reshape(len(index), self._longest)

    def get_column(self, key: Key, index: np.ndarray) -> torch.Tensor:
        places, mask = self._places(index)
        if key == ("mask",):
            return mask
        column = self._steps.get_column(key, places.reshape(-1)).clone()
        column[~mask.reshape(-1)] = 0
        return column.reshape(len(index), self._longest, *column.shape[1:])

    def set_column(self, key: Key, index: np.ndarray, value: torch.Tensor) -> None:
        if key == ("mask",):
            raise PermissionError("the mask says which steps there are: it cannot be set")
        places, mask = self._places(index)
        self._steps.set_column(key, places[mask.numpy()], value[mask])
        self.revision += 1

    def set(self, index: np.ndarray, data: TensorDictBase) -> None:
        for key, value in leaves(data):
            if key not in (("mask",), ("index",)):
                self.set_column(key, index, value)

    def extend(self, data: TensorDictBase, count: int) -> np.ndarray:
        return self._steps.extend(data, count)

    def clear(self) -> None:
        self._steps.clear()

    def dumps(self, folder: Path) -> dict[str, Any]:
        return self._steps.dumps(folder)

    def loads(self, folder: Path, description: dict[str, Any]) -> None:
        self._steps.loads(folder, description)

    def close(self) -> None:
        self._steps.close()

    def __repr__(self) -> str:
        return f"TrajectoryStorage({len(self)} trajectories of up to {self._longest} steps)"
