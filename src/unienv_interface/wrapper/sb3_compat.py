"""`ToSB3VecEnv`: batched environments for Stable-Baselines3. Importing this module imports stable_baselines3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..env_base.env import Env
from ..utils.optional import need
from ._gym_values import reader, writer
from ._to_gymnasium import combine_context_obs, combine_context_obs_space, gym_spaces_of
from .autoreset import AutoresetWrapper, autoreset_mode
from .slot_infos import split_infos

if TYPE_CHECKING:
    import gymnasium.vector.utils as vector_utils
    import stable_baselines3.common.vec_env as sb3_vec_env
else:
    sb3_vec_env = need("stable_baselines3.common.vec_env", extra="sb3")
    vector_utils = need("gymnasium.vector.utils", extra="gymnasium")

_RESTART_KEYS = ("final_obs", "_final_obs", "final_info", "_final_info", "context", "_context")


class ToSB3VecEnv(sb3_vec_env.VecEnv):
    """A batched environment of UniEnv as a `VecEnv` of Stable-Baselines3.

    Slots restart in the step that ends their episode. The infos of this step hold the last observation in
    ``terminal_observation``; the infos of the reset are in ``reset_infos``. ``TimeLimit.truncated`` in every info says
    whether the episode was truncated without terminating. All arrays are NumPy copies.

    ``seed(n)`` seeds the next reset of the batch, which derives the seeds of its slots from ``n``. Options must be the
    same for all slots, and become keywords of `Env.reset`.

    ``get_attr``, ``set_attr`` and ``env_method`` reach the environments of a `SyncVecEnv` or `AsyncVecEnv`, and then
    the layers around them. Any other batch is one object: all slots share its attributes, and a method is called once.

    Parameters
    ----------
    env
        The batched environment. If it has a context, the observation is a dict of "context" and "observation".

    Raises
    ------
    ValueError
        ``env`` is not batched, its slots have different spaces, or it restarts in the mode ``"next_step"``.

    Examples
    --------
    >>> sb3_envs = ToSB3VecEnv(unienv.make("CartPole-v1", num_envs=8, seed=0))
    >>> sb3_envs.reset().shape
    (8, 4)
    >>> PPO("MlpPolicy", sb3_envs).learn(100_000)  # doctest: +SKIP
    """

    def __init__(self, env: Env) -> None:
        if env.batch_size is None:
            raise ValueError(f"{env} is not batched: make it a batch of one with BatchifyWrapper")
        if autoreset_mode(env) == "next_step":
            raise ValueError(f"{env} restarts in the mode 'next_step', Stable-Baselines3 wants 'same_step'")
        self.env = env if autoreset_mode(env) == "same_step" else AutoresetWrapper(env, "same_step")
        combined = combine_context_obs_space(env.context_space, env.observation_space)
        action_space, batched_actions = gym_spaces_of(env.action_space)
        observation_space, self._batched_space = gym_spaces_of(combined)
        for name, single, batched in (
            ("action_space", action_space, batched_actions),
            ("observation_space", observation_space, self._batched_space),
        ):
            if batched != vector_utils.batch_space(single, env.batch_size):
                raise ValueError(f"{name}: the slots have different spaces, Stable-Baselines3 wants one for all")
        self._read_action = reader(action_space, env.action_space, "action", batched=True)
        self._write_observation = writer(observation_space, combined, "observation", batched=True)
        bottom = env.unwrapped
        self._slots: Any = bottom if hasattr(bottom, "call") and hasattr(bottom, "get_attr") else None
        self._context: Any = None
        self._actions: Any = None
        super().__init__(env.batch_size, observation_space, action_space)

    # -- reset, step, render, close ------------------------------------------------------------------------

    def reset(self) -> Any:
        """Begin new episodes in all slots, with the seed and the options that were set before.

        Raises
        ------
        ValueError
            The options of the slots differ.
        """
        options = self._options[0]
        if any(other != options for other in self._options):
            raise ValueError("the options of the slots differ: give all slots the same options")
        self._context, observation, info = self.env.reset(seed=self._seeds[0], **options)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = split_infos(info, self.num_envs, self.env.backend)
        return self._observe(observation)

    def step_async(self, actions: np.ndarray) -> None:
        """Store the actions for `step_wait`."""
        self._actions = self._read_action(actions)

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Step with the stored actions; ended episodes restart in this step, as Stable-Baselines3 expects."""
        observation, reward, terminated, truncated, info = self.env.step(self._actions)
        to_host, backend = self.env.backend.to_host, self.env.backend
        rewards = np.array(to_host(reward), np.float32)
        is_terminated, is_truncated = np.array(to_host(terminated), bool), np.array(to_host(truncated), bool)
        dones = is_terminated | is_truncated
        restarted = bool(dones.any())
        step_info = {key: value for key, value in info.items() if not (restarted and key in _RESTART_KEYS)}
        infos = split_infos(step_info, self.num_envs, backend)
        if restarted:
            final_infos = split_infos(info["final_info"], self.num_envs, backend)
            last = list(vector_utils.iterate(self._batched_space, self._observe(info["final_obs"])))
            for slot in np.flatnonzero(dones):
                self.reset_infos[slot] = infos[slot]
                infos[slot] = {**final_infos[slot], "terminal_observation": last[slot]}
            self._context = info.get("context", self._context)
        for slot_info, is_cut in zip(infos, (is_truncated & ~is_terminated).tolist(), strict=True):
            slot_info["TimeLimit.truncated"] = is_cut
        return self._observe(observation), rewards, dones, infos

    def _observe(self, observation: Any) -> Any:
        return self._write_observation(combine_context_obs(self._context, observation))

    def get_images(self) -> Sequence[np.ndarray | None]:
        """The frames of the slots, or the single frame of the batch, or None for each slot."""
        frames = self.env.render()
        if frames is None:
            return [None] * self.num_envs
        is_single_frame = getattr(frames, "ndim", None) == 3
        return [np.asarray(frame) for frame in ([frames] if is_single_frame else frames)]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    # -- attributes ----------------------------------------------------------------------------------------

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the environments of the slots."""
        targets = list(self._get_indices(indices))
        if self._slots is not None:
            try:
                return self._slots.get_attr(attr_name, index=targets)
            except AttributeError:
                if not self.env.has_wrapper_attr(attr_name):
                    raise
        return [self.env.get_wrapper_attr(attr_name)] * len(targets)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of the environments of the slots."""
        targets = list(self._get_indices(indices))
        if self._slots is not None and (self._slots_have(attr_name) or not self.env.has_wrapper_attr(attr_name)):
            self._slots.set_attr(attr_name, [value] * len(targets), index=targets)
        else:
            self.env.set_wrapper_attr(attr_name, value)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Call a method of the environments of the slots and return its results."""
        targets = list(self._get_indices(indices))
        if self._slots is not None:
            try:
                return self._slots.call(method_name, *method_args, index=targets, **method_kwargs)
            except AttributeError:
                if not self.env.has_wrapper_attr(method_name):
                    raise
        return [self.env.get_wrapper_attr(method_name)(*method_args, **method_kwargs)] * len(targets)

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Whether a layer of the batch is an instance of the class, without checking the environments in the slots."""
        layer, is_wrapped = self.env, False
        while layer is not None and not is_wrapped:
            is_wrapped, layer = isinstance(layer, wrapper_class), layer.prev_wrapper_layer
        return [is_wrapped] * len(list(self._get_indices(indices)))

    def _slots_have(self, name: str) -> bool:
        try:
            self._slots.get_attr(name)
        except AttributeError:
            return False
        return True
