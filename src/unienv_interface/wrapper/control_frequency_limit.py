"""`ControlFrequencyLimitWrapper`: step at a fixed rate, for environments that run in real time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..env_base.env import ActType, ContextType, Env, ObsType, RenderFrame
from ..env_base.wrapper import SameTypesWrapper


class ControlFrequencyLimitWrapper(
    SameTypesWrapper[BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType]
):
    """Begins each step `control_dt` seconds after the previous step began; sleeps until then.

    The first step after a reset begins at once. Later steps are on a fixed time grid from there, so inexact sleeps do
    not add up. A late step begins at once; a step that is late by a period or more starts a new grid, so lost time is
    never made up by faster steps. A reset with a mask keeps the grid, since the other slots continue.

    Parameters
    ----------
    env
        The environment below.
    control_dt
        Seconds between the beginnings of steps; by default the `control_timestep` of a layer below.
    clock
        A function that returns monotonic seconds.
    sleep
        A function that sleeps for a number of seconds.

    Raises
    ------
    ValueError
        `control_dt` is not a positive number of seconds, or is missing and `env` has no `control_timestep`.

    Examples
    --------
    >>> env = ControlFrequencyLimitWrapper(env, control_dt=0.05)  # at most 20 steps a second
    """

    lateness: float = 0.0
    """The seconds by which the last step began late."""

    late_steps: int = 0
    """The number of steps since the last reset that were called late; long sleeps do not count."""

    def __init__(
        self,
        env: Env,
        control_dt: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(env)
        if control_dt is None and env.has_wrapper_attr("control_timestep"):
            control_dt = env.get_wrapper_attr("control_timestep")
        if control_dt is None:
            raise ValueError(f"control_dt is not given, and {env!r} has no control_timestep to take its place")
        if not (control_dt > 0 and math.isfinite(control_dt)):
            raise ValueError(f"control_dt is {control_dt}, a period is a positive number of seconds")
        self.control_dt = control_dt
        self._clock, self._sleep = clock, sleep
        self._due: float | None = None  # the time of the next step; None for at once

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Reset the environment; after a reset without a mask, the next step does not wait."""
        result = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        if mask is None:
            self._due, self.lateness, self.late_steps = None, 0.0, 0
        return result

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Wait until the step is due, then step the environment."""
        self._wait()
        return self.env.step(action)

    def _wait(self) -> None:
        now = self._clock()
        due = now if self._due is None else self._due
        self.late_steps += now > due
        while now < due:
            self._sleep(due - now)
            now = self._clock()
        self.lateness = now - due
        self._due = (due if self.lateness < self.control_dt else now) + self.control_dt
