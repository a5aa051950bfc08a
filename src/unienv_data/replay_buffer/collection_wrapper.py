"""An environment that records every transition into replay buffers.

The field `obs` is the observation before the action, and `next_obs` the observation that the step led to. At an
episode's end `next_obs` is its last observation. If the step that ends the episode also restarts it (an
`AutoresetWrapper` below, in the mode "same_step"), the recorder takes the last observation from the infos. If the next
step restarts it (in the mode "next_step"), that step has no transition.

Some slots of a batch may step without the others (`step_async` with `index`, `step_wait` with `min_envs`): a slot is
recorded when its step has finished.

After a step that fails, or whose transition cannot be recorded, the observation of the environment is unknown, and the
environment has to be reset. The samples recorded before stay.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.backends.numpy import NumpyComputeBackend
from unienv_interface.env_base.env import ActType, ContextType, Env, ObsType, RenderFrame, parse_index, parse_mask
from unienv_interface.env_base.wrapper import SameTypesWrapper
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.transformations import DataTransformation
from unienv_interface.wrapper.autoreset import autoreset_mode
from unienv_interface.wrapper.slot_infos import rows_of_infos

from ._recording.modes import (
    ReplayMode,
    as_list,
    check_same_space,
    check_steps_of_some,
    dump,
    resolve_mode,
    warn_if_mixed,
)
from ._recording.recorders import (
    PartialRecorders,
    StepOfSome,
    TransitionBuilder,
    check_builder,
    check_extras,
    is_plain,
    make_recorder,
    names_of,
    owned_copy,
)
from ._recording.restarts import last_infos, last_observations
from ._recording.slots import EpisodeCounts, PendingSteps, next_episode_id
from .replay_buffer import ReplayBuffer

PathLike = str | os.PathLike[str]
_PENDING_RESET = "reset_wait without reset_async: there is no reset to wait for"
_PENDING_STEP = "step_wait without step_async: there is no step to wait for"
_UNKNOWN = (
    "Cannot call step: the observation it starts from is not known. Call reset() first, also after a step or reset "
    "that has failed or was not waited for"
)


class ReplayBufferCollectionWrapper(
    SameTypesWrapper[BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType]
):
    """Record every transition of an environment into one or more replay buffers.

    Parameters
    ----------
    env
        The environment below, single or batched. An `AutoresetWrapper` may lie around the recorder or below it; in the
        mode "next_step", of a batch, below it.
    replay_buffers
        One buffer, or one for each slot.
    replay_mode
        "shared": one buffer; a batch of environments is mixed in it, without episodes. "per_env": one buffer for each
        slot, with episodes. "interleaved": one buffer with a lane for each slot (`lanes` of `ReplayBuffer.create`),
        with episodes. "auto": the mode that fits the batch size and the buffers.
    transition_builder
        A function `(cached_obs, cached_context, action, next_obs, reward, terminated, truncated, env_index,
        rb_single_space) -> transition`, called with keywords, or a DataTransformation of a dict of these fields, as far
        as the buffer has keys for them. By default the recorder fills the keys of the buffer's DictSpace: obs, action,
        reward, terminated, truncated, done, next_obs, context, env_index, episode_id, step, timestamp, info and extras;
        `transition_space` makes such a space.
    validate_transition
        Check every transition against the buffer's space, which takes time.
    dump_on_episode_end, dump_on_reset_boundary
        Write a snapshot (`dumps`) at the end of an episode, or before a reset, to `dump_path`; several buffers go to
        the folders `env_0`, `env_1`, ... in it. A snapshot replaces the previous one. Empty buffers are left out.
    dump_path
        The folder of the snapshots; the attribute may be assigned.
    clock
        The function that returns timestamps, in seconds since the epoch.
    first_episode_id
        The number of the first episode; by default the number after the last one in the buffers.
    on_ended
        What happens when a slot is stepped whose episode has ended, and which was not reset. "raise": a RuntimeError
        that names the slots, before the step. "ignore": the step is recorded as the first of an episode.
    episodes
        In shared mode, mixing several environments in one buffer issues an `UnknownEpisodesWarning`; "ignore" silences
        it.

    Raises
    ------
    ValueError
        The buffers do not fit the environment or the mode, an option has an unknown value, or `dump_path` is missing.
        Also if the buffer has lanes and `env` restarts in the step after an episode's end ("next_step").
    TypeError
        A buffer is no `ReplayBuffer`, or `transition_builder` cannot build transitions.
    RuntimeError
        A buffer is closed.
    PermissionError
        A buffer is read-only.

    Examples
    --------
    >>> buffer = ReplayBuffer.create(transition_space(env), capacity=1_000_000)
    >>> recorder = ReplayBufferCollectionWrapper(env, buffer)
    >>> _ = recorder.reset(seed=0)
    >>> result = recorder.step(recorder.sample_action())
    >>> len(buffer)
    1
    """

    keeps_steps = True

    def __init__(
        self,
        env: Env,
        replay_buffers: ReplayBuffer | Sequence[ReplayBuffer],
        replay_mode: ReplayMode = "auto",
        transition_builder: TransitionBuilder | None = None,
        validate_transition: bool = False,
        dump_on_episode_end: bool = False,
        dump_on_reset_boundary: bool = False,
        dump_path: PathLike | None = None,
        *,
        clock: Callable[[], float] = time.time,
        first_episode_id: int | None = None,
        on_ended: Literal["raise", "ignore"] = "raise",
        episodes: Literal["respect", "ignore"] = "respect",
    ) -> None:
        super().__init__(env)
        if (dump_on_episode_end or dump_on_reset_boundary) and dump_path is None:
            raise ValueError("dump_path must be provided with dump_on_episode_end or dump_on_reset_boundary")
        check_builder(transition_builder)
        self.dump_path = dump_path
        self._buffers = as_list(replay_buffers)
        self._mode = resolve_mode(replay_mode, env, self._buffers)
        self._autoreset = autoreset_mode(env)
        self._refuses_ended = _is_first("on_ended", on_ended, ("raise", "ignore")) and self._autoreset == "disabled"
        self._warns_if_mixed = _is_first("episodes", episodes, ("respect", "ignore"))
        if self._warns_if_mixed:
            warn_if_mixed(self._mode, env)
        self._chosen_builder, self._validates = transition_builder, validate_transition
        self._dumps_episodes, self._dumps_resets = dump_on_episode_end, dump_on_reset_boundary
        self._clock = clock
        self._slots = 1 if env.batch_size is None else env.batch_size
        self._every_slot = np.ones(self._slots, bool)
        self._batch_size, self._env_backend = env.batch_size, env.backend  # properties that call every wrapper
        self._is_batched = env.batch_size is not None
        self._has_context = env.context_space is not None
        self._to_numpy = env.backend.to_numpy
        if first_episode_id is None:
            first_episode_id = next_episode_id(self._buffers)
        self._counts = EpisodeCounts(self._slots, first_episode_id)
        self._recorder: Any = None  # a Recorder from the first step on
        self._partial_recorders: PartialRecorders | None = None  # from the first step of a subset of slots on
        self._observation: Any = None  # the last observation of all slots, in memory of our own
        self._context: Any = None
        self._is_known = False  # whether `_observation` and `_context` are those of the environment
        self._ended: set[int] = set()  # slots whose episodes have ended, until they are reset
        self._in_doubt = False  # whether the last step or reset has failed
        self._overwrites = is_plain(env)
        self._resetting: np.ndarray | None = None
        # The action and the extras of the step under way, or the slots that are stepping.
        self._stepping: tuple[Any, Any] | PendingSteps | None = None
        self._extra_names: set[str] | None = set()  # set by the first step; None if a builder takes any

    @classmethod
    def shared(cls, env: Env, replay_buffer: ReplayBuffer, **kwargs: Any) -> ReplayBufferCollectionWrapper:
        """Create a wrapper in shared mode with a single replay buffer."""
        return cls(env, replay_buffer, replay_mode="shared", **kwargs)

    @classmethod
    def per_env(cls, env: Env, replay_buffers: Sequence[ReplayBuffer], **kwargs: Any) -> ReplayBufferCollectionWrapper:
        """Create a wrapper in per-env mode with one buffer per slot."""
        return cls(env, replay_buffers, replay_mode="per_env", **kwargs)

    @classmethod
    def interleaved(cls, env: Env, replay_buffer: ReplayBuffer, **kwargs: Any) -> ReplayBufferCollectionWrapper:
        """Create a wrapper in interleaved mode with one buffer that has a lane per slot."""
        return cls(env, replay_buffer, replay_mode="interleaved", **kwargs)

    @property
    def replay_mode(self) -> ReplayMode:
        """The resolved mode; never "auto"."""
        return self._mode

    @property
    def replay_buffers(self) -> list[ReplayBuffer]:
        """The buffers that samples are written to."""
        return list(self._buffers)

    # -- reset ---------------------------------------------------------------------------------------------

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Reset the environment and begin episodes in the slots of the mask; without a mask, in all slots."""
        slots = self._begin_reset(mask)
        result = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        self._finish_reset(slots, result)
        return result

    def reset_async(self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any) -> None:
        """Begin a reset, if the environment has `reset_async`; `reset_wait` completes it."""
        begin = self._asynchronous("reset_async")
        slots = self._begin_reset(mask)
        with self._finishing_if_interrupted("reset_wait"):
            begin(*args, mask=mask, seed=seed, **kwargs)
            self._resetting = slots.copy()  # the caller may reuse the mask meanwhile

    def reset_wait(self) -> tuple[Any, Any, dict[str, Any]]:
        """Wait for the reset under way, and return its results.

        Raises
        ------
        RuntimeError
            No reset was begun.
        """
        wait = self._asynchronous("reset_wait")
        slots = self._resetting
        if slots is None:
            raise RuntimeError(_PENDING_RESET)
        with self._finishing_if_interrupted("reset_wait"):
            self._resetting = None
            result = wait()
        self._finish_reset(slots, result)
        return result

    def _begin_reset(self, mask: Any) -> np.ndarray:
        """Mark the observations as unknown, and return the mask of the slots to be reset, on the host."""
        if self._stepping is not None:
            raise RuntimeError("reset while a step is under way: call step_wait first")
        if self._resetting is not None:
            raise RuntimeError("reset while a reset is under way: call reset_wait first")
        if mask is None:
            slots = self._every_slot
        else:
            slots = parse_mask(mask, self._batch_size, self._env_backend)
        if not self._is_known and not slots.all():
            raise RuntimeError(
                f"reset of slots {np.flatnonzero(slots)} alone: the observations of the others are unknown, so "
                f"the first reset, and the reset after a failed step, must be of all slots"
            )
        self._in_doubt = not self._is_known
        self._is_known = False
        return slots

    def _finish_reset(self, slots: np.ndarray, result: tuple[Any, Any, dict[str, Any]]) -> None:
        context, observation, _ = result
        chosen = slots.nonzero()[0].tolist() if slots is not self._every_slot else list(range(self._slots))
        if len(chosen) == self._slots:
            self._observation, self._context = owned_copy(observation), owned_copy(context)
        elif chosen:
            self._merge(context, observation, slots, chosen)
        if self._in_doubt:
            self._counts.doubt()
        self._ended.difference_update(chosen)
        if chosen and (self._counts.begin(chosen) or self._in_doubt or self._may_be_open()):
            self._end_segments(slots, cut=self._in_doubt)
        self._is_known = True
        if self._dumps_resets:
            self._dump(slots)

    def _merge(self, context: Any, observation: Any, slots: np.ndarray, chosen: list[int]) -> None:
        """Replace the observations and contexts of the slots that were reset."""
        if self._overwrites and len(observation) == len(chosen):
            kept = self._kept_for(observation)
            for row, slot in enumerate(chosen):  # most often there is just one
                kept[slot] = observation[row]
        else:
            mask = self._as_array(slots)
            self._observation = self.env.update_observation_post_reset(self._observation, observation, mask)
        if self._has_context:
            mask = self._as_array(slots)
            self._context = self.env.update_context_post_reset(self._context, context, mask)

    def _as_array(self, values: np.ndarray) -> Any:
        """A mask or indices as an array of the environment's backend."""
        backend = self._env_backend
        return values if backend is NumpyComputeBackend else backend.from_numpy(values, device=self.env.device)

    def _kept_for(self, observation: np.ndarray) -> np.ndarray:
        """The array that keeps the last observations, converted to a dtype that holds these rows."""
        kept: np.ndarray = self._observation
        if observation.dtype != kept.dtype:  # an environment may return a narrower dtype than its space has
            kept = self._observation = kept.astype(np.result_type(kept, observation))
        return kept

    # -- step ----------------------------------------------------------------------------------------------

    def step(
        self, action: Any, *, extras: Mapping[str, Any] | None = None
    ) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environment and record it.

        Parameters
        ----------
        action
            The action.
        extras
            Values of the learner, such as `{"logp": logp, "value": value}`, for the columns of the buffers under
            `extras`. For a batched environment, each value has one entry for each slot.

        Returns
        -------
        tuple
            What the environment returns: observation, reward, terminated, truncated and infos.
        """
        if not self._is_known or self._recorder is None:
            self._prepare_step()
        if self._ended:
            self._refuse_ended(self._ended)
        if extras is not None or self._extra_names:
            self._check_extras(extras)
        self._is_known = False  # until the step is recorded
        result = self.env.step(action)
        self._record(action, result, extras)
        return result

    def step_async(self, action: Any, index: Any = None, *, extras: Mapping[str, Any] | None = None) -> None:
        """Begin a step, if the environment has `step_async`; `step_wait` completes it.

        Parameters
        ----------
        action
            The action of each slot, or of each slot in `index`.
        index
            The slots that step, in any order, while others may still be stepping. This works in the modes per_env and
            shared, and without `extras`.
        extras
            As for `step`.
        """
        begin = self._asynchronous("step_async")
        if index is not None:
            self._begin_some(begin, action, index, extras)
            return
        self._prepare_step()
        self._refuse_ended(self._ended)
        self._check_extras(extras)
        self._is_known = False
        kept = owned_copy(action), owned_copy(extras)  # the caller may reuse the arrays meanwhile
        with self._finishing_if_interrupted("step_wait"):
            begin(action)
            self._stepping = kept

    def step_wait(self, min_envs: int | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Wait for the step that was begun.

        With `min_envs`, wait only until this many slots are ready; the results are those of the ready slots, whose
        indices are `info["env_index"]`, and are recorded. This works in the modes per_env and shared.

        Raises
        ------
        RuntimeError
            No step was begun.
        """
        wait = self._asynchronous("step_wait")
        if self._stepping is None:
            raise RuntimeError(_PENDING_STEP)
        if min_envs is not None or isinstance(self._stepping, PendingSteps):
            return self._wait_for_some(wait, min_envs)
        action, extras = self._stepping
        with self._finishing_if_interrupted("step_wait"):
            self._stepping = None
            result = wait()
        self._record(action, result, extras)
        return result

    def _prepare_step(self) -> None:
        """Check that a step can be recorded, before the environment steps."""
        if not self._is_known:
            raise RuntimeError(_UNKNOWN)
        if self._recorder is None:
            chosen, validates = self._chosen_builder, self._validates
            self._recorder = make_recorder(self._mode, self.env, self._buffers, chosen, validates)
            is_function = chosen is not None and not isinstance(chosen, DataTransformation)
            self._extra_names = None if is_function else names_of("extras", self._buffers)

    def _check_extras(self, extras: Mapping[str, Any] | None) -> None:
        """Raise a KeyError, before the environment steps, if the extras do not fit the buffers' columns."""
        if self._extra_names is not None:
            check_extras(extras, self._extra_names)

    def _refuse_ended(self, ended: set[int]) -> None:
        """Raise a RuntimeError that names the slots about to step after the end of their episodes."""
        if not ended or not self._refuses_ended:
            return
        what = f"slots {sorted(ended)}, whose episodes have ended" if self._is_batched else "an episode that has ended"
        how = "reset(mask=terminated | truncated)" if self._is_batched else "reset()"
        raise RuntimeError(
            f"step of {what}: call {how} first, or make the recorder with on_ended='ignore' to record such steps"
        )

    def _record(
        self,
        action: Any,
        result: tuple[Any, Any, Any, Any, dict[str, Any]],
        extras: Mapping[str, Any] | None = None,
        part: StepOfSome | None = None,
    ) -> None:
        """Record a step of all slots, or of a subset."""
        if self._ended and self._autoreset == "next_step":
            restarted = self._ended.intersection(range(self._slots) if part is None else part.slots)
            if restarted:
                self._record_others(restarted, action, result, extras, part)
                return
        next_observation, reward, terminated, truncated, info = result
        if part is None:
            slots, recorder, observation, context = None, self._recorder, self._observation, self._context
        else:
            slots, recorder, observation, context = part
        done: Any = None
        ended: list[int] = []
        if self._is_batched:
            done = terminated | truncated
            if type(done) is not np.ndarray:
                done = self._to_numpy(done)
            ended = done.nonzero()[0].tolist()
        else:
            done = bool(terminated) or bool(truncated)
            ended = [0] if done else []
        observation_after, info_after = next_observation, info
        restarts = bool(ended) and self._autoreset == "same_step"
        if restarts:
            next_observation = last_observations(self.env, next_observation, info, done)
            info = last_infos(self.env, info, done) if "info" in recorder.needs else info
        episode_id, step, now = self._counted(recorder.needs, slots) if recorder.needs_counts else (None, None, None)
        data = (
            observation,
            context,
            action,
            next_observation,
            reward,
            terminated,
            truncated,
            done,
            recorder.env_index,
            episode_id,
            step,
            now,
            info,
            {} if extras is None else extras,
        )
        recorder.record(data, ended)
        if slots is None:
            self._observation = owned_copy(observation_after)
            self._counts.recorded += 1
        else:
            self._keep_observations(slots, observation_after)
            self._counts.advance(slots)
        if restarts:
            self._keep_contexts(ended, ended if slots is None else [slots[row] for row in ended], info_after)
        if slots is not None:
            ended = [slots[row] for row in ended]
        if ended:
            self._counts.begin(ended)
            if not restarts:
                self._ended.update(ended)
        self._is_known = slots is None  # for a step of some slots, `_wait_for_some` decides
        if ended and (self._dumps_episodes or (restarts and self._dumps_resets)):
            self._dump(np.isin(np.arange(self._slots), ended))

    def _record_others(
        self,
        restarted: set[int],
        action: Any,
        result: tuple[Any, Any, Any, Any, dict[str, Any]],
        extras: Mapping[str, Any] | None,
        part: StepOfSome | None,
    ) -> None:
        """Record a step in which slots were restarted and have no transition."""
        observation, *signals, info = result
        stepped = list(range(self._slots)) if part is None else part.slots
        was_restarted = np.isin(stepped, list(restarted))
        others = [slot for slot in stepped if slot not in restarted]
        if others:
            rows = self._as_array(np.flatnonzero(~was_restarted))
            rows_of_result = (
                batch_utils.get_at(self.observation_space, observation, rows),
                *(signal[rows] for signal in signals),
                rows_of_infos(info, ~was_restarted),
            )
            actions = batch_utils.get_at(self.action_space, action, rows)
            extras = None if extras is None else rows_of_infos(extras, ~was_restarted)
            self._record(actions, rows_of_result, extras, self._step_of_some(others))
        restarted_rows = np.flatnonzero(was_restarted).tolist()
        slots = [stepped[row] for row in restarted_rows]
        if self._is_batched:
            rows = self._as_array(np.array(restarted_rows))
            self._keep_observations(slots, batch_utils.get_at(self.observation_space, observation, rows))
        else:
            self._observation = owned_copy(observation)
        self._keep_contexts(restarted_rows, slots, info)
        self._ended -= restarted
        self._is_known = part is None
        if self._dumps_resets:
            self._dump(np.isin(np.arange(self._slots), list(restarted)))

    def _counted(self, needs: frozenset[str], slots: list[int] | None) -> tuple[Any, Any, Any]:
        """Episode numbers, step numbers and times of all slots or of a subset; None for fields not needed."""
        count = self._slots if slots is None else len(slots)
        ids = self._counts.ids(slots) if "episode_id" in needs else None
        steps = self._counts.steps(slots) if "step" in needs else None
        times = np.full(count, self._clock()) if "timestamp" in needs else None
        if self._is_batched:
            return ids, steps, times
        first_id, first_step, time_now = (None if values is None else values[0] for values in (ids, steps, times))
        return first_id, first_step, time_now

    def discard_episode(self, mask: Any = None) -> int:
        """Drop the samples of the open episode; closed episodes stay.

        If the process is killed meanwhile, a buffer on disk keeps or drops the episode as a whole. Reset the
        environment next.

        Parameters
        ----------
        mask
            The slots, in the mode per_env; by default all of them.

        Returns
        -------
        int
            The number of dropped samples; 0 if no episode is open.

        Raises
        ------
        RuntimeError
            A step or reset is under way.
        ValueError
            The buffer does not keep episodes, or samples of several slots lie side by side in it (interleaved, shared).
        """
        if self._stepping is not None or self._resetting is not None:
            raise RuntimeError("discard_episode while a step or reset is under way: wait for it first")
        if self._slots > 1 and self._mode != "per_env":
            raise ValueError(
                f"discard_episode: in replay_mode={self._mode!r} the samples of {self._slots} slots lie side by side, "
                "so those of one episode cannot go: record with replay_mode='per_env' and a buffer for each slot"
            )
        slots = self._every_slot if mask is None else parse_mask(mask, self._batch_size, self._env_backend)
        chosen = slots.nonzero()[0].tolist()
        for slot in chosen:
            if not self._buffers[slot].maintain_segment_metadata:
                raise ValueError(
                    "discard_episode: the buffer does not keep episodes, so nobody knows where this one began: make it "
                    "with keep_episodes=True"
                )
        dropped = sum(self._buffers[slot].discard_open_segment() for slot in chosen)
        self._counts.begin(chosen)
        if dropped and slots.all():
            self._is_known = False
        return dropped

    # -- steps of some slots -------------------------------------------------------------------------------

    def _begin_some(self, begin: Callable[..., Any], action: Any, index: Any, extras: Mapping[str, Any] | None) -> None:
        check_steps_of_some(self._mode, self._slots, "step_async with index")
        pending = self._pending()
        self._refuse_extras_of_some(extras)
        if not pending.is_sound:
            raise RuntimeError(_UNKNOWN)
        slots = parse_index(index, self._slots, self.backend)
        self._refuse_ended(self._ended.intersection(slots.tolist()))
        actions = pending.actions_for(slots.tolist(), owned_copy(action))
        self._is_known = False
        with self._finishing_if_interrupted("step_wait"):
            with pending.in_doubt():
                begin(action, index=slots)
            pending.add(actions)
            self._stepping = pending

    def _wait_for_some(
        self, wait: Callable[..., Any], min_envs: int | None
    ) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if min_envs is not None:
            check_steps_of_some(self._mode, self._slots, "step_wait with min_envs")
        pending = self._pending()
        if min_envs is not None and not 1 <= min_envs <= len(pending):
            raise ValueError(f"min_envs is {min_envs}, it must be from 1 to {len(pending)}, the stepping environments")
        with self._finishing_if_interrupted("step_wait"):
            self._stepping = None  # if waiting fails, there is nothing left to wait for
            result = wait(min_envs=min_envs)
            slots = self._to_numpy(result[-1]["env_index"]).tolist()
            action = pending.take(slots)
            if len(pending):
                self._stepping = pending
        with pending.in_doubt():
            self._record(action, result, part=self._step_of_some(slots))
        self._is_known = pending.is_sound and self._stepping is None
        return result

    def _pending(self) -> PendingSteps:
        """The pending steps, as slots that can be added to and waited for one by one."""
        if isinstance(self._stepping, PendingSteps):
            return self._stepping
        pending = PendingSteps(self.action_space)
        if self._stepping is None:
            self._prepare_step()
        else:
            action, extras = self._stepping
            self._refuse_extras_of_some(extras)
            pending.add(pending.actions_for(range(self._slots), action))
        return pending

    def _refuse_extras_of_some(self, extras: Mapping[str, Any] | None) -> None:
        if extras or self._extra_names:
            raise ValueError("extras: they are recorded with steps of all slots only, without index and min_envs")

    def _step_of_some(self, slots: list[int]) -> StepOfSome:
        if self._partial_recorders is None:
            chosen, validates = self._chosen_builder, self._validates
            self._partial_recorders = PartialRecorders(self._mode, self.env, self._buffers, chosen, validates)
        context, rows = None, np.array(slots)
        if self.context_space is not None:
            context = batch_utils.get_at(self.context_space, self._context, rows)
        observation = batch_utils.get_at(self.observation_space, self._observation, rows)
        return StepOfSome(slots, self._partial_recorders.of(slots), observation, context)

    def _keep_observations(self, slots: list[int], observation: Any) -> None:
        """Keep the new observations of a subset of slots, one row for each."""
        if self._overwrites:
            self._kept_for(observation)[slots] = observation
        else:
            rows, kept = np.array(slots), owned_copy(observation)
            self._observation = batch_utils.set_at(self.observation_space, self._observation, rows, kept)

    def _keep_contexts(self, rows: list[int], slots: list[int], info: dict[str, Any]) -> None:
        """Keep the contexts of slots that have restarted, which lie in these rows of the infos."""
        if self.context_space is None:
            return
        if self._is_batched:
            contexts = batch_utils.get_at(self.context_space, info["context"], np.array(rows))
            self._context = batch_utils.set_at(self.context_space, self._context, np.array(slots), contexts)
        else:
            self._context = owned_copy(info["context"])

    # -- the end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the environment. Open episodes are closed as cut; the buffers stay open."""
        self._is_known = False  # refuses steps: the episodes have ended
        with contextlib.ExitStack() as everything:  # makes each call even if another one fails
            everything.callback(super().close)
            for buffer in self._buffers:
                everything.callback(_end_recording, buffer)

    # -- shared --------------------------------------------------------------------------------------------

    def _asynchronous(self, name: str) -> Callable[..., Any]:
        method = getattr(self.env, name, None)
        if method is None:
            raise AttributeError(f"{self.env!r} has no {name}: wrap an AsyncVecEnv or SyncVecEnv itself")
        return method

    @contextlib.contextmanager
    def _finishing_if_interrupted(self, wait: str) -> Iterator[None]:
        """After Ctrl-C, wait for what the environment still does, since nobody else will; then a reset is possible."""
        try:
            yield
        except KeyboardInterrupt:
            self._stepping = self._resetting = None
            with contextlib.suppress(Exception):  # nothing was begun, or it failed
                self._asynchronous(wait)()
            raise

    def _may_be_open(self) -> bool:
        """Whether the caller may have added samples of its own to a buffer without lanes."""
        recorder = self._recorder
        return self._mode != "interleaved" and (recorder is None or recorder.may_be_open)

    def _end_segments(self, slots: np.ndarray | None = None, *, cut: bool) -> None:
        """Close the open segments of the slots, as `cut` unless the caller's reset has ended them."""
        if self._mode == "interleaved":
            self._buffers[0].mark_segment_end(slots, cut=cut)
            return
        for slot, buffer in enumerate(self._buffers):
            if slots is None or len(self._buffers) == 1 or slots[slot]:
                buffer.mark_segment_end(cut=cut)

    def _dump(self, slots: np.ndarray) -> None:
        """Dump the buffers of the slots."""
        if len(self._buffers) == 1:
            chosen = [0] if slots.any() else []
        else:
            chosen = np.flatnonzero(slots).tolist()
        dump(self._buffers, chosen, self.dump_path)

    # -- other buffers -------------------------------------------------------------------------------------

    def set_replay_buffers(
        self,
        replay_buffers: ReplayBuffer | Sequence[ReplayBuffer],
        *,
        replay_mode: ReplayMode | None = None,
        require_same_space: bool = True,
        allow_mid_episode: bool = False,
        finalize_old_segments: bool = False,
        dump_old: bool = False,
    ) -> list[ReplayBuffer]:
        """Replace the buffers.

        If the new buffers do not fit, an error is raised before anything has changed. Open episodes of the new buffers
        are closed, since no later sample belongs to them.

        Parameters
        ----------
        replay_buffers
            The new buffer, or the new ones.
        replay_mode
            A new mode, "auto" for the mode that fits the new buffers, or None to keep the current mode.
        require_same_space
            Refuse new buffers whose `single_space` differs from that of the old buffers.
        allow_mid_episode
            Allow the swap even if it splits an episode across old and new buffers; it stays open in the old buffers.
        finalize_old_segments
            Close the open episodes of the old buffers, as cut.
        dump_old
            Close them, and write snapshots of the old buffers to `dump_path`.

        Returns
        -------
        list of ReplayBuffer
            The buffers that were replaced.

        Raises
        ------
        RuntimeError
            The old buffers have open segments, and none of the last three is given; or a step or reset is under way.
        ValueError
            The new buffers are of another space, or do not fit the mode.
        """
        if self._stepping is not None or self._resetting is not None:
            raise RuntimeError("set_replay_buffers while a step or reset is under way: wait for it first")
        new, old = as_list(replay_buffers), self._buffers
        mode = self._new_mode(replay_mode, new)
        if require_same_space:
            check_same_space(old, new)
        if dump_old and self.dump_path is None:
            raise ValueError("dump_path must be provided with dump_old=True: assign wrapper.dump_path")
        if finalize_old_segments or dump_old:
            self._end_segments(cut=True)
        elif not allow_mid_episode and any(buffer.has_open_segment for buffer in old):
            raise RuntimeError(
                "the replay buffers have open segments, their episodes would be split: swap after the episodes have "
                "ended or were reset, or pass finalize_old_segments, dump_old or allow_mid_episode"
            )
        if dump_old:
            dump(old, range(len(old)), self.dump_path)
        if self._warns_if_mixed:
            warn_if_mixed(mode, self.env)
        self._buffers, self._mode = new, mode
        self._recorder = self._partial_recorders = None
        self._end_segments(cut=True)
        self._counts.skip_to(next_episode_id(new))
        return old

    buffer_swap = set_replay_buffers

    def _new_mode(self, replay_mode: ReplayMode | None, buffers: list[ReplayBuffer]) -> ReplayMode:
        if replay_mode is not None:
            return resolve_mode(replay_mode, self.env, buffers)
        try:
            return resolve_mode(self._mode, self.env, buffers)
        except ValueError as error:
            raise ValueError(f"{error}; the mode stays as it is unless replay_mode is given, such as 'auto'") from None


def _is_first(name: str, value: str, allowed: tuple[str, str]) -> bool:
    """Whether an option has the first of its two allowed values; a ValueError for any other value."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, it must be {allowed[0]!r} or {allowed[1]!r}")
    return value == allowed[0]


def _end_recording(buffer: ReplayBuffer) -> None:
    """Close the open episodes of a buffer as cut."""
    if not buffer.is_closed:
        with contextlib.suppress(PermissionError):  # in a fork, whose parent goes on recording
            buffer.mark_segment_end(cut=True)
