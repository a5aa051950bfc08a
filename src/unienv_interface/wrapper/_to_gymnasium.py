"""`ToGymnasiumEnv` and `ToGymnasiumVectorEnv`: environments of UniEnv as environments of Gymnasium."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..env_base.env import ActType, ContextType, Env, ObsType, RenderFrame, parse_mask
from ..space import Space
from ..space.space_utils import batch_utils
from ..space.space_utils.gym_utils import to_gym_space
from ..space.spaces import DictSpace
from ..space.spaces.batched import object_array
from ..utils.optional import need
from ._gym_values import reader, spread_info, writer
from .autoreset import AutoresetMode, AutoresetWrapper
from .autoreset import autoreset_mode as mode_of
from .slot_infos import rows_of_infos

if TYPE_CHECKING:
    import gymnasium
    import gymnasium.vector.utils as vector_utils
else:
    gymnasium = need("gymnasium", extra="gymnasium")
    vector_utils = need("gymnasium.vector.utils", extra="gymnasium")


def combine_context_obs_space(context_space: Space | None, observation_space: Space) -> Space:
    """The space of `combine_context_obs`: a dict of both spaces, or without a context the observation space."""
    if context_space is None:
        return observation_space
    children = {"context": context_space, "observation": observation_space}
    return DictSpace(observation_space.backend, children, observation_space.device)


def combine_context_obs(context: Any, observation: Any) -> Any:
    """Combine context and observation to a dict; without a context, return the observation."""
    return observation if context is None else {"context": context, "observation": observation}


class ToGymnasiumEnv(
    gymnasium.Env, Generic[BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType]
):
    """A single environment of UniEnv as a `gymnasium.Env`.

    If the environment has a context, the observation is a dict of "context" and "observation". Options of a reset
    become keywords of `Env.reset`. All arrays are NumPy copies, also in infos and frames. `np_random` is a generator
    for Gymnasium's wrappers, seeded by `reset`; the environment has its own generator.

    Parameters
    ----------
    env
        The environment, not batched.

    Raises
    ------
    ValueError
        The environment is batched: use `ToGymnasiumVectorEnv`.
    TypeError
        Gymnasium has no counterpart of one of its spaces.

    Examples
    --------
    >>> gym_env = ToGymnasiumEnv(env)
    >>> observation, info = gym_env.reset(seed=0)
    >>> observation.shape
    (4,)
    """

    combine_context_obs_space = staticmethod(combine_context_obs_space)
    combine_context_obs = staticmethod(combine_context_obs)

    def __init__(self, env: Env) -> None:
        if env.batch_size is not None:
            raise ValueError(f"{env} is batched: ToGymnasiumVectorEnv makes a gymnasium.vector.VectorEnv of it")
        self.env = env
        combined = combine_context_obs_space(env.context_space, env.observation_space)
        self.action_space = to_gym_space(env.action_space)
        self.observation_space = to_gym_space(combined)
        self._metadata: dict[str, Any] | None = None
        self._read_action = reader(self.action_space, env.action_space, "action")
        self._write_observation = writer(self.observation_space, combined, "observation")
        self._context: Any = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None, mask: Any = None, **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode. `options` and other keywords become keywords of the environment's `reset`."""
        super().reset(seed=seed)
        self._context, observation, info = _reset(self.env, mask, seed, options, kwargs)
        return self._write_observation(combine_context_obs(self._context, observation)), _host(self.env, info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step with an action of the Gymnasium action space; observation and info are NumPy's."""
        observation, reward, terminated, truncated, info = self.env.step(self._read_action(action))
        self._context = _context_after(self.env, self._context, info)
        return (
            self._write_observation(combine_context_obs(self._context, observation)),
            float(reward),
            bool(terminated),
            bool(truncated),
            _host(self.env, info) if info else {},
        )

    def render(self) -> Any:
        """Render as the environment does; frames are NumPy arrays."""
        return _host(self.env, self.env.render())

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    @property
    def metadata(self) -> dict[str, Any]:
        """The `metadata` of a Gymnasium environment, with the render modes and frames per second."""
        return _gym_metadata(self.env) if self._metadata is None else self._metadata

    @metadata.setter
    def metadata(self, value: dict[str, Any]) -> None:
        self._metadata = value

    @property
    def render_mode(self) -> str | None:
        """The `render_mode` of the environment."""
        return self.env.render_mode

    @render_mode.setter
    def render_mode(self, value: str | None) -> None:
        self.env.set_wrapper_attr("render_mode", value)

    def has_wrapper_attr(self, name: str) -> bool:
        """Whether the bridge, or a layer of the environment below it, has the attribute."""
        return hasattr(self, name) or self.env.has_wrapper_attr(name)

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the first layer that has it."""
        return getattr(self, name) if hasattr(self, name) else self.env.get_wrapper_attr(name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set the attribute on the outermost layer that has it, or with `force` on the bottom layer."""
        if hasattr(self, name):
            setattr(self, name, value)
        elif force or self.env.has_wrapper_attr(name):
            self.env.set_wrapper_attr(name, value)
        else:
            return False
        return True

    def __str__(self) -> str:
        return f"<{type(self).__name__}<{self.env}>>"


class ToGymnasiumVectorEnv(gymnasium.vector.VectorEnv):
    """A batched environment of UniEnv as a `gymnasium.vector.VectorEnv`; otherwise like `ToGymnasiumEnv`.

    `reset(options={"reset_mask": slots})` resets these slots and returns all slots; the other slots do not change.

    Parameters
    ----------
    env
        The batched environment.
    autoreset_mode
        When ended episodes restart: ``"same_step"``, ``"next_step"`` or ``"disabled"`` (see `AutoresetWrapper`), or a
        `gymnasium.vector.AutoresetMode`. The default is the mode of ``env``: ``"disabled"`` without an
        `AutoresetWrapper`, so reset ended slots with a mask. ``metadata["autoreset_mode"]`` and the attribute
        ``autoreset_mode`` hold the mode.

    Raises
    ------
    ValueError
        ``env`` is not batched, or already restarts in another mode.

    Examples
    --------
    >>> gym_envs = ToGymnasiumVectorEnv(envs, autoreset_mode="next_step")
    >>> gym_envs = gymnasium.wrappers.vector.NormalizeObservation(gym_envs)
    """

    def __init__(self, env: Env, autoreset_mode: AutoresetMode | gymnasium.vector.AutoresetMode | None = None) -> None:
        self.closed = True  # until the last line: Gymnasium before 1.3 also closes an object whose __init__ failed
        if env.batch_size is None:
            raise ValueError(f"{env} is not batched: ToGymnasiumEnv makes a gymnasium.Env of it")
        self.env = _restarting(env, autoreset_mode)
        self.num_envs = env.batch_size
        self.render_mode = env.render_mode
        self.autoreset_mode = gymnasium.vector.AutoresetMode[mode_of(self.env).upper()]  # TorchRL looks for it here
        self.metadata = {**_gym_metadata(env), "autoreset_mode": self.autoreset_mode}
        combined = combine_context_obs_space(env.context_space, env.observation_space)
        self.single_action_space, self.action_space = gym_spaces_of(env.action_space)
        self.single_observation_space, self.observation_space = gym_spaces_of(combined)
        self._read_action = reader(self.single_action_space, env.action_space, "action", batched=True)
        self._write_observation = writer(self.single_observation_space, combined, "observation", batched=True)
        self._context: Any = None
        self._observation: Any = None
        self.closed = False

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes in all slots, or in the slots of `options["reset_mask"]`."""
        super().reset(seed=seed)
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        if mask is not None:
            mask = parse_mask(mask, self.num_envs, self.env.backend)
        context, observation, info = _reset(self.env, mask, seed, options, {})
        if mask is None:
            self._context, self._observation = context, observation
        else:
            self._context = self.env.update_context_post_reset(self._context, context, mask)
            self._observation = self.env.update_observation_post_reset(self._observation, observation, mask)
        return self._write_observation(combine_context_obs(self._context, self._observation)), self._infos(info, mask)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step all slots; ended episodes restart according to `autoreset_mode`."""
        self._observation, reward, terminated, truncated, info = self.env.step(self._read_action(actions))
        to_host = self.env.backend.to_host
        final: dict[str, Any] = {}
        if "final_obs" in info and self.autoreset_mode is gymnasium.vector.AutoresetMode.SAME_STEP:
            info, final = self._split_final(info)
        self._context = _context_after(self.env, self._context, info)
        return (
            self._write_observation(combine_context_obs(self._context, self._observation)),
            np.array(to_host(reward), np.float64),
            np.array(to_host(terminated), bool),
            np.array(to_host(truncated), bool),
            {**self._infos(info, None), **final},
        )

    def _split_final(self, info: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split infos into the infos of the step and the final infos of ended episodes, in Gymnasium's format."""
        final_keys = {"final_obs", "_final_obs", "final_info", "_final_info"}
        ended = np.array(self.env.backend.to_host(info["_final_obs"]), bool)
        batch = self._write_observation(combine_context_obs(self._context, info["final_obs"]))
        last = vector_utils.iterate(self.observation_space, batch)
        values = [value if is_last else None for value, is_last in zip(last, ended, strict=True)]
        final = {
            "final_obs": object_array((self.num_envs,), values),
            "_final_obs": ended,
            "final_info": self._infos(rows_of_infos(info["final_info"], ended), ended),
            "_final_info": ended.copy(),
        }
        return {key: value for key, value in info.items() if key not in final_keys}, final

    def _infos(self, info: dict[str, Any], mask: np.ndarray | None) -> dict[str, Any]:
        return spread_info(_host(self.env, info), np.ones(self.num_envs, bool) if mask is None else mask)

    def render(self) -> tuple[Any, ...] | None:
        """One frame per slot."""
        frames = _host(self.env, self.env.render())
        return None if frames is None else tuple(frames)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment; `close()` calls it once."""
        self.env.close()


def _reset(
    env: Env, mask: Any, seed: int | None, options: Mapping[str, Any] | None, kwargs: dict[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    options = {**(options or {}), **kwargs}
    reserved = {"mask", "seed"} & options.keys()
    if reserved:
        raise ValueError(f"options hold {sorted(reserved)}: pass them as arguments of reset instead")
    if mask is not None:
        options["mask"] = mask
    return env.reset(seed=seed, **options)


def _restarting(env: Env, requested: AutoresetMode | gymnasium.vector.AutoresetMode | None) -> Env:
    """Wrap the environment to restart in the requested mode; None keeps its mode."""
    current = mode_of(env)
    mode: Any = requested or current
    if isinstance(requested, gymnasium.vector.AutoresetMode):
        mode = requested.name.lower()
    if mode == current:
        return env
    if current != "disabled":
        raise ValueError(f"autoreset_mode is {mode!r}, but {env!r} already restarts in the mode {current!r}")
    return AutoresetWrapper(env, mode)


def _context_after(env: Env, context: Any, info: dict[str, Any]) -> Any:
    """The context after a step: an AutoresetWrapper may have restarted episodes."""
    return info.get("context", context) if context is not None and mode_of(env) != "disabled" else context


def gym_spaces_of(space: Space) -> tuple[gymnasium.Space, gymnasium.Space]:
    """Convert the space of a batch to Gymnasium's spaces of one value and of the batch."""
    slots = [to_gym_space(slot) for slot in batch_utils.unbatch_spaces(space)]
    if all(slot == slots[0] for slot in slots):
        return slots[0], vector_utils.batch_space(slots[0], len(slots))
    return slots[0], vector_utils.batch_differing_spaces(slots)


def _gym_metadata(env: Env) -> dict[str, Any]:
    """The metadata with the keys that Gymnasium expects: `render_modes` and `render_fps`."""
    metadata = {"render_modes": [], **env.metadata}
    if env.render_mode is not None and env.render_mode not in metadata["render_modes"]:
        metadata["render_modes"] = [*metadata["render_modes"], env.render_mode]
    if env.render_fps is not None:
        metadata["render_fps"] = env.render_fps
    return metadata


def _host(env: Env, data: Any) -> Any:
    """Copy every array in the data to a NumPy array or a NumPy scalar."""
    backend = env.backend
    return backend.map_fn_over_arrays(data, lambda array: np.array(backend.to_host(array))[()])
