"""Storages of an experience replay over a batch: its samples, or the trajectories of a dataset."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unienv_interface.backends.base import ComputeBackend
from unienv_interface.space import DictSpace, validate
from unienv_interface.space.space_utils import batch_space, get_at, reshape_batch_size_in_data
from unienv_interface.space.space_utils.serialization_utils import space_to_json

from ..base.common import BatchBase
from ._episodes import TransitionBatch
from ._saving import read_state, write_state
from ._storage import COPY_INSTEAD, ImmutableDatasetError, SampleStorage
from .tensordicts import (
    Key,
    as_tensors,
    from_buffer,
    from_columns,
    from_nested,
    leaves,
    to_buffer,
    to_nested,
    torch,
)

if TYPE_CHECKING:
    from tensordict import TensorDict, TensorDictBase

_OVERLAY = "overlay"
# The number of samples in memory at a time when a saved buffer is copied.
_CHUNK = 4096


class BatchStorage(SampleStorage):
    """The samples of a batch whose values are arrays in dicts: a replay buffer, a recorded dataset, a view.

    An index is a position in the batch. For a read-only batch, changed and added entries are in an overlay: columns in
    memory, while the batch does not change.

    Parameters
    ----------
    batch
        The samples.
    identity
        A text that identifies a read-only batch, which is saved as a reference.
    is_owned
        Whether the batch is closed with the storage.
    """

    def __init__(self, batch: BatchBase, *, identity: str | None = None, is_owned: bool = False) -> None:
        if not isinstance(batch.single_space, DictSpace):
            raise TypeError(f"samples of {batch.single_space}, an experience replay needs a dict of arrays")
        self.batch, self._identity, self._is_owned = batch, identity, is_owned
        self.is_mutable = batch.is_mutable
        self.capacity = getattr(batch, "capacity", None) if batch.is_mutable else len(batch)
        self._is_torch = batch.backend.simplified_name == "pytorch"
        self._take = _reader_of(batch)
        self._overlay: dict[Key, torch.Tensor] = {}
        self._overlay_numbers = range(0)  # the numbers of the samples in the overlay
        self._shift = 0  # added to the sample numbers of the batch, after they were restored

    def __len__(self) -> int:
        return len(self.batch)

    def get(self, index: int | np.ndarray) -> TensorDict:
        if isinstance(index, int):
            nested, lead = self.batch.get_at(index), torch.Size(())
        else:
            nested, lead = self._take(index), torch.Size((len(index),))
        data = from_nested(nested if self._is_torch else as_tensors(nested), lead)
        if self._overlay:
            self._check_overlay()
            for key, column in self._overlay.items():
                data.set(key, column[index])
        return data

    def _check_overlay(self) -> None:
        """Raise a RuntimeError if another process has written to the batch since entries were set."""
        if self._overlay and self.sample_numbers != self._overlay_numbers:
            raise RuntimeError(
                f"entries were set for the samples {self._overlay_numbers} of a read-only {type(self.batch).__name__}, "
                f"which has {self.sample_numbers} now: set entries only while no process writes to the batch"
            )
        self._overlay_numbers = self.sample_numbers

    def get_column(self, key: Key, index: np.ndarray) -> torch.Tensor:
        if key in self._overlay:
            self._check_overlay()
            return self._overlay[key][index]
        return torch.as_tensor(self.batch.get_column_at(key, index))

    def select(self, batch: BatchBase, index: np.ndarray, identity: str | None) -> BatchStorage:
        """Make the storage of a batch of the samples at these indices, with their entries of the overlay."""
        other = BatchStorage(batch, identity=identity)
        other._set_overlay({key: column[index] for key, column in self._overlay.items()})
        return other

    # -- writing ---------------------------------------------------------------------------------------------

    def set_column(self, key: Key, index: np.ndarray, value: torch.Tensor) -> None:
        if self.is_mutable:
            data = self.get(index)
            data.set(key, value)
            self.set(index, data)
            return
        self._check_overlay()
        if key not in self._overlay:
            self._overlay[key] = self.get_column(key, np.arange(len(self))).clone()
        self._overlay[key][index] = value
        self.revision += 1

    def add_column(self, key: Key, value: torch.Tensor) -> None:
        if self.is_mutable:
            raise ValueError(
                f"{'/'.join(key)}: a {type(self.batch).__name__} has fixed entries. For a copy that takes more: "
                f"{COPY_INSTEAD}"
            )
        self._check_overlay()
        self._overlay[key] = value.clone()
        self.revision += 1

    def _set_overlay(self, columns: dict[Key, torch.Tensor]) -> None:
        self._overlay, self._overlay_numbers = columns, self.sample_numbers
        self.revision += 1

    def set(self, index: np.ndarray, data: TensorDictBase) -> None:
        if self.is_mutable:
            self.batch.set_at(index, self._as_values(data))
            self.revision += 1
        else:
            super().set(index, data)

    def _as_values(self, data: TensorDictBase) -> Any:
        """Convert the data to values of the batch."""
        nested = to_nested(data)
        return nested if self._is_torch else _as_arrays(nested, self.batch.backend)

    def extend(self, data: TensorDictBase, count: int) -> np.ndarray:
        self._check_mutable()
        self.batch.extend(self._as_values(data))
        self.revision += 1
        return np.arange(max(0, len(self) - count), len(self))

    def clear(self) -> None:
        self._check_mutable()
        self.batch.clear()  # type: ignore[attr-defined]
        self.revision += 1

    def replace(self, data: TensorDictBase, numbers: range | None = None) -> None:
        if self.is_mutable:
            self._refill(data, None if numbers == self.sample_numbers else [(0, len(data))], numbers)
            return
        if not data.batch_dims or len(data) != len(self):
            raise ValueError(f"samples of shape {tuple(data.batch_size)}, the dataset has {len(self)} steps")
        recorded = {key: torch.as_tensor(self.batch.get_column_at(key, np.arange(1))) for key in self._recorded()}
        columns = dict(leaves(data))
        if missing := recorded.keys() - columns.keys():
            raise ValueError(f"{'/'.join(min(missing))} is missing, samples of the dataset have this entry")
        for key, wanted in recorded.items():
            value = columns[key]
            if (value.dtype, value.shape[1:]) != (wanted.dtype, wanted.shape[1:]):
                raise ValueError(
                    f"{'/'.join(key)}: {value.dtype} of shape {tuple(value.shape[1:])}, in the dataset it is "
                    f"{wanted.dtype} of shape {tuple(wanted.shape[1:])}"
                )
        self._set_overlay({})
        every = np.arange(len(self))
        changed = {
            key: value.clone()
            for key, value in columns.items()
            if key not in recorded or not torch.equal(value, self.get_column(key, every))
        }
        self._set_overlay(changed)

    def _refill(self, data: TensorDictBase, episodes: list[tuple[int, int]] | None, numbers: range | None) -> None:
        """Replace the samples of the buffer, as closed `episodes`; with None, overwrite the samples in place."""
        if not data.batch_dims or (self.capacity is not None and len(data) > self.capacity):
            raise ValueError(f"samples of shape {tuple(data.batch_size)}, the storage has room for {self.capacity}")
        values = self._as_values(data)
        validate(batch_space(self.batch.single_space, len(data)), values)
        if episodes is None:
            self.batch.set_at(slice(None), values)
        else:
            self.clear()
            _add_episodes(self.batch, values, len(data), episodes)
        self._number_from(numbers)
        self.revision += 1

    def _number_from(self, numbers: range | None) -> None:
        """Restore the numbers of samples, so that a sampler's priorities stay with them."""
        if numbers is not None and len(numbers) == len(self):
            self._shift = numbers.start - self.batch.sample_numbers.start

    def _recorded(self) -> list[Key]:
        """Return the keys of the batch's entries, without the overlay."""
        nested = self.batch.get_at(np.zeros(1, np.int64))
        return [key for key, _ in leaves(from_nested(as_tensors(nested), torch.Size((1,))))]

    def _check_mutable(self) -> None:
        if not self.is_mutable:
            raise ImmutableDatasetError(
                f"{type(self.batch).__name__} cannot be written to. For a copy that can: {COPY_INSTEAD}"
            )

    # -- as a source of index samplers -----------------------------------------------------------------------

    @property
    def sample_numbers(self) -> range:
        numbers = self.batch.sample_numbers
        return range(numbers.start + self._shift, numbers.stop + self._shift)

    def numbers_at(self, index: np.ndarray) -> np.ndarray:
        return index + self.sample_numbers.start

    def episodes_of(self, positions: Any) -> Any:
        return self.batch.episodes_of(positions)

    # -- saving ----------------------------------------------------------------------------------------------

    def dumps(self, folder: Path) -> dict[str, Any]:
        folder.mkdir()
        if self.is_mutable:
            numbers = self.sample_numbers
            self.batch.dumps(folder / "buffer")  # type: ignore[attr-defined]
            return {**self._reference(), "numbers": [numbers.start, numbers.stop]}
        description, buffer = to_buffer(from_columns(self._overlay, torch.Size([len(self)])))
        write_state(folder / _OVERLAY, {**description, "buffer": buffer})
        return self._reference()

    def _reference(self) -> dict[str, Any]:
        """Return the values by which `_check_reference` recognizes a state of this batch."""
        return {
            "kind": "batch" if self.is_mutable else "dataset",
            "identity": self._identity,
            "length": len(self),
            "space": space_to_json(self.batch.single_space),
        }

    def _check_reference(self, saved: dict[str, Any]) -> None:
        present = self._reference()
        if saved.get("kind") != present["kind"]:
            raise ValueError(f"the saved samples are of a {saved.get('kind')!r}, this replay has a {present['kind']}")
        if saved["space"] != present["space"]:
            raise ValueError("the saved samples have another space: make the replay with the same batch as before")
        if not self.is_mutable and (saved["identity"], saved["length"]) != (present["identity"], present["length"]):
            raise ValueError("the saved state belongs to another dataset, or to another version of this one")

    def loads(self, folder: Path, description: dict[str, Any]) -> None:
        self._check_reference(description)
        if self.is_mutable:
            from ..replay_buffer import ReplayBuffer

            self.clear()
            with ReplayBuffer.load_from(folder / "buffer", backend=self.batch.backend) as saved:
                if saved.lanes > 1:
                    _add_steps(self.batch, saved.get_at, len(saved), saved.get_segments() or [])
                else:
                    self.batch.extend_from(saved, chunk_size=_CHUNK)
                self._number_from(range(*description["numbers"]) if "numbers" in description else saved.sample_numbers)
        else:
            state = read_state(folder / _OVERLAY)
            self._set_overlay(dict(leaves(from_buffer(state, state["buffer"]))))
        self.revision += 1

    def state_dict(self) -> dict[str, Any]:
        if self.is_mutable:
            return {**super().state_dict(), **self._reference(), "episodes": self.batch.get_segments()}
        overlay = [(list(key), column.clone()) for key, column in self._overlay.items()]
        return {**self._reference(), "overlay": overlay}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._check_reference(state)
        if not self.is_mutable:
            self._set_overlay({tuple(key): column.clone() for key, column in state["overlay"]})
        elif state["samples"] is None:
            self.clear()
        else:
            numbers = range(*state["numbers"])
            data = from_nested(state["samples"], torch.Size((len(numbers),)))
            episodes = state.get("episodes")
            self._refill(data, [(0, len(numbers))] if episodes is None else episodes, numbers)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_take"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._take = _reader_of(self.batch)

    def close(self) -> None:
        self._overlay = {}
        if self._is_owned:
            self.batch.close()

    def __repr__(self) -> str:
        return f"BatchStorage({type(self.batch).__name__} of {len(self)})"


def _reader_of(batch: BatchBase) -> Callable[[np.ndarray], Any]:
    return batch.take if isinstance(batch, TransitionBatch) else batch.get_at


def _add_episodes(buffer: Any, values: Any, count: int, episodes: list[tuple[int, int]]) -> None:
    """Add samples to an empty buffer, as closed episodes; the samples behind these form an open episode."""
    space = buffer.single_space
    if getattr(buffer, "lanes", 1) > 1:
        _add_steps(buffer, functools.partial(get_at, space, values), count, episodes)
        return
    for start, stop in episodes:
        buffer.extend(get_at(space, values, slice(start, stop)))
    for index in range(episodes[-1][1] if episodes else 0, count):
        buffer.append(get_at(space, values, index))


def _add_steps(buffer: Any, read: Callable[[slice], Any], count: int, episodes: list[tuple[int, int]]) -> None:
    """Add vector steps to an empty buffer with lanes."""
    lanes = buffer.lanes
    ended = np.zeros(count, bool)
    ended[[range(start, stop, lanes)[-1] for start, stop in episodes]] = True
    size = max(1, _CHUNK // lanes) * lanes
    for start in range(0, count, size):
        chunk = slice(start, min(start + size, count))
        steps = ((chunk.stop - start) // lanes, lanes)
        values = reshape_batch_size_in_data(buffer.backend, read(chunk), (chunk.stop - chunk.start,), steps)
        buffer.extend_lanes(values, ended[chunk].reshape(steps))


def _as_arrays(nested: Any, backend: ComputeBackend) -> Any:
    if isinstance(nested, dict):
        return {key: _as_arrays(value, backend) for key, value in nested.items()}
    return backend.from_numpy(nested.numpy())


# -- trajectories ------------------------------------------------------------------------------------------


class TrajectoryStorage(SampleStorage):
    """The trajectories of a dataset in order, in batches with the axes [trajectories, time].

    A trajectory ends at the end of an episode, and at a step that was terminated or truncated. Behind its end all
    entries are zero. Two entries are added: `traj_ids` is the number of the trajectory, and `mask` is true for its
    steps. If the dataset itself has masks, under ("mask", "info"), the mask of the steps is ("mask", "valid").
    """

    is_mutable = False

    def __init__(self, steps: BatchStorage) -> None:
        batch = steps.batch
        if not isinstance(batch, TransitionBatch):
            raise TypeError(f"split_trajs of a {type(batch).__name__}, it needs the steps of a recorded dataset")
        self._steps = steps
        self._ends = batch.rows.trajectory_ends()
        self._starts = np.concatenate(([0], self._ends[:-1]))
        self._longest = int((self._ends - self._starts).max())
        self.capacity, self.inner_batch = len(self._ends), (self._longest,)
        has_masks = any(key[0] == "mask" for key in steps.entries())
        self._mask_key: Key = ("mask", "valid") if has_masks else ("mask",)

    def __len__(self) -> int:
        return len(self._ends)

    def _steps_of(self, index: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
        """Return the steps of trajectories, padded with the last step, and which are valid; both [n, time]."""
        steps = self._starts[index][:, None] + np.arange(self._longest)
        ends = self._ends[index][:, None]
        return np.minimum(steps, ends - 1), torch.from_numpy(steps < ends)

    def _added_column(self, key: Key, index: np.ndarray, mask: torch.Tensor) -> torch.Tensor | None:
        """Return the column of `mask` or `traj_ids`; None for other keys."""
        if key == self._mask_key:
            return mask
        return torch.from_numpy(index)[:, None] * mask if key == ("traj_ids",) else None

    def get(self, index: int | np.ndarray) -> TensorDict:
        if isinstance(index, int):
            return self.get(np.array([index]))[0]
        steps, mask = self._steps_of(index)
        data = self._steps.get(steps.reshape(-1))
        padding = ~mask.reshape(-1)
        columns: dict[Key, torch.Tensor] = {}
        for key, value in leaves(data):
            padded = value.clone(memory_format=torch.contiguous_format)
            padded[padding] = 0
            columns[key] = padded.reshape(len(index), self._longest, *value.shape[1:])
        columns[self._mask_key], columns[("traj_ids",)] = mask, torch.from_numpy(index)[:, None] * mask
        return from_columns(columns, torch.Size((len(index), self._longest)))

    def get_column(self, key: Key, index: np.ndarray) -> torch.Tensor:
        steps, mask = self._steps_of(index)
        added = self._added_column(key, index, mask)
        if added is not None:
            return added
        column = self._steps.get_column(key, steps.reshape(-1)).clone()
        column[~mask.reshape(-1)] = 0
        return column.reshape(len(index), self._longest, *column.shape[1:])

    def set_column(self, key: Key, index: np.ndarray, value: torch.Tensor) -> None:
        steps, mask = self._steps_of(index)
        added = self._added_column(key, index, mask)
        if added is None:
            self._steps.set_column(key, steps[mask.numpy()], value[mask])
            self.revision += 1
        elif not torch.equal(added, value):
            raise ImmutableDatasetError(f"{'/'.join(key)} identifies the steps of a trajectory: it cannot be set")

    def add_column(self, key: Key, value: torch.Tensor) -> None:
        _, mask = self._steps_of(np.arange(len(self)))
        self._steps.add_column(key, value[mask])
        self.revision += 1

    def extend(self, data: TensorDictBase, count: int) -> np.ndarray:
        return self._steps.extend(data, count)

    def clear(self) -> None:
        self._steps.clear()

    def replace(self, data: TensorDictBase, numbers: range | None = None) -> None:
        wanted = (len(self), self._longest)
        if tuple(data.batch_size) != wanted:
            raise ValueError(f"samples of shape {tuple(data.batch_size)}, the trajectories have {wanted}")
        _, mask = self._steps_of(np.arange(len(self)))
        added = (self._mask_key, ("traj_ids",))
        steps = {key: value[mask] for key, value in leaves(data) if key not in added}
        self._steps.replace(from_columns(steps, torch.Size([int(mask.sum())])))
        self.revision += 1

    def dumps(self, folder: Path) -> dict[str, Any]:
        return self._steps.dumps(folder)

    def loads(self, folder: Path, description: dict[str, Any]) -> None:
        self._steps.loads(folder, description)
        self.revision += 1

    def state_dict(self) -> dict[str, Any]:
        return self._steps.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps.load_state_dict(state)
        self.revision += 1

    def close(self) -> None:
        self._steps.close()

    def __repr__(self) -> str:
        return f"TrajectoryStorage({len(self)} trajectories of up to {self._longest} steps)"
