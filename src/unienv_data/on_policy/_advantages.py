"""Advantages and returns of steps in arrays with time first, on NumPy, PyTorch and JAX.

Both are sums that run backwards through an episode: x[t] = increment[t] + decay[t] * x[t + 1], where the decay is zero
at the end of an episode. They are computed by doubling: each pass joins neighbouring spans of steps to spans of twice
the length, so that T steps take log2(T) passes over whole arrays, and JAX compiles little code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from unienv_interface.backends import get_backend_from_tensor
from unienv_interface.backends.base import ComputeBackend


class Advantages(NamedTuple):
    """The result of `gae`.

    Attributes
    ----------
    advantages
        How much better than expected each step was.
    returns
        The return to fit the value of each step to.

    Examples
    --------
    >>> ended = np.array([False, True])
    >>> advantages, returns = gae(np.ones(2), np.zeros(2), ended, ~ended & ended, np.zeros(2), gamma=1.0, lam=1.0)
    >>> returns
    array([2., 1.])
    """

    advantages: Any
    returns: Any


def gae(
    rewards: Any, values: Any, terminated: Any, truncated: Any, next_values: Any, gamma: float, lam: float
) -> Advantages:
    """Generalized advantage estimates of steps, and the returns to fit values to.

    A terminated episode has no further value. A truncated episode, or an episode that continues after the last step,
    has the value in `next_values`.

    Parameters
    ----------
    rewards, values
        The reward of each step, and the value of the observation before it. All arrays have the same shape: (T, N), or
        (T,) for a single environment, time first. They are of one backend and may be traced by `jax.jit`.
    terminated, truncated
        Booleans: whether and how the step ended its episode.
    next_values
        The value of the observation after each step (`next_obs`): at the end of an episode of its last observation, not
        of the first one of the next episode. Ignored for terminated steps.
    gamma, lam
        The discount of rewards, and of later advantages.

    Returns
    -------
    Advantages
        `advantages` and `returns`, their sum with `values`, in the dtype of `values`.

    Raises
    ------
    ValueError
        An array has another shape than `values`, or no steps.
    TypeError
        `values` are no floats, the flags are no booleans, or the arrays are of different libraries.

    Examples
    --------
    >>> batch = rollout(envs, policy, 128)
    >>> advantages, returns = gae(
    ...     batch.reward,
    ...     value_of(batch.obs),
    ...     batch.terminated,
    ...     batch.truncated,
    ...     value_of(batch.next_obs),
    ...     gamma=0.99,
    ...     lam=0.95,
    ... )
    """
    backend = _check(
        values=values, rewards=rewards, terminated=terminated, truncated=truncated, next_values=next_values
    )
    zeros = backend.zeros_like(values)
    expected = backend.where(terminated, zeros, backend.astype(next_values, values.dtype))
    td_errors = backend.astype(rewards, values.dtype) + gamma * expected - values
    decay = backend.where(terminated | truncated, zeros, zeros + gamma * lam)
    advantages = _sum_backwards(backend, td_errors, decay)
    return Advantages(advantages, advantages + values)


def discounted_returns(rewards: Any, terminated: Any, truncated: Any, next_values: Any, gamma: float) -> Any:
    """Compute the discounted sum of rewards from each step to the end of its episode.

    Parameters
    ----------
    rewards, terminated, truncated, next_values
        As for `gae`. If an episode was truncated, or continues after the last step, `next_values` replaces the later
        rewards; pass zeros to leave them out.
    gamma
        The discount of one step.

    Returns
    -------
    array
        One return for each step, in the dtype of `next_values`.

    Raises
    ------
    ValueError
        An array has another shape than `next_values`, or no steps.
    TypeError
        `next_values` are no floats, the flags are no booleans, or the arrays are of different libraries.

    Examples
    --------
    >>> batch = rollout(envs, policy, 128)
    >>> returns = discounted_returns(
    ...     batch.reward, batch.terminated, batch.truncated, value_of(batch.next_obs), gamma=0.99
    ... )
    >>> returns.shape
    (128, 8)
    """
    backend = _check(next_values=next_values, rewards=rewards, terminated=terminated, truncated=truncated)
    zeros = backend.zeros_like(next_values)
    continues = ~(terminated | truncated)
    is_cut = backend.concat([truncated[:-1] & ~terminated[:-1], ~terminated[-1:]])
    increment = backend.astype(rewards, next_values.dtype) + gamma * backend.where(is_cut, next_values, zeros)
    return _sum_backwards(backend, increment, backend.where(continues, zeros + gamma, zeros))


def _sum_backwards(backend: ComputeBackend, increment: Any, decay: Any) -> Any:
    """Solve x[t] = increment[t] + decay[t] * x[t + 1], with x = 0 after the last step."""
    span = 1
    while span < increment.shape[0]:
        joined = increment[:-span] + decay[:-span] * increment[span:]
        increment = backend.concat([joined, increment[-span:]])
        decay = backend.concat([decay[:-span] * decay[span:], decay[-span:]])
        span *= 2
    return increment


def _check(**arrays: Any) -> ComputeBackend:
    """Check that all arrays have the shape of the first, which has floats; return their backend."""
    (first, model), *_ = arrays.items()
    backend = get_backend_from_tensor(model)
    if not backend.dtype_is_real_floating(model.dtype):
        raise TypeError(f"{first}: dtype {backend.dtype_name(model.dtype)}, it must be floats")
    if not (model.shape and model.shape[0]):
        raise ValueError(f"{first}: shape {tuple(model.shape)}, its first axis must be time, with at least one step")
    for name, array in arrays.items():
        array_backend = get_backend_from_tensor(array)
        if array_backend is not backend:
            raise TypeError(f"{name}: an array of {array_backend}, {first} is of {backend}; convert one of the arrays")
        if tuple(array.shape) != tuple(model.shape):
            raise ValueError(f"{name}: shape {tuple(array.shape)}, it must be {tuple(model.shape)} as of {first}")
        if name in ("terminated", "truncated") and not backend.dtype_is_boolean(array.dtype):
            raise TypeError(f"{name}: dtype {backend.dtype_name(array.dtype)}, it must be booleans")
    return backend
