"""A ring of transitions on a JAX device, as pure functions of its state: it fits inside `jit` and `scan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unienv_interface.space import DictSpace, Space
from unienv_interface.space.spaces import ArraySpace, CompositeSpace, TupleSpace
from unienv_interface.utils.optional import need
from unienv_interface.utils.stateclass import StateClass

from .replay_buffer import ReplayBuffer

if TYPE_CHECKING:
    import jax

_N_STEP_COLUMNS = ("reward", "terminated", "truncated", "next_obs")
_INT32_END = 2**31


class FuncReplayState(StateClass):
    """What a `FuncReplayBuffer` holds: arrays of shape (steps, batch, ...), and where the ring stands."""

    data: Any
    position: Any  # of the step that is written next
    count: Any  # of steps that are held


class FuncWindows(NamedTuple):
    """Windows of shape (n, length, ...), and which of their rows belong to the episode of the first row."""

    rows: Any
    valid: Any


class FuncReplayBuffer:
    """The last `capacity` rows of `batch` environments, functional and on the device.

    All methods but `to_replay_buffer` are pure functions of a state, which is a pytree. Compile them, with the numbers
    of rows and steps static, and donate the state to `add`, or JAX copies the ring at each call.

    An empty buffer refuses to be sampled, but not in a compiled function, where it gives rows of zeros.

    Parameters
    ----------
    space
        Of one row, on the JAX backend: arrays in dicts and tuples, such as `transition_space(env)`. Episodes end where
        its columns "terminated" and "truncated" say so; without these, every environment has one long episode.
    capacity
        How many rows there is room for, a multiple of `batch`.
    batch
        How many environments add rows side by side.

    Raises
    ------
    ValueError
        `capacity` is no multiple of `batch` or too large for JAX, or the space is not of arrays of JAX of fixed shape.

    Examples
    --------
    >>> import jax
    >>> space = DictSpace("jax", {"obs": BoxSpace("jax", -1, 1, "float32", shape=(4,))})
    >>> buffer = FuncReplayBuffer(space, 1_024, batch=8)
    >>> add = jax.jit(buffer.add, donate_argnums=0)
    >>> sample = jax.jit(buffer.sample, static_argnums=2)
    >>> state = add(buffer.init(), {"obs": jax.numpy.zeros((8, 4))})
    >>> rows = sample(state, jax.random.PRNGKey(0), 256)
    """

    def __init__(self, space: Space, capacity: int, batch: int = 1) -> None:
        if batch < 1:
            raise ValueError(f"batch is {batch}, it must be at least 1")
        if capacity < batch or capacity % batch:
            raise ValueError(f"capacity is {capacity}, it must be a multiple of batch, which is {batch}")
        if capacity >= _INT32_END:
            raise ValueError(f"capacity is {capacity}, it must be less than 2**31, which JAX can index")
        _check_space(space, "")
        self.space, self.capacity, self.batch = space, int(capacity), int(batch)
        self._steps = self.capacity // self.batch
        columns = space.spaces if isinstance(space, DictSpace) else {}
        self._flags = [name for name in ("terminated", "truncated") if name in columns]
        for name in self._flags:
            if columns[name].shape != () or columns[name].dtype != bool:
                raise ValueError(f"{name}: {columns[name]}, a flag that ends episodes is a BinarySpace of shape ()")
        self._missing = [name for name in _N_STEP_COLUMNS if name not in columns]

    def init(self) -> FuncReplayState:
        """The state of an empty buffer."""
        jnp = self.space.backend.namespace

        def zeros(space: Any) -> Any:
            if isinstance(space, CompositeSpace):
                return space.build_value(zeros(child) for child in space.children)
            return space.backend.zeros((self._steps, self.batch, *space.shape), dtype=space.dtype, device=space.device)

        return FuncReplayState(zeros(self.space), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def add(self, state: FuncReplayState, rows: Any) -> FuncReplayState:
        """The state with one or more further steps of every environment.

        Parameters
        ----------
        state
            The state of the buffer.
        rows
            One step, with leading axis (batch,), or T of them, with leading axes (T, batch).

        Returns
        -------
        FuncReplayState
            The new state.

        Raises
        ------
        ValueError
            The rows have other leading axes, or are more than there is room for.
        """
        jax = need("jax", extra="jax")
        leading = _leading_axes(self.space, rows, "")
        if leading[-1:] != (self.batch,) or len(leading) > 2:
            raise ValueError(f"rows have the leading axes {leading}, wanted ({self.batch},) or (T, {self.batch})")
        count = leading[0] if len(leading) == 2 else 1
        if not 1 <= count <= self._steps:
            raise ValueError(
                f"{count} steps of {self.batch} rows, there is room for 1 to {self._steps} of these at once"
            )
        steps = (state.position + jax.numpy.arange(count)) % self._steps

        def write(column: Any, new: Any) -> Any:
            if count == 1:
                return jax.lax.dynamic_update_index_in_dim(column, new.reshape(column.shape[1:]), state.position, 0)
            return column.at[steps].set(new, unique_indices=True, mode="promise_in_bounds")

        return FuncReplayState(
            jax.tree.map(write, state.data, rows),
            (state.position + count) % self._steps,
            jax.numpy.minimum(state.count + count, self._steps),
        )

    def sample(self, state: FuncReplayState, key: jax.Array, n: int) -> Any:
        """Draw rows, each from all with the same probability.

        Parameters
        ----------
        state
            The state of the buffer.
        key
            The random key of JAX.
        n
            How many rows.

        Returns
        -------
        rows
            With leading axis (n,).
        """
        jax = need("jax", extra="jax")
        self._refuse_fewer(state, 1)
        # in any order: the steps that were written are the first ones of the ring until all are
        return _take(state.data, jax.random.randint(key, (n,), 0, state.count * self.batch))

    def sample_windows(self, state: FuncReplayState, key: jax.Array, n: int, length: int) -> FuncWindows:
        """Draw windows: rows of one environment that follow each other.

        A window begins anywhere it has room.

        Parameters
        ----------
        state
            The state of the buffer.
        key
            The random key of JAX.
        n
            How many windows.
        length
            How many rows each has.

        Returns
        -------
        FuncWindows
            The rows, with leading axes (n, length), and their mask. Rows after the end of the episode of the first row
            belong to the next episodes; the mask is False for these.
        """
        jax = need("jax", extra="jax")
        self._check_length("length", length)
        self._refuse_fewer(state, length)
        starts = jax.numpy.maximum(state.count - length + 1, 1)
        first = jax.random.randint(key, (n,), 0, starts * self.batch)
        offsets = jax.numpy.arange(length)
        rows = _take(state.data, self._ring_indices(state, first[:, None], offsets))
        return FuncWindows(rows, self._is_valid(state, first, offsets, rows))

    def sample_n_step(self, state: FuncReplayState, key: jax.Array, n: int, steps: int, gamma: float) -> dict[str, Any]:
        """Draw transitions of several steps, each begun at any row with the same probability.

        They stop at the end of their episode, and at the newest row. The columns are those of the first row, except

        - `reward`: the discounted sum of the rewards;
        - `next_obs`, `terminated`, `truncated`: those of the last row;
        - `discount`: what the value of `next_obs` counts: `gamma` to the power of the number of steps, or 0 where the
          episode was terminated. A target is `reward + discount * value(next_obs)`.

        Parameters
        ----------
        state
            The state of the buffer.
        key
            The random key of JAX.
        n
            How many transitions.
        steps
            How many steps each has at most.
        gamma
            The discount of one step.

        Returns
        -------
        dict
            The columns, with leading axis (n,).

        Raises
        ------
        ValueError
            The space lacks a column that is needed.
        """
        jax = need("jax", extra="jax")
        if self._missing:
            raise ValueError(
                f"the space has no column {self._missing[0]!r}, n steps want {', '.join(_N_STEP_COLUMNS)}: "
                f"make it with transition_space(env)"
            )
        self._check_length("steps", steps)
        self._refuse_fewer(state, 1)
        first = jax.random.randint(key, (n,), 0, state.count * self.batch)
        offsets = jax.numpy.arange(steps)
        window = {name: state.data[name] for name in ("reward", *self._flags)}
        window = _take(window, self._ring_indices(state, first[:, None], offsets))
        valid = self._is_valid(state, first, offsets, window)
        rewards = window["reward"]
        discounts = jax.numpy.where(valid, gamma**offsets, 0).astype(rewards.dtype)
        counts = valid.sum(1)
        ends = self._ring_indices(state, first, counts - 1)
        last = {name: _take(state.data[name], ends) for name in ("terminated", "truncated", "next_obs")}
        return {
            **_take(state.data, self._ring_indices(state, first, 0)),
            **last,
            "reward": jax.numpy.einsum("ns...,ns->n...", rewards, discounts),
            "discount": jax.numpy.where(last["terminated"], 0, gamma**counts).astype(rewards.dtype),
        }

    def to_replay_buffer(self, state: FuncReplayState, **options: Any) -> ReplayBuffer:
        """The rows as a `ReplayBuffer` with their episodes, oldest first.

        Environment i becomes lane i. The episodes that have not ended are closed as they stand, cut. Not for compiled
        functions.

        Parameters
        ----------
        state
            The state of the buffer.
        **options
            As for `ReplayBuffer.create`.

        Returns
        -------
        ReplayBuffer
            The new buffer.
        """
        jax = need("jax", extra="jax")
        count = int(state.count)
        order = (int(state.position) - count + np.arange(count)) % self._steps
        rows = jax.tree.map(lambda column: np.asarray(column)[order], state.data)
        ended = np.zeros((count, self.batch), bool)
        for name in self._flags:
            ended |= rows[name]

        def part(index: Any) -> Any:
            return jax.tree.map(lambda column: self.space.backend.from_numpy(column[index]), rows)

        options = {"capacity": self.capacity, "maintain_segment_metadata": True, "lanes": self.batch, **options}
        buffer = ReplayBuffer.create(single_instance_space=self.space, **options)
        if self.batch > 1:
            for step in range(count):
                buffer.extend_lanes(part(step), ended[step])
        else:
            stops = (np.flatnonzero(ended[:, 0]) + 1).tolist()
            for start, stop in zip([0, *stops], stops, strict=False):
                buffer.extend(part((slice(start, stop), 0)))
            for step in range(stops[-1] if stops else 0, count):
                buffer.append(part((step, 0)))
        buffer.mark_segment_end(cut=True)
        return buffer

    # -- indices in the ring ---------------------------------------------------------------------------------

    def _ring_indices(self, state: FuncReplayState, first: jax.Array, offset: Any) -> jax.Array:
        """The index, in the ring with its first two axes joined, of the row `offset` steps after the one of an age.

        Rows are numbered by age: step by step from the oldest, in each step by environment.
        """
        step = (state.position - state.count + first // self.batch + offset) % self._steps
        return step * self.batch + first % self.batch

    def _is_valid(self, state: FuncReplayState, first: jax.Array, offsets: jax.Array, flags: Any) -> jax.Array:
        """Whether the rows at offsets 0, 1, ... are held, and of the episode of the first one: (n, offsets).

        `flags` are the columns that end episodes, of these rows.
        """
        jnp = self.space.backend.namespace
        valid = first[:, None] // self.batch + offsets < state.count
        for name in self._flags:
            end = jnp.where(flags[name], offsets, len(offsets)).min(axis=1)
            valid = valid & (offsets <= end[:, None])
        return valid

    def _check_length(self, name: str, length: int) -> None:
        if not 1 <= length <= self._steps:
            raise ValueError(
                f"{name} is {length}, it must be from 1 to {self._steps}, the steps that there is room for"
            )

    def _refuse_fewer(self, state: FuncReplayState, wanted: int) -> None:
        """Raise a ValueError if fewer steps are held, where JAX is not tracing."""
        jax = need("jax", extra="jax")
        if not isinstance(state.count, jax.core.Tracer) and int(state.count) < wanted:
            raise ValueError(f"the buffer holds {int(state.count)} steps of each environment, {wanted} are wanted")


def _take(data: Any, indices: jax.Array) -> Any:
    """The rows at indices in the ring with its first two axes joined, of each column."""
    jax = need("jax", extra="jax")

    def take(column: Any) -> Any:
        return column.reshape(-1, *column.shape[2:]).at[indices].get(mode="promise_in_bounds")

    return jax.tree.map(take, data)


def _check_space(space: Space, path: str) -> None:
    """Raise unless the space is of arrays of JAX alone."""
    if space.backend.simplified_name != "jax":
        raise ValueError(f"the space is on {space.backend}, a FuncReplayBuffer holds arrays of JAX")
    if isinstance(space, CompositeSpace):
        for name, child in zip(_names(space), space.children, strict=True):
            _check_space(child, f"{path}/{name}")
    elif not isinstance(space, ArraySpace):
        raise ValueError(f"{path or 'space'}: {space}, a FuncReplayBuffer holds arrays of fixed shape only")


def _leading_axes(space: Space, rows: Any, path: str) -> tuple[int, ...]:
    """The axes in front of those of the space, the same in all arrays; a ValueError where a value does not fit."""
    if isinstance(space, CompositeSpace):
        names, given = _names(space), _names(rows)
        if sorted(given, key=str) != sorted(names, key=str):
            raise ValueError(f"{path or 'rows'}: {type(rows).__name__} with {given}, the space wants {names}")
        pairs = zip(names, space.children, space.child_values(rows), strict=True)
        axes_by_path = {f"{path}/{name}": _leading_axes(child, value, f"{path}/{name}") for name, child, value in pairs}
        if len(set(axes_by_path.values())) > 1:
            raise ValueError(f"rows have different leading axes: {axes_by_path}")
        return next(iter(axes_by_path.values()), ())
    if not hasattr(rows, "dtype"):
        raise ValueError(f"{path or 'rows'}: {type(rows).__name__}, the space wants an array")
    shape, wanted = tuple(rows.shape), tuple(space.shape)  # type: ignore[arg-type]
    if space.backend.dtype_from_name(rows.dtype.name) != space.dtype:  # 64 bits are 32 where JAX has no others
        raise ValueError(f"{path or 'rows'}: dtype {rows.dtype}, the space wants {space.dtype}")
    if shape[len(shape) - len(wanted) :] != wanted:
        raise ValueError(f"{path or 'rows'}: shape {shape}, wanted leading axes and then {wanted}")
    return shape[: len(shape) - len(wanted)]


def _names(value: Any) -> list[Any]:
    """What leads to the parts of a dict or a tuple, or of the space of one."""
    if isinstance(value, (dict, DictSpace)):
        return list(value)
    return list(range(len(value))) if isinstance(value, (tuple, TupleSpace)) else []
