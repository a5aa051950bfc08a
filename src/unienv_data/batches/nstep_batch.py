"""A view of n-step transitions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType, ComputeBackend
from unienv_interface.space import BoxSpace, Space
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.space import parse_integer
from unienv_interface.space.space_utils import get_at
from unienv_interface.space.spaces import ArraySpace

from ..base.common import BatchBase, BatchT
from ..base.nested import Columns, Keys, column_paths, nested_item, overlap, path_keys, with_nested_item
from ..base.windows import WindowQuery, frames_at
from ._view import BatchView, check_knows_episodes, positions_below

# The first and the last frames of windows (B, n).
_FIRST: tuple[Any, Any] = (slice(None), 0)
_LAST: tuple[Any, Any] = (slice(None), -1)


class NStepBatch(BatchView[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType]):
    """A view in which each sample is the transition of up to `n` steps from this sample on.

    A transition ends at the end of the episode, at a terminated or truncated step, and at the newest sample. Its
    columns are the columns of its first step, except

    - `reward`: the discounted sum of the rewards;
    - `next_obs`, `terminated`, `truncated`, `done`: the values of the last step;
    - `discount`: the factor of the value of `next_obs`: `gamma` to the power of the number of steps, or 0 if the
      episode was terminated. A target is `reward + discount * value(next_obs)`, also at a truncation.

    A batch of transitions is one read. The view is read-only, and works with any sampler. Sample i belongs to sample i
    of the batch, so priorities stay with the samples. Metadata are those of the first step.

    Parameters
    ----------
    batch
        The steps, of a `DictSpace`; it stays open when the view is closed. It must know its episodes, as a replay
        buffer with `keep_episodes` or with lanes does.
    n
        The largest number of steps.
    gamma
        The discount of a step, from 0 to 1.
    reward, next_obs, terminated, truncated, done
        The keys of these columns: one key, or a sequence of keys for a nested column. `truncated` and `done` are
        optional.
    discount
        The name of the new column, which is added beside `reward`.

    Raises
    ------
    KeyError
        A column is missing.
    ValueError
        A number is out of range, the batch does not know its episodes, a flag is not one per sample, or the batch has a
        column with the name of the new one.

    Examples
    --------
    >>> sampler = StepSampler(NStepBatch(buffer, n=3, gamma=0.99), 256, seed=0)
    >>> batch = sampler.sample()
    >>> target = batch["reward"] + batch["discount"] * value_of(batch["next_obs"])
    """

    is_mutable = False

    def __init__(
        self,
        batch: BatchBase[BatchT, BArrayType, BDeviceType, BDtypeType, BRNGType],
        n: int,
        gamma: float,
        *,
        reward: Keys = "reward",
        next_obs: Keys = "next_obs",
        terminated: Keys = "terminated",
        truncated: Keys = "truncated",
        done: Keys = "done",
        discount: str = "discount",
    ) -> None:
        self.n, self.gamma = parse_integer(n, "n"), float(gamma)
        if self.n < 1:
            raise ValueError(f"n is {n}, it must be at least 1")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma is {gamma}, it must be from 0 to 1")
        if self.n > 1:
            check_knows_episodes(batch, type(self).__name__)
        space = batch.single_space
        self._reward, self._terminated = path_keys(space, reward), path_keys(space, terminated)
        self._flags = [self._terminated, *_present(space, (truncated, done))]
        for keys in self._flags:
            _check_flag(space, keys)
        self._of_last = [path_keys(space, next_obs), *self._flags]
        for keys in self._of_last:
            nested_item(space, keys)  # raises a KeyError for a missing column
        self._discount = (*self._reward[:-1], discount)
        if _present(space, [self._discount]):
            raise ValueError(f"the samples have a column {discount!r}: name the new one by discount=")
        rewards = nested_item(space, self._reward)
        if not isinstance(rewards, ArraySpace):
            raise ValueError(f"{_path(self._reward)}: {rewards}, wanted numbers, which can be summed")
        backend = batch.backend
        is_floating = backend.dtype_is_real_floating(rewards.dtype)
        self._dtype = rewards.dtype if is_floating else backend.default_floating_dtype
        self._flag_shape = tuple(nested_item(space, self._terminated).shape)
        sums = BoxSpace(backend, -np.inf, np.inf, self._dtype, rewards.device, rewards.shape)
        discounts = BoxSpace(backend, 0.0, 1.0, self._dtype, rewards.device, self._flag_shape)
        space = with_nested_item(with_nested_item(space, self._reward, sums), self._discount, discounts)
        super().__init__(batch, space, batch.single_metadata_space)
        self._replaced = {keys[0] for keys in (self._reward, *self._of_last) if len(keys) == 1}
        self._ones = np.ones(self.n)
        self._to_numpy, self._device = backend.to_numpy, batch.device
        # NumPy's own conversions are faster, for dtypes that NumPy has.
        name = backend.dtype_name(self._dtype)
        self._host_dtype = np.dtype(name) if name in ("float32", "float64") else None
        self._to_host = backend.to_host if self._host_dtype is None else backend.to_numpy
        self._powers = self.gamma ** np.arange(self.n + 1)
        #: The weights of rewards, by the number of steps in the transition.
        self._weights = np.tri(self.n + 1, self.n, -1, np.float64) * self._powers[:-1]
        self._whole = self._powers[:-1], self._powers[-1]
        self._query = WindowQuery(np.arange(self.n))
        self._query_with_metadata = replace(self._query, with_metadata=True)
        # If samples have images, reading by column leaves out the images of the steps in between.
        is_on_host = _is_on_host(backend, backend.zeros((0,), device=batch.device))
        self._by_column = is_on_host and batch.has_column_access and bool(RowLayout(batch.single_space).block_leaves)
        self._column_queries = self._make_column_queries(with_metadata=False)
        self._column_queries_with_metadata = self._make_column_queries(with_metadata=True)

    def _make_column_queries(self, *, with_metadata: bool) -> Sequence[WindowQuery]:
        """Make the queries for rewards and flags of all steps, other columns of the first, `next_obs` of the last."""
        next_obs, *flags = self._of_last
        summed, offsets = [self._reward, *flags], np.arange(self.n)
        paths = column_paths(self.batch.single_space)
        rest = [path for path in paths if not any(overlap(keys, path) for keys in (*summed, next_obs))]
        return (
            WindowQuery(offsets, (Columns.of_paths(summed),)),
            WindowQuery(np.zeros(1, np.int64), (Columns.of_paths(rest),), with_metadata=with_metadata),
            WindowQuery(offsets, next_obs, take=np.array([self.n - 1])),
        )

    def get_at(self, idx: Any) -> BatchT:
        data: BatchT = self._read(idx, with_metadata=False)[0]
        return data

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self._read(idx, with_metadata=True)

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        changed = (self._reward, self._discount, *self._of_last)
        if any(overlap(nested_keys, keys) for keys in changed):
            return nested_item(self.get_at(idx), nested_keys)
        return self.batch.get_column_at(nested_keys, idx)

    def _read(self, idx: Any, *, with_metadata: bool) -> tuple[Any, dict[str, Any] | None]:
        index = positions_below(self.batch, idx)
        positions = np.array([index]) if isinstance(index, int) else index
        both = self._read_by_column(positions, with_metadata=with_metadata) if self._by_column else None
        if both is None:
            query = self._query_with_metadata if with_metadata else self._query
            windows, valid, metadata, _ = self.batch.read_windows(positions, query)
            both = self._folded(windows, valid), metadata
        data, metadata = both
        space = self.single_metadata_space
        if metadata is not None and space is not None:
            metadata = frames_at(metadata, _FIRST)
        if isinstance(index, int):
            data = get_at(self.single_space, data, 0)
            metadata = None if metadata is None or space is None else get_at(space, metadata, 0)
        return data, metadata

    def _read_by_column(self, positions: np.ndarray, *, with_metadata: bool) -> tuple[Any, Any] | None:
        """Read transitions and metadata by column; None if a flag ends an episode inside of a window."""
        queries = self._column_queries_with_metadata if with_metadata else self._column_queries
        steps, first, following = self.batch.read_column_windows(positions, queries)
        next_obs, *flag_keys = self._of_last
        flags, rewards = [_item(steps.data, keys) for keys in flag_keys], _item(steps.data, self._reward)
        sums, discounts, last = self._summed_on_host(flags, rewards, steps.valid)
        if last is not _LAST:
            return None
        data = with_nested_item(frames_at(first.data, _FIRST), next_obs, frames_at(following.data, _FIRST))
        for keys, flag in zip(flag_keys, flags, strict=True):
            data = with_nested_item(data, keys, flag[_LAST])
        data = with_nested_item(data, self._reward, sums)
        return with_nested_item(data, self._discount, discounts), first.metadata

    def _folded(self, windows: Any, valid: np.ndarray) -> Any:
        """Make the transitions of windows (B, n)."""
        flags, rewards = [_item(windows, keys) for keys in self._flags], _item(windows, self._reward)
        sum_up = self._summed_on_host if _is_on_host(self.batch.backend, rewards) else self._summed_on_device
        sums, discounts, last = sum_up(flags, rewards, valid)

        transitions = frames_at({key: value for key, value in windows.items() if key not in self._replaced}, _FIRST)
        for keys in self._of_last:
            _item(transitions, keys[:-1])[keys[-1]] = frames_at(_item(windows, keys), last)
        parent = _item(transitions, self._reward[:-1])
        parent[self._reward[-1]], parent[self._discount[-1]] = sums, discounts
        return transitions

    def _summed_on_host(self, flags: Sequence[Any], rewards: Any, valid: np.ndarray) -> tuple[Any, Any, Any]:
        """Return the sums of rewards, the discounts, and the index of the last frames; `flags[0]` is `terminated`."""
        terminated, *others = map(self._to_numpy, flags)
        if self._flag_shape:
            terminated, *others = (flag[..., 0] for flag in (terminated, *others))
        ended = terminated
        for other in others:
            ended = ended | other
        included, last = valid, _LAST  # the frames in the transition, and the index of its last frame
        if np.count_nonzero(ended[:, :-1]) and (ended[:, :-1] & valid[:, 1:]).any():  # rare: the flag ends no segment
            included = valid.copy()
            included[:, 1:] &= ~ended[:, :-1]
            np.logical_and.accumulate(included, axis=1, out=included)
        weights, factors = self._whole  # for n steps
        if np.count_nonzero(included) != included.size:
            steps = (included.astype(np.float64) @ self._ones).astype(np.intp)
            weights, factors = self._weights.take(steps, 0), self._powers.take(steps)
            if included is not valid:
                last = (np.arange(len(steps)), steps - 1)
        rewards = self._to_host(rewards)
        if rewards.ndim > 2:
            rewards = np.moveaxis(rewards, 1, -1)
            weights = weights.reshape(*weights.shape[:-1], *(1,) * (rewards.ndim - 2), self.n)
        sums = (rewards.astype(np.float64) * weights) @ self._ones  # faster than `sum` along a short axis
        discounts = factors * ~terminated[last]
        return self._as_floats(sums), self._as_floats(discounts.reshape(-1, *self._flag_shape)), last

    def _summed_on_device(self, flags: Sequence[Any], rewards: Any, valid: np.ndarray) -> tuple[Any, Any, Any]:
        """Compute the same on the device, without a copy to the host, which would block until the device is idle."""
        backend = self.batch.backend
        device = backend.device(rewards)
        if self._flag_shape:
            flags = [flag[..., 0] for flag in flags]
        ended = flags[0]
        for other in flags[1:]:
            ended = ended | other
        ends = backend.astype(ended, backend.default_integer_dtype)
        ends_before = backend.cumulative_sum(ends, axis=1) - ends
        included = backend.from_numpy(valid, device=device) & (ends_before == 0)
        steps = backend.sum(backend.astype(included, backend.default_index_dtype), axis=1)
        last = (backend.arange(len(valid), device=device), steps - 1)
        powers = backend.from_host(self._powers, self._dtype, device=device)
        weights = backend.where(included, powers[: self.n], backend.zeros_like(powers[:1]))
        weights = backend.reshape(weights, (*weights.shape, *(1,) * (len(rewards.shape) - 2)))
        sums = backend.sum(backend.astype(rewards, self._dtype) * weights, axis=1)
        discounts = backend.where(flags[0][last], backend.zeros_like(powers[:1]), powers[steps])
        return sums, backend.reshape(discounts, (-1, *self._flag_shape)), last

    def _as_floats(self, values: np.ndarray) -> Any:
        backend, dtype = self.batch.backend, self._host_dtype
        if dtype is None:
            return backend.from_host(values, self._dtype, device=self._device)
        return backend.from_numpy(values.astype(dtype), device=self._device)


def _is_on_host(backend: ComputeBackend, array: Any) -> bool:
    """Whether NumPy can read an array without a copy."""
    device = backend.device(array)
    return getattr(device, "type", getattr(device, "platform", "cpu")) == "cpu"


def _item(data: Any, keys: tuple[Any, ...]) -> Any:
    """`nested_item` without checks of the keys."""
    for key in keys:
        data = data[key]
    return data


def _present(space: Space, fields: Iterable[Keys]) -> list[tuple[Any, ...]]:
    """Return the keys of the fields that the space has."""
    paths = []
    for field in fields:
        with contextlib.suppress(KeyError):
            keys = path_keys(space, field)
            nested_item(space, keys)
            paths.append(keys)
    return paths


def _path(keys: tuple[Any, ...]) -> str:
    return "/".join(map(str, keys))


def _check_flag(space: Space, keys: tuple[Any, ...]) -> None:
    flag = nested_item(space, keys)
    if not isinstance(flag, ArraySpace) or tuple(flag.shape) not in ((), (1,)):
        raise ValueError(
            f"{_path(keys)}: {flag}, wanted one flag for each sample; windows of frames go over an NStepBatch, not "
            f"under it, but for stacks of observations: StackedObservationBatch"
        )
