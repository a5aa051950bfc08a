"""Wrappers that move environments to another backend or device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..backends import get_backend_from_tensor
from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType, ComputeBackend
from ..backends.seeding import next_seed_rng
from ..backends.serialization import BackendLike, parse_backend
from ..env_base.env import ActType, ContextType, Env, ObsType, RenderFrame, parse_mask
from ..env_base.wrapper import (
    Wrapper,
    WrapperActT,
    WrapperBArrayT,
    WrapperBDeviceT,
    WrapperBDtypeT,
    WrapperBRngT,
    WrapperContextT,
    WrapperObsT,
    WrapperRenderFrame,
    map_action,
)
from ..space import GraphInstance
from ..space.space_utils.row_spaces import RowSpaces
from ..space.spaces.batched import object_array


def data_to(
    data: Any,
    source_backend: ComputeBackend | None = None,
    target_backend: ComputeBackend | None = None,
    target_device: Any = None,
) -> Any:
    """Move the arrays in nested data to another backend, device or both.

    Parameters
    ----------
    data
        Dicts, lists, tuples, graphs and arrays.
    source_backend
        Move only arrays of this backend; None for arrays of all backends.
    target_backend
        The new backend; None to keep the backend of each array.
    target_device
        The new device; None for the default device of the conversion.

    Returns
    -------
    data
        The same structure; other values do not change. Arrays may share memory as `ComputeBackend.from_numpy`
        documents.
    """

    def move(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: move(child) for key, child in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(move, value))
        if isinstance(value, (list, tuple)):
            return type(value)(map(move, value))
        if isinstance(value, GraphInstance):
            return GraphInstance(*map(move, vars(value).values()))
        if isinstance(value, np.ndarray) and value.dtype == object:
            return object_array(value.shape, map(move, value.flat))
        source = source_backend or _backend_of(value)
        if source is None or not source.is_backendarray(value):
            return value
        target = target_backend or source
        return target.to_device(target.from_other_backend(source, value), target_device)

    return move(data)


def _backend_of(value: Any) -> ComputeBackend | None:
    try:
        return get_backend_from_tensor(value)
    except TypeError:
        return None


class ToBackendOrDeviceWrapper(
    Wrapper[
        WrapperBArrayT,
        WrapperContextT,
        WrapperObsT,
        WrapperActT,
        WrapperRenderFrame,
        WrapperBDeviceT,
        WrapperBDtypeT,
        WrapperBRngT,
        BArrayType,
        ContextType,
        ObsType,
        ActType,
        RenderFrame,
        BDeviceType,
        BDtypeType,
        BRNGType,
    ]
):
    """The environment on another backend, device or both: moves actions, masks and all returned values.

    This layer has its own generator, seeded from the generator below.

    Parameters
    ----------
    env
        The environment below.
    backend
        The backend of this layer; by default the backend of the environment.
    device
        The device of this layer; by default the device of the environment, or the default device of a new backend.

    Examples
    --------
    >>> env = ToBackendOrDeviceWrapper(env, "torch", "cpu")
    >>> _, observation, _ = env.reset()
    >>> type(observation).__name__
    'Tensor'
    """

    def __init__(self, env: Env, backend: BackendLike | None = None, device: Any = None) -> None:
        super().__init__(env)
        self._backend = env.backend if backend is None else parse_backend(backend)
        self._device = env.device if device is None and self._backend is env.backend else device
        self._home = env.device if env.device is not None else env.backend.device(env.backend.empty((0,)))
        self.action_space = env.action_space.to(self._backend, self._device)
        self.observation_space = env.observation_space.to(self._backend, self._device)
        if env.context_space is not None:
            self.context_space = env.context_space.to(self._backend, self._device)
        batched = env.batch_size is not None
        self._observation_rows = RowSpaces(env.observation_space) if batched else None
        self._context_rows = RowSpaces(env.context_space) if batched and env.context_space is not None else None
        self._rng = self._new_rng(self._draw_seed())

    @property
    def backend(self) -> ComputeBackend:  # type: ignore[override]
        """The backend that values are converted to."""
        return self._backend

    @property
    def device(self) -> Any:
        """The device that values are moved to."""
        return self._device

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        observation_space, context_space = self.env.observation_space, self.env.context_space
        if mask is not None:
            slots = parse_mask(mask, self.batch_size, self._backend)
            mask = self.env.backend.from_numpy(slots, device=self._home)
            if self._observation_rows is not None:
                observation_space = self._observation_rows.of(slots)
            if self._context_rows is not None:
                context_space = self._context_rows.of(slots)
        context, observation, info = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        if seed is not None:
            self._rng = self._new_rng(seed)
        if context_space is not None:
            context = context_space.data_to(context, self._backend, self._device)
        observation = observation_space.data_to(observation, self._backend, self._device)
        return context, observation, self._move_out(info)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, *others = self.env.step(map_action(self, self._move_in, action))
        observation = self.env.observation_space.data_to(observation, self._backend, self._device)
        reward, terminated, truncated, info = (self._move_out(value) for value in others)
        return observation, reward, terminated, truncated, info

    def render(self) -> Any:
        return self._move_out(self.env.render())

    def _move_in(self, action: Any) -> Any:
        return self.action_space.data_to(action, self.env.backend, self._home)

    def _move_out(self, data: Any) -> Any:
        return data_to(data, self.env.backend, self._backend, self._device)

    def _draw_seed(self) -> int | None:
        if self.env.rng is None:
            return None
        self.env.rng, seed = next_seed_rng(self.env.rng, self.env.backend)
        return seed

    def _new_rng(self, seed: int | None) -> Any:
        return self._backend.random.random_number_generator(seed, device=self._device)


class ToBackendWrapper(ToBackendOrDeviceWrapper):
    """The environment on another backend; the short form of `ToBackendOrDeviceWrapper`.

    Parameters
    ----------
    env
        The environment below.
    backend, device
        The backend of this layer and its device; by default the default device of the backend.

    Examples
    --------
    >>> env = ToBackendWrapper(env, "torch")
    >>> _, observation, _ = env.reset()
    >>> type(observation).__name__
    'Tensor'
    """

    def __init__(self, env: Env, backend: BackendLike, device: Any = None) -> None:
        super().__init__(env, backend, device)


class ToDeviceWrapper(ToBackendOrDeviceWrapper):
    """The environment on another device.

    Parameters
    ----------
    env
        The environment below.
    device
        The device of this layer.
    original_device
        The device of the environment, if `env.device` is None.

    Examples
    --------
    >>> env = ToDeviceWrapper(unienv.make("CartPole-v1", backend="torch"), "cpu")
    """

    def __init__(self, env: Env, device: Any, original_device: Any = None) -> None:
        super().__init__(env, device=device)
        if original_device is not None:
            self._home = original_device
