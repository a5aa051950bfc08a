"""Wrappers that scale observations and rewards by running statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..env_base.env import Env, parse_mask
from ..env_base.wrapper import ContextObservationWrapper, Wrapper
from ..space.spaces import BoxSpace
from ._floating_boxes import floating_boxes, map_boxes, unbounded
from .autoreset import autoreset_mode, ended_slots, refuse_autoreset
from .running_moments import RunningMoments


class NormalizeObservationWrapper(ContextObservationWrapper):
    """Scales each entry of the observations to mean 0 and variance 1, by the moments of all observations so far.

    Every box of a floating dtype in the observation space becomes a box of float32 without bounds; images, integers,
    texts and other leaves do not change. The slots of a batch share their moments. Contexts are not scaled.

    Parameters
    ----------
    env
        The environment, single or batched.
    epsilon
        Added to the variance before taking the square root.
    update_running_mean
        Whether observations update the moments; assign the attribute to switch, for example in an evaluation.

    Attributes
    ----------
    moments : dict[str, RunningMoments]
        The moments of each box, by its path: ``"observation"``, or ``"observation/pose"`` in a dict.

    Raises
    ------
    ValueError
        The observation space has no box of a floating dtype, ``epsilon`` is not above 0, or ``env`` is an
        AutoresetWrapper in the mode ``"same_step"``, whose ``final_obs`` this wrapper would not scale.

    Examples
    --------
    >>> train_env = NormalizeObservationWrapper(unienv.make("CartPole-v1", num_envs=8))
    >>> eval_env = NormalizeObservationWrapper(unienv.make("CartPole-v1", num_envs=8), update_running_mean=False)
    >>> eval_env.load_state_dict(train_env.state_dict())
    """

    def __init__(self, env: Env, epsilon: float = 1e-8, *, update_running_mean: bool = True) -> None:
        super().__init__(env)
        refuse_autoreset(env, type(self).__name__, "same_step")
        self.epsilon = _positive(epsilon)
        self.update_running_mean = update_running_mean
        axes = 0 if env.batch_size is None else 1
        boxes = dict(floating_boxes(env.observation_space, "observation"))
        if not boxes:
            raise ValueError(f"{env.observation_space} has no box of a floating dtype, so there is nothing to scale")
        self.moments = {
            path: RunningMoments(box.shape[axes:], backend=env.backend, device=env.device)
            for path, box in boxes.items()
        }
        self.observation_space = unbounded(env.observation_space, "float32")

    def map_observation(self, observation: Any) -> Any:
        """Scale an observation by the current moments, without an update; `reset` and `step` update the moments."""
        dtype = self.backend.dtype_from_name("float32")

        def scale(path: str, box: BoxSpace, values: Any) -> Any:
            return self.backend.astype(self.moments[path].normalize(values, self.epsilon), dtype)

        return map_boxes(self.env.observation_space, "observation", observation, scale)

    def reverse_map_observation(self, observation: Any) -> Any:
        """Invert `map_observation` with the current moments."""

        def unscale(path: str, box: BoxSpace, values: Any) -> Any:
            return self.backend.astype(self.moments[path].denormalize(values, self.epsilon), box.dtype)

        return map_boxes(self.env.observation_space, "observation", observation, unscale)

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        context, observation, info = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        self._update(observation)
        return context, self.map_observation(observation), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._update(observation)
        return self.map_observation(observation), reward, terminated, truncated, info

    def state_dict(self) -> dict[str, Any]:
        """The moments, as NumPy arrays and numbers."""
        return {"moments": {path: moments.state_dict() for path, moments in self.moments.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`, also of another backend or batch size.

        Raises
        ------
        ValueError
            The state has moments of other leaves.
        """
        if state["moments"].keys() != self.moments.keys():
            raise ValueError(f"the state has moments of {list(state['moments'])}, this wrapper of {list(self.moments)}")
        for path, moments in self.moments.items():
            moments.load_state_dict(state["moments"][path])

    def _update(self, observation: Any) -> None:
        if not self.update_running_mean:
            return

        def update(path: str, box: BoxSpace, values: Any) -> Any:
            self.moments[path].update(values[None] if self.batch_size is None else values)
            return values

        map_boxes(self.env.observation_space, "observation", observation, update)


class NormalizeRewardWrapper(Wrapper):
    """Scales rewards so that the discounted return has a variance of about 1; the mean is not subtracted.

    The reward is divided by the standard deviation of all discounted returns so far, as in Gymnasium's
    `NormalizeReward`. The slots of a batch share their moments. In a batch the return starts at 0 at every reset; for
    a single environment it continues across resets, as in Gymnasium, and a termination drops the rewards before it. An
    AutoresetWrapper may be below or above this wrapper.

    Parameters
    ----------
    env
        The environment, single or batched.
    gamma
        The discount of the return, from 0 to 1.
    epsilon
        Added to the variance before taking the square root.
    update_running_mean
        Whether returns update the moments; assign the attribute to switch, for example in an evaluation.

    Attributes
    ----------
    moments : RunningMoments
        The moments of the discounted returns, in NumPy.

    Raises
    ------
    ValueError
        `gamma` is not from 0 to 1, or `epsilon` is not above 0.

    Examples
    --------
    >>> env = NormalizeRewardWrapper(envs, gamma=0.99)
    >>> _ = env.reset()
    >>> _, reward, *_ = env.step(env.sample_action())
    """

    def __init__(
        self, env: Env, gamma: float = 0.99, epsilon: float = 1e-8, *, update_running_mean: bool = True
    ) -> None:
        super().__init__(env)
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma is {gamma}, a discount lies between 0 and 1")
        self.gamma, self.epsilon = gamma, _positive(epsilon)
        self.update_running_mean = update_running_mean
        self.moments = RunningMoments()
        self._mode = autoreset_mode(env)
        slots = 1 if env.batch_size is None else env.batch_size
        self._returns = np.zeros(slots)
        self._ended = np.zeros(slots, bool)

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        slots = slice(None) if mask is None else parse_mask(mask, self.batch_size, self.backend)
        result = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        self._ended[slots] = False
        if self.batch_size is not None:
            self._returns[slots] = 0.0
        return result

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        going_on = 1.0 - _on_host(self, terminated)
        # In the mode next_step, the step after the end of an episode is a reset and belongs to no return.
        counts = ~self._ended if self._mode == "next_step" else np.ones_like(self._ended)
        returns = self._returns * self.gamma * going_on + _on_host(self, reward)
        self._returns = np.where(counts, returns, self._returns)
        if self.update_running_mean:
            self.moments.update(self._returns[counts])
        self._ended = ended_slots(self, terminated, truncated)
        if self._mode == "same_step":
            self._returns[self._ended] = 0.0
        return observation, self._scale(reward), terminated, truncated, info

    def _scale(self, reward: Any) -> Any:
        std = float(self.moments.std(self.epsilon))
        if not self.backend.is_backendarray(reward):
            return float(reward) / std
        if not self.backend.dtype_is_real_floating(reward.dtype):
            reward = self.backend.astype(reward, self.backend.default_floating_dtype)
        return reward / std

    def state_dict(self) -> dict[str, Any]:
        """The moments and the returns of the current episodes, as NumPy arrays and numbers."""
        return {"moments": self.moments.state_dict(), "returns": self._returns.copy(), "ended": self._ended.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`. With another batch size, only the moments are restored: then reset all slots."""
        self.moments.load_state_dict(state["moments"])
        if np.shape(state["returns"]) == self._returns.shape:
            self._returns = np.array(state["returns"], np.float64)
            self._ended = np.array(state["ended"], bool)


def _positive(epsilon: float) -> float:
    if not epsilon > 0:
        raise ValueError(f"epsilon is {epsilon}, wanted a number above 0: a variance of 0 would divide by 0")
    return epsilon


def _on_host(env: Env, signal: Any) -> np.ndarray:
    """Convert rewards or flags to a float64 NumPy array with one entry for each slot."""
    values = env.backend.to_host(signal) if env.backend.is_backendarray(signal) else np.asarray(signal)
    return values.astype(np.float64).reshape(-1)
