"""The contract of environments.

An `Env` is a single environment, or a batch of environments that step together. `batch_size` is None for a single
environment, and a number (which may be 1) for a batch. The spaces of a batch include the batch axis: an observation is
a value of `observation_space`. Rewards and flags of a batch are arrays of shape (batch_size,); a single environment
returns numbers and booleans, or arrays without axes.

Legal calls: `reset` comes first, then any number of `step`. `render` may follow either. `reset` and `close` are legal
at any time; after `close`, only `close` is legal. An environment does not reset itself when its episode ends
(terminated or truncated): the caller resets it, in a batch with a mask.

Ownership: no later call changes an array that `reset`, `step` or `render` has returned. The environment neither
writes to nor keeps an action or a mask of the caller.

Randomness: `reset(seed=...)` seeds the environment, and `rng`, which the sampling helpers draw from. The same seed and
the same actions give the same episode.

`unienv_interface.testing.check_env` checks an environment against these rules.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Generic, SupportsFloat

from typing_extensions import Self, TypeVar

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..space import Space
from ._layers import Layer
from ._layers import check_mask as check_mask
from ._layers import merge_masked as merge_masked
from ._layers import parse_index as parse_index
from ._layers import parse_mask as parse_mask

ContextType = TypeVar("ContextType", default=Any)
ObsType = TypeVar("ObsType", default=Any)
ActType = TypeVar("ActType", default=Any)
RenderFrame = TypeVar("RenderFrame", default=Any)


class Env(
    Layer, abc.ABC, Generic[BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType]
):
    """One environment or a batch of them; see the module's docstring.

    A subclass sets `backend`, `action_space` and `observation_space`, and where they apply `device`, `batch_size`,
    `context_space`, `rng`, `metadata`, `render_mode` and `render_fps`.

    Examples
    --------
    >>> context, observation, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(env.sample_action())
    >>> env.observation_space.contains(observation)
    True
    """

    render_mode: str | None = None
    render_fps: int | None = None
    rng: Any = None

    # -- reset, step, render, close ------------------------------------------------------------------------

    @abc.abstractmethod
    def reset(
        self, *, mask: BArrayType | None = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[ContextType, ObsType, dict[str, Any]]:
        """Begin a new episode, in a batch in all slots or in the slots of `mask`.

        Parameters
        ----------
        mask
            The slots of a batch to reset, booleans of shape (batch_size,); other slots do not change. By default all.
        seed
            The seed of the environment and of `rng`; by default both generators continue.
        **kwargs
            Options of the environment.

        Returns
        -------
        tuple
            Context (None without a `context_space`), observation and infos. With a mask these hold only the reset
            slots, in order; merge them with `update_observation_post_reset` and `update_context_post_reset`.
        """

    @abc.abstractmethod
    def step(
        self, action: ActType
    ) -> tuple[ObsType, SupportsFloat | BArrayType, bool | BArrayType, bool | BArrayType, dict[str, Any]]:
        """Act once.

        Parameters
        ----------
        action
            A value of `action_space`.

        Returns
        -------
        tuple
            Observation, reward, terminated, truncated and infos.
        """

    @abc.abstractmethod
    def render(self) -> RenderFrame | Sequence[RenderFrame] | None:
        """Render the current state in the environment's `render_mode`; None without a render mode."""

    def close(self) -> None:
        """Release the resources of the environment. May be called more than once."""

    # -- sampling ------------------------------------------------------------------------------------------

    def sample_space(self, space: Space) -> Any:
        """Sample from `space` using and updating `self.rng`."""
        if self.rng is None:
            self.rng = self.backend.random.random_number_generator(device=self.device)
        self.rng, value = space.sample(self.rng)
        return value

    def sample_action(self) -> ActType:
        """Sample one action from `action_space`."""
        return self.sample_space(self.action_space)

    def sample_observation(self) -> ObsType:
        """Sample one observation from `observation_space`."""
        return self.sample_space(self.observation_space)

    def sample_context(self) -> ContextType | None:
        """Sample one context value if `context_space` is defined."""
        return None if self.context_space is None else self.sample_space(self.context_space)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        batch = "" if self.batch_size is None else f", batch_size={self.batch_size}"
        return f"{type(self).__name__}(backend={self.backend}{batch})"
