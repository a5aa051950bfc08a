"""Environments: the contract.

An environment is one world, or a batch of them stepped together. `batch_size` is None for one, and a number (1
included) for a batch. The spaces of a batched environment already hold the batch axis: an observation is a value of
`observation_space` as it stands, never of a batch of it. Rewards and flags of a batched environment are arrays of
shape (batch_size,); those of a single one are numbers and booleans, or arrays without axes.

What is legal when: `reset` first, then `step` as often as wanted, `render` after either, `reset` again at any time,
`close` at any time and more than once; after `close` nothing but `close`. An episode that has ended (terminated or
truncated) is not restarted by itself: the caller resets it, with a mask in a batch.

What is whose: all that `reset`, `step` and `render` return is the caller's, and no later call changes it. An action
or a mask that the caller gives is neither written to nor kept.

What is random: `reset(seed=...)` fixes it, in the environment as well as in `rng`, which the sampling helpers draw
from. The same seed and the same actions give the same episode.

`unienv_interface.testing.check_env` checks an environment against all of this.
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

    # -- the verbs -----------------------------------------------------------------------------------------

    @abc.abstractmethod
    def reset(
        self, *, mask: BArrayType | None = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[ContextType, ObsType, dict[str, Any]]:
        """Begin a new episode: everywhere, or in a batch only where `mask` (booleans, (batch_size,)) says so.

        Returns context (None where there is no `context_space`), observation and infos. With a mask these hold only
        the reset slots, in order, and no other slot is touched; merge them with `update_observation_post_reset` and
        `update_context_post_reset`.
        """

    @abc.abstractmethod
    def step(
        self, action: ActType
    ) -> tuple[ObsType, SupportsFloat | BArrayType, bool | BArrayType, bool | BArrayType, dict[str, Any]]:
        """Act once; returns observation, reward, terminated, truncated and infos."""

    @abc.abstractmethod
    def render(self) -> RenderFrame | Sequence[RenderFrame] | None:
        """Render the current environment state using the configured render mode; None if there is none."""

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
