"""`TimeLimitWrapper`: episodes of bounded length."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..env_base.env import ActType, ContextType, Env, ObsType, RenderFrame, parse_mask
from ..env_base.wrapper import SameTypesWrapper
from ..space.space import parse_integer
from .autoreset import refuse_autoreset


class TimeLimitWrapper(
    SameTypesWrapper[BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType]
):
    """Truncates an episode at its `time_limit`-th step, and at every step after it.

    In a batch every slot has its own count, which restarts when the slot is reset.

    Parameters
    ----------
    env
        The environment below.
    time_limit
        The largest number of steps of an episode.

    Raises
    ------
    ValueError
        `time_limit` is below 1, or `env` restarts by itself; see `AutoresetWrapper`.
    TypeError
        `time_limit` is no integer.

    Examples
    --------
    >>> env = TimeLimitWrapper(env, 1)
    >>> _ = env.reset()
    >>> *_, truncated, info = env.step(env.sample_action())
    >>> bool(truncated)
    True
    """

    def __init__(self, env: Env, time_limit: int) -> None:
        super().__init__(env)
        refuse_autoreset(env, type(self).__name__)
        self.time_limit = parse_integer(time_limit, "time_limit")
        if self.time_limit < 1:
            raise ValueError(f"time_limit is {time_limit}, an episode has at least one step")
        self._steps = np.zeros(1 if env.batch_size is None else env.batch_size, np.int64)

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Reset the environment; the slots that restart count from zero again."""
        restarted = slice(None) if mask is None else parse_mask(mask, self.batch_size, self.backend)
        result = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        self._steps[restarted] = 0
        return result

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environment; `truncated` is set where the time limit is reached."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        expired = self._steps >= self.time_limit
        if expired.any():
            truncated = self._truncate(truncated, expired)
        return observation, reward, terminated, truncated, info

    def _truncate(self, truncated: Any, expired: np.ndarray) -> Any:
        if self.batch_size is None:
            return self.backend.ones_like(truncated) if self.backend.is_backendarray(truncated) else True
        return truncated | self.backend.from_numpy(expired, device=self.backend.device(truncated))
