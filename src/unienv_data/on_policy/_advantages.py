"""Advantages and returns of steps that lie time first, on NumPy, PyTorch and JAX.

Both are sums that run backwards through an episode: x[t] = increment[t] + decay[t] * x[t + 1], where the decay is zero
at the end of an episode. They are computed by doubling: each pass joins neighbouring spans of steps into one of twice
the length, so that T steps take log2(T) passes of whole arrays, and JAX has as little to compile.
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

    An episode that was terminated is worth nothing more. One that was truncated, or that goes on after the last step,
    is worth what `next_values` says.

    Parameters
    ----------
    rewards, values
        Of each step, and of the observation that it was taken at. All arrays have the same shape: (T, N), or (T,) for a
        single environment, time first; they are of one backend and may be traced by `jax.jit`.
    terminated, truncated
        Booleans: whether and how the step ended its episode.
    next_values
        Of the observation that each step led to (`next_obs`), at the end of an episode its last one and not the first
        of the next. Where a step was terminated, it does not count.
    gamma, lam
        The discount of rewards, and that of later advantages.

    Returns
    -------
    Advantages
        `advantages` and `returns`, their sum with `values`, in the dtype of `values`.

    Raises
    ------
    ValueError
        An array has another shape than `values`, or there are no steps.
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
    nothing = backend.zeros_like(values)
    expected = backend.where(terminated, nothing, backend.astype(next_values, values.dtype))
    surprise = backend.astype(rewards, values.dtype) + gamma * expected - values
    decay = backend.where(terminated | truncated, nothing, nothing + gamma * lam)
    advantages = _sum_backwards(backend, surprise, decay)
    return Advantages(advantages, advantages + values)


def discounted_returns(rewards: Any, terminated: Any, truncated: Any, next_values: Any, gamma: float) -> Any:
    """The discounted sum of rewards from each step to the end of its episode.

    Parameters
    ----------
    rewards, terminated, truncated, next_values
        Of shapes as for `gae`. Where an episode was truncated, or goes on after the last step, `next_values` stands for
        the rewards to come; pass zeros to leave them out.
    gamma
        The discount of one step.

    Returns
    -------
    array
        One return for each step, in the dtype of `next_values`.

    Raises
    ------
    ValueError
        An array has another shape than `next_values`, or there are no steps.
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
    nothing = backend.zeros_like(next_values)
    goes_on = ~(terminated | truncated)
    is_cut = backend.concat([truncated[:-1] & ~terminated[:-1], ~terminated[-1:]])
    increment = backend.astype(rewards, next_values.dtype) + gamma * backend.where(is_cut, next_values, nothing)
    return _sum_backwards(backend, increment, backend.where(goes_on, nothing + gamma, nothing))


def _sum_backwards(backend: ComputeBackend, increment: Any, decay: Any) -> Any:
    """x[t] = increment[t] + decay[t] * x[t + 1], with nothing after the last step."""
    span = 1
    while span < increment.shape[0]:
        joined = increment[:-span] + decay[:-span] * increment[span:]
        increment = backend.concat([joined, increment[-span:]])
        decay = backend.concat([decay[:-span] * decay[span:], decay[-span:]])
        span *= 2
    return increment


def _check(**arrays: Any) -> ComputeBackend:
    """The backend of arrays that have the shape of the first, which is of floats; by the names of the arguments."""
    (first, model), *_ = arrays.items()
    backend = get_backend_from_tensor(model)
    if not backend.dtype_is_real_floating(model.dtype):
        raise TypeError(f"{first}: dtype {backend.dtype_name(model.dtype)}, it must be of floats")
    if not (model.shape and model.shape[0]):
        raise ValueError(f"{first}: shape {tuple(model.shape)}, its first axis must be time, with one step at least")
    for name, array in arrays.items():
        other = get_backend_from_tensor(array)
        if other is not backend:
            raise TypeError(f"{name}: an array of {other}, {first} is one of {backend}; convert one of them")
        if tuple(array.shape) != tuple(model.shape):
            raise ValueError(f"{name}: shape {tuple(array.shape)}, it must be that of {first}, {tuple(model.shape)}")
        if name in ("terminated", "truncated") and not backend.dtype_is_boolean(array.dtype):
            raise TypeError(f"{name}: dtype {backend.dtype_name(array.dtype)}, it must be of booleans")
    return backend
