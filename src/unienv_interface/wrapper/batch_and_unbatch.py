"""Wrappers that make a single environment a batch of one, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..env_base.env import ActType, ContextType, Env, ObsType, RenderFrame, parse_mask
from ..env_base.stacking import stack_infos
from ..space.space_utils.row_spaces import RowSpaces
from ..transformations.batch_and_unbatch import BatchifyTransformation, UnBatchifyTransformation
from .transformation import TransformWrapper


class BatchifyWrapper(
    TransformWrapper[
        BArrayType,
        ContextType,
        ObsType,
        ActType,
        RenderFrame,
        BDeviceType,
        BDtypeType,
        BRNGType,
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
    """A single environment as a batch of one: data, rewards, flags and infos get a leading axis of size 1.

    Frames of `render` do not change.

    Parameters
    ----------
    env
        The environment, not batched.

    Raises
    ------
    ValueError
        The environment is batched already.

    Examples
    --------
    >>> env = BatchifyWrapper(env)
    >>> env.batch_size, env.observation_space.shape
    (1, (1, 4))
    """

    def __init__(self, env: Env) -> None:
        if env.batch_size is not None:
            raise ValueError(f"{env!r} is a batch of {env.batch_size} already")
        context = None if env.context_space is None else BatchifyTransformation()
        super().__init__(env, context, BatchifyTransformation(), UnBatchifyTransformation())

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        """Always 1: a batch of one environment."""
        return 1

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        if mask is not None:
            slots = parse_mask(mask, 1, self.backend)
            if not slots[0]:
                return self._no_rows(self.context_space, slots), self._no_rows(self.observation_space, slots), {}
        context, observation, info = super().reset(*args, seed=seed, **kwargs)
        return context, observation, stack_infos([info], self.backend, self.device)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        boolean = self.backend.default_boolean_dtype
        return (
            observation,
            self._as_row(reward, self.backend.dtype_from_name("float64")),  # the precision of Python floats
            self._as_row(terminated, boolean),
            self._as_row(truncated, boolean),
            stack_infos([info], self.backend, self.device),
        )

    def _as_row(self, value: Any, dtype: Any) -> Any:
        if self.backend.is_backendarray(value):
            return self.backend.reshape(self.backend.asarray(value), (1,))
        return self.backend.from_host(np.asarray([value]), dtype, device=self.device)

    def _no_rows(self, space: Any, slots: np.ndarray) -> Any:
        return None if space is None else RowSpaces(space).of(slots).create_empty()


class UnBatchifyWrapper(
    TransformWrapper[
        BArrayType,
        ContextType,
        ObsType,
        ActType,
        RenderFrame,
        BDeviceType,
        BDtypeType,
        BRNGType,
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
    """A batch of one as a single environment: the inverse of `BatchifyWrapper`.

    Parameters
    ----------
    env
        The environment, a batch of one.

    Raises
    ------
    ValueError
        The environment is not a batch of one.

    Examples
    --------
    >>> env = UnBatchifyWrapper(unienv.make("CartPole-v1", num_envs=1))
    >>> env.observation_space.shape
    (4,)
    """

    def __init__(self, env: Env) -> None:
        if env.batch_size != 1:
            raise ValueError(f"{env!r} has batch_size {env.batch_size}, only a batch of one is a single environment")
        context = None if env.context_space is None else UnBatchifyTransformation()
        super().__init__(env, context, UnBatchifyTransformation(), BatchifyTransformation())

    @property
    def batch_size(self) -> None:  # type: ignore[override]
        """Always None: a single environment."""
        return None

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        if mask is not None:
            parse_mask(mask, self.batch_size, self.backend)  # raises the error for masks
        context, observation, info = super().reset(*args, seed=seed, **kwargs)
        return context, observation, _first_info(info)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward[0], terminated[0], truncated[0], _first_info(info)


def _first_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """The info of the only slot: the inverse of `stack_infos`."""
    masks = {key for key in info if key.startswith("_") and key[1:] in info}
    return {
        key: _first(value)
        for key, value in info.items()
        if key not in masks and (f"_{key}" not in masks or bool(info[f"_{key}"][0]))
    }


def _first(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _first_info(value)
    if isinstance(value, tuple):
        return tuple(_first(child) for child in value)
    is_row = len(value) == 1 if isinstance(value, list) else getattr(value, "shape", ())[:1] == (1,)
    return value[0] if is_row else value  # a value without this axis is the same for all slots
