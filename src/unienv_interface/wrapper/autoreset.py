"""`AutoresetWrapper`: restart ended episodes automatically."""

from __future__ import annotations

import copy
from typing import Any, Literal

import numpy as np

from ..env_base.env import Env, parse_mask
from ..env_base.wrapper import Wrapper
from ..space.space_utils import batch_utils
from .slot_infos import InfoPart, merge_infos, rows_of_infos

AutoresetMode = Literal["same_step", "next_step", "disabled"]
AUTORESET_MODES: tuple[AutoresetMode, ...] = ("same_step", "next_step", "disabled")
_METADATA_KEY = "autoreset_mode"

StepResult = tuple[Any, Any, Any, Any, dict[str, Any]]


class AutoresetWrapper(Wrapper):
    """Restarts episodes that have ended, as Gymnasium's vector environments do.

    Works for a single environment and for a batch, whose slots restart separately.

    - ``"same_step"``: the step that ends an episode returns the first observation of the next episode. Its infos hold
      ``final_obs`` (the last observation), ``final_info`` (the infos of the last step), and in a batch the boolean
      arrays ``_final_obs`` and ``_final_info`` of the slots that ended. All other infos of these slots come from the
      reset.
    - ``"next_step"``: the step that ends an episode returns its last observation. The next step ignores the action
      for that slot, resets the slot, and returns the first observation, reward 0 and both flags False.
    - ``"disabled"``: the caller resets.

    In a batch ``final_obs`` has the observations of all slots before the restarts: ``info.get("final_obs",
    observation)`` is the result of the actions in every slot. ``final_info`` has the infos of all slots in the same
    way.

    If the environment has a context, the infos of a step that restarts slots hold the contexts of all slots in
    ``context``, and in a batch the mask of the restarted slots in ``_context``.

    Put wrappers that follow episodes (`TimeLimitWrapper`, `FrameStackWrapper`) below this wrapper, where they see every
    reset. Put a recorder below or around it; a recorder of a batch in the mode ``"next_step"`` only around it.

    Parameters
    ----------
    env
        The environment to restart.
    mode
        When to restart: ``"same_step"``, ``"next_step"`` or ``"disabled"``.

    Raises
    ------
    ValueError
        The mode is unknown, ``env`` already restarts episodes, or the mode is ``"next_step"`` over a recorder of a
        batch.

    Notes
    -----
    In the mode ``"next_step"`` some slots of a batch step while other slots are reset, which `AsyncVecEnv` and
    `SyncVecEnv` support. Any other batch steps all slots: the wrapper resets the ended slots before this step, so that
    no ended episode is stepped, and again after it. The caller sees no difference, but a recorder below would record
    the step between the two resets. Put the recorder around this wrapper, with a buffer for each slot, since lanes
    advance together.

    Examples
    --------
    >>> env = AutoresetWrapper(ReplayBufferCollectionWrapper(envs, buffer), mode="same_step")
    >>> _, observation, _ = env.reset(seed=0)
    >>> for _ in range(100):
    ...     observation, reward, terminated, truncated, info = env.step(env.sample_action())
    """

    def __init__(self, env: Env, mode: AutoresetMode = "same_step") -> None:
        super().__init__(env)
        if mode not in AUTORESET_MODES:
            raise ValueError(f"mode is {mode!r}, the modes are {', '.join(map(repr, AUTORESET_MODES))}")
        if mode != "disabled" and autoreset_mode(env) != "disabled":
            raise ValueError(f"{env!r} restarts by itself already, in the mode {autoreset_mode(env)!r}")
        if mode == "next_step" and env.keeps_steps and (env.batch_size or 1) > 1:
            raise ValueError(
                f"AutoresetWrapper in the mode 'next_step' over a recorder of {env.batch_size} slots, which would "
                f"record steps of slots that restart: use mode='same_step', or record around it, into one buffer per "
                f"slot, ReplayBufferCollectionWrapper(AutoresetWrapper(env, mode='next_step'), buffers)"
            )
        self.mode: AutoresetMode = mode
        if mode != "disabled":
            self.metadata = {**env.metadata, _METADATA_KEY: mode}  # a vector environment of this one passes it on
        self._ended = np.zeros(env.batch_size or 1, bool)
        self._signals: tuple[Any, Any, Any] = (0.0, False, False)  # of the last step, for their types
        self._context: Any = None
        # A wrapper with `step_async`, such as a recorder of lanes, may be unable to step some slots.
        self._steps_some = not isinstance(env, Wrapper) and hasattr(env, "step_async")

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        slots = slice(None) if mask is None else parse_mask(mask, self.batch_size, self.backend)
        context, observation, info = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        self._ended[slots] = False
        self._keep_context(context, mask)
        return context, observation, info

    def step(self, action: Any, **options: Any) -> StepResult:
        """Step, and restart ended episodes. `options`, such as a recorder's `extras`, go to the `step` of ``env``."""
        if self.mode == "disabled":
            return self.env.step(action, **options)
        if self.mode == "next_step" and self._ended.any():
            result = self._restart() if self._ended.all() else self._restart_and_step(action, options)
        else:
            result = self.env.step(action, **options)
        self._signals = result[1:4]
        self._ended = ended_slots(self, *result[2:4])
        if self.mode == "same_step" and self._ended.any():
            return self._restarted(result)
        return result

    def _restarted(self, result: StepResult) -> StepResult:
        """Restart the ended slots; returns the result of the step with the first observations and final infos."""
        observation, reward, terminated, truncated, info = result
        first, reset_info = self._reset_slots(self._ended)
        if self.batch_size is None:
            final = {"final_obs": observation, "final_info": info}
            return first, reward, terminated, truncated, {**reset_info, **self._context_info(), **final}
        merged = self._merge_infos(rows_of_infos(info, ~self._ended), reset_info)
        merged |= {"final_obs": observation, "_final_obs": self._mask(self._ended)}
        merged |= {"final_info": info, "_final_info": self._mask(self._ended)}
        observation = self.env.update_observation_post_reset(observation, first, self._mask(self._ended))
        return observation, reward, terminated, truncated, merged

    def _restart(self) -> StepResult:
        """Reset all slots, or the single environment, in place of a step."""
        first, info = self._reset_slots(self._ended)
        reward, terminated, truncated = map(self._zero, self._signals)
        return first, reward, terminated, truncated, {**info, **self._context_info()}

    def _restart_and_step(self, action: Any, options: dict[str, Any]) -> StepResult:
        """Reset the ended slots and step the others."""
        others = np.flatnonzero(~self._ended)
        if not self._steps_some:
            self._reset_slots(self._ended)
        rows, *signal_rows, info = self._step_slots(others, action, options)
        first, reset_info = self._reset_slots(self._ended)
        observation = self.observation_space.create_empty()
        for slots, slot_rows in ((~self._ended, rows), (self._ended, first)):
            observation = self.env.update_observation_post_reset(observation, slot_rows, self._mask(slots))
        index = self.backend.from_numpy(others, device=self.device)
        reward, terminated, truncated = (
            self.backend.replaced_at(self._zero(signal), index, signal_row)
            for signal, signal_row in zip(self._signals, signal_rows, strict=True)
        )
        return observation, reward, terminated, truncated, self._merge_infos(info, reset_info)

    def _step_slots(self, slots: np.ndarray, action: Any, options: dict[str, Any]) -> StepResult:
        """Step some slots; returns their results, in order."""
        index = self.backend.from_numpy(slots, device=self.device)
        if self._steps_some:
            env: Any = self.env
            env.step_async(batch_utils.get_at(self.action_space, action, index), index=slots, **options)
            observation, reward, terminated, truncated, info = env.step_wait()
            info.pop("env_index", None)
            return observation, reward, terminated, truncated, info
        result: StepResult = self.env.step(action, **options)
        observation, reward, terminated, truncated, info = result
        rows = batch_utils.get_at(self.observation_space, observation, index)
        return rows, reward[index], terminated[index], truncated[index], rows_of_infos(info, ~self._ended)

    def _reset_slots(self, slots: np.ndarray) -> tuple[Any, dict[str, Any]]:
        """Reset some slots; returns their observations and infos."""
        mask = None if self.batch_size is None else self._mask(slots)
        context, observation, info = self.env.reset(mask=mask)
        self._keep_context(context, mask)
        return observation, info

    def _keep_context(self, context: Any, mask: Any) -> None:
        if self.context_space is None:
            return
        if mask is not None:
            context = self.env.update_context_post_reset(self._context, context, mask)
        self._context = copy.deepcopy(context)  # the caller may write to its context

    def _context_info(self) -> dict[str, Any]:
        """The infos that hold the contexts after a restart."""
        if self.context_space is None:
            return {}
        masks = {} if self.batch_size is None else {"_context": self._mask(self._ended)}
        return {"context": copy.deepcopy(self._context), **masks}

    def _merge_infos(self, info: dict[str, Any], reset_info: dict[str, Any]) -> dict[str, Any]:
        """Merge the infos of the slots that stepped and the slots that were reset."""
        parts = [InfoPart(~self._ended, info), InfoPart(self._ended, reset_info)]
        return {**merge_infos(parts, self.backend, self.device), **self._context_info()}

    def _mask(self, slots: np.ndarray) -> Any:
        return self.backend.from_numpy(slots, device=self.device, copy=True)

    def _zero(self, signal: Any) -> Any:
        return self.backend.zeros_like(signal) if self.backend.is_backendarray(signal) else type(signal)(0)


def autoreset_mode(env: Env) -> AutoresetMode:
    """When an environment restarts by itself.

    Parameters
    ----------
    env
        The environment.

    Returns
    -------
    str
        The mode of the `AutoresetWrapper` among the layers, or around each environment of a `SyncVecEnv` or
        `AsyncVecEnv`; "disabled" without an `AutoresetWrapper`.

    Examples
    --------
    >>> autoreset_mode(envs), autoreset_mode(AutoresetWrapper(envs, mode="same_step"))
    ('disabled', 'same_step')
    """
    layer: Env | None = env
    while layer is not None:
        if isinstance(layer, AutoresetWrapper) and layer.mode != "disabled":
            return layer.mode
        layer = layer.prev_wrapper_layer
    declared = env.unwrapped.metadata.get(_METADATA_KEY)
    return next((mode for mode in AUTORESET_MODES if mode == declared), "disabled")


def refuse_autoreset(env: Env, name: str, *modes: AutoresetMode) -> None:
    """Raise a ValueError for an environment that restarts by itself.

    Wrappers call this if they follow episodes, since they do not see these restarts.

    Parameters
    ----------
    env
        The environment to be wrapped.
    name
        The name of the wrapper, for the message.
    *modes
        The modes that raise; by default all modes.

    Raises
    ------
    ValueError
        The environment restarts by itself in one of these modes.
    """
    mode = autoreset_mode(env)
    if mode != "disabled" and (not modes or mode in modes):
        raise ValueError(
            f"{name} over an AutoresetWrapper in the mode {mode!r} does not see the restarts: swap them, "
            f"AutoresetWrapper({name}(env), mode={mode!r})"
        )


def ended_slots(env: Env, terminated: Any, truncated: Any) -> np.ndarray:
    """The mask of the slots that ended in a step.

    Parameters
    ----------
    env
        The environment.
    terminated, truncated
        The flags of the step.

    Returns
    -------
    numpy.ndarray
        A new array of booleans, with one slot for a single environment.
    """
    if env.batch_size is None:
        return np.array([bool(terminated) or bool(truncated)])
    to_host = env.backend.to_host
    return np.logical_or(to_host(terminated), to_host(truncated))
