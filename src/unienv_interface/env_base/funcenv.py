"""Functional environments: every function takes the state and returns the next one.

In a batch all results have every slot, also the results of a reset with a mask. Shapes never depend on the values of a
mask, so JAX can compile steps and resets together, such as in a `jax.lax.scan` that resets ended episodes:

    state, observation, reward, terminated, truncated, info = func_env.step(state, action)
    state, _, observation, _ = func_env.reset(state, mask=terminated | truncated)
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, SupportsFloat

import numpy as np
from typing_extensions import TypeVar

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..space import Space
from ..space.space_utils import batch_utils
from ._layers import ForwardingLayer, Layer, parse_mask
from .env import ActType, ContextType, Env, ObsType, RenderFrame

StateType = TypeVar("StateType", default=Any)
RenderStateType = TypeVar("RenderStateType", default=Any)


@dataclass(frozen=True)
class FuncEnvCommonRenderInfo:
    """How a functional environment renders.

    Attributes
    ----------
    render_mode
        What `render_image` returns, such as "rgb_array"; None without rendering.
    render_fps
        Frames per second; None if it is not known.

    Examples
    --------
    >>> FuncEnvCommonRenderInfo(render_mode="rgb_array", render_fps=30).render_fps
    30
    """

    render_mode: str | None = None
    render_fps: int | None = None


class FuncEnv(
    Layer,
    abc.ABC,
    Generic[
        StateType,
        RenderStateType,
        BArrayType,
        ContextType,
        ObsType,
        ActType,
        RenderFrame,
        BDeviceType,
        BDtypeType,
        BRNGType,
    ],
):
    """An environment as pure functions of its state; spaces and batching as in `Env`.

    No function changes its `state` argument: the caller may keep a state and step from it again.

    Examples
    --------
    >>> class Countdown(FuncEnv):
    ...     backend, batch_size, context_space = NumpyComputeBackend, None, None
    ...     action_space = BoxSpace("numpy", -1, 1, np.float32, shape=())
    ...     observation_space = BoxSpace("numpy", 0, 9, np.float32, shape=(1,))
    ...
    ...     def initial(self, *, seed=None, **kwargs):
    ...         return 9, None, np.array([9], np.float32), {}
    ...
    ...     def reset(self, state, *, seed=None, mask=None, **kwargs):
    ...         return self.initial(seed=seed)
    ...
    ...     def step(self, state, action):
    ...         state = state - 1
    ...         return state, np.array([state], np.float32), 1.0, state == 0, False, {}
    >>> func_env = Countdown()
    >>> state, _, observation, _ = func_env.initial(seed=0)
    >>> later, *_ = func_env.step(state, np.zeros(()))
    >>> state, later  # the first state is as it was
    (9, 8)
    """

    @abc.abstractmethod
    def initial(
        self, *, seed: int | None = None, **kwargs: Any
    ) -> tuple[StateType, ContextType, ObsType, dict[str, Any]]:
        """The first state.

        Parameters
        ----------
        seed
            The seed; the same one gives the same state.
        **kwargs
            Options of the environment.

        Returns
        -------
        tuple
            State, context, observation and infos.
        """

    @abc.abstractmethod
    def reset(
        self, state: StateType, *, seed: int | None = None, mask: BArrayType | None = None, **kwargs: Any
    ) -> tuple[StateType, ContextType, ObsType, dict[str, Any]]:
        """Begin new episodes in all slots, or in the slots of `mask`.

        Parameters
        ----------
        state
            The current state.
        seed
            The seed of the new episodes.
        mask
            The slots of a batch to reset, booleans of shape (batch_size,); by default all.
        **kwargs
            Options of the environment.

        Returns
        -------
        tuple
            State, context, observation and infos of every slot. Slots outside the mask keep their state, with its
            context and observation. Merge with `where`, not by indexing with the mask.
        """

    @abc.abstractmethod
    def step(
        self, state: StateType, action: ActType
    ) -> tuple[StateType, ObsType, SupportsFloat | BArrayType, bool | BArrayType, bool | BArrayType, dict[str, Any]]:
        """Step from a state.

        Parameters
        ----------
        state
            The current state.
        action
            A value of `action_space`.

        Returns
        -------
        tuple
            State, observation, reward, terminated, truncated and infos.
        """

    def close(self, state: StateType) -> None:
        """Release the resources of a state."""

    def render_init(
        self, state: StateType, *, seed: int | None = None, render_mode: str | None = None, **kwargs: Any
    ) -> tuple[StateType, RenderStateType, FuncEnvCommonRenderInfo]:
        """Make the state of the renderer; called once, before `render_image`."""
        raise NotImplementedError(f"{type(self).__name__} does not render")

    def render_image(
        self, state: StateType, render_state: RenderStateType
    ) -> tuple[RenderFrame | Sequence[RenderFrame] | None, StateType, RenderStateType]:
        """Render a frame of the state; returns the frame, the state and the state of the renderer."""
        raise NotImplementedError(f"{type(self).__name__} does not render")

    def render_close(self, state: StateType, render_state: RenderStateType) -> StateType:
        """Release the state of the renderer."""
        raise NotImplementedError(f"{type(self).__name__} does not render")


class FuncEnvBasedEnv(
    ForwardingLayer,
    Env[BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType],
    Generic[
        StateType,
        RenderStateType,
        BArrayType,
        ContextType,
        ObsType,
        ActType,
        RenderFrame,
        BDeviceType,
        BDtypeType,
        BRNGType,
    ],
):
    """An `Env` that keeps the state of a `FuncEnv`.

    Parameters
    ----------
    func_env
        The functional environment.
    render_mode
        The mode that `func_env` renders in; None where nothing is rendered.
    render_kwargs
        Further arguments for the renderer of `func_env`.

    Examples
    --------
    >>> env = FuncEnvBasedEnv(Countdown())  # the example of `FuncEnv`
    >>> _, observation, _ = env.reset(seed=0)
    >>> observation, *_ = env.step(env.sample_action())
    >>> env.state, observation
    (8, array([8.], dtype=float32))
    """

    def __init__(
        self, func_env: FuncEnv, *, render_mode: str | None = None, render_kwargs: dict[str, Any] | None = None
    ) -> None:
        self.func_env = func_env
        self.state: Any = None
        self.render_state: Any = None
        self.rng = func_env.backend.random.random_number_generator(device=func_env.device)
        self._render_mode = render_mode
        self._render_kwargs = dict(render_kwargs or {})
        self._render_info = FuncEnvCommonRenderInfo(render_mode=render_mode)
        self._has_state = False

    @property
    def _below(self) -> FuncEnv:
        return self.func_env

    @property
    def unwrapped(self) -> Env:
        return self

    @property
    def prev_wrapper_layer(self) -> None:
        return None

    @property
    def render_mode(self) -> str | None:  # type: ignore[override]
        """The `render_mode` of the functional environment."""
        return self._render_info.render_mode

    @property
    def render_fps(self) -> int | None:  # type: ignore[override]
        """The frames per second at which the functional environment is shown."""
        return self._render_info.render_fps

    def reset(self, *, mask: Any = None, seed: int | None = None, **kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        if seed is not None:
            self.rng = self.backend.random.random_number_generator(seed, device=self.device)
        slots = None if mask is None else parse_mask(mask, self.batch_size, self.backend)
        if self._has_state:
            result = self.func_env.reset(self.state, seed=seed, mask=mask, **kwargs)
        elif mask is not None:
            raise RuntimeError("reset with a mask before any reset: there are no other slots to keep yet")
        else:
            result = self.func_env.initial(seed=seed, **kwargs)
        self.state, context, observation, info = result
        self._has_state = True
        if slots is not None:
            context = None if self.context_space is None else self._rows("context", self.context_space, context, slots)
            observation = self._rows("observation", self.observation_space, observation, slots)
            info = self.backend.map_fn_over_arrays(info, lambda array: self._info_rows(array, slots))
        if self._render_mode is not None and self.render_state is None:
            self.state, self.render_state, self._render_info = self.func_env.render_init(
                self.state, seed=seed, render_mode=self._render_mode, **self._render_kwargs
            )
        return context, observation, info

    def _rows(self, name: str, space: Space, value: Any, slots: np.ndarray) -> Any:
        """Take the slots of a mask from a result that has every slot."""
        count = batch_utils.batch_size_data(value)
        if count not in (None, len(slots)):
            raise ValueError(
                f"{name}: {type(self.func_env.unwrapped).__name__}.reset with a mask returned {count} slots, "
                f"it must return all {len(slots)}: merge with `where` instead of indexing with the mask"
            )
        return batch_utils.take_slots(space, value, slots)

    def _info_rows(self, array: Any, slots: np.ndarray) -> Any:
        """Take the slots of a mask from an array of infos that has every slot."""
        return self.backend.take_slots(array, slots) if tuple(array.shape[:1]) == slots.shape else array

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if not self._has_state:
            raise RuntimeError("step before reset: there is no state to step from")
        self.state, observation, reward, terminated, truncated, info = self.func_env.step(self.state, action)
        return observation, reward, terminated, truncated, info

    def render(self) -> Any:
        if self.render_state is None:
            return None
        frame, self.state, self.render_state = self.func_env.render_image(self.state, self.render_state)
        return frame

    def close(self) -> None:
        if self.render_state is not None:
            self.state = self.func_env.render_close(self.state, self.render_state)
            self.render_state = None
        if self._has_state:
            self.func_env.close(self.state)
            self.state, self._has_state = None, False
