"""`record`: record an environment into a folder, or continue a recording."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm
from typing_extensions import Self

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, SpaceStorage, transition_space
from unienv_data.base.files import local_path
from unienv_data.checking import describe_difference
from unienv_data.replay_buffer.inspection import clear_killed_create
from unienv_data.storages.registry import name_of
from unienv_interface import Env
from unienv_interface.backends.seeding import next_seed_rng
from unienv_interface.space import Space
from unienv_interface.space.space import parse_integer
from unienv_interface.wrapper import AutoresetWrapper, autoreset_mode

PathLike = str | os.PathLike[str]


class Recording:
    """An open recording: `step` steps the environment and records the transition of every slot.

    A slot whose episode ends is reset at once. `close` (or the end of a `with` block) ends the open episodes and closes
    the buffer; the environment stays open. A step that has returned survives a kill of this process, with or without
    `close`.

    Parameters
    ----------
    env
        The environment, which does not restart by itself.
    buffer
        The buffer to record into, with a lane for each slot.

    Attributes
    ----------
    buffer
        The `ReplayBuffer` of the recording.
    observation, context
        The current observation and context, for the choice of the next action.

    Examples
    --------
    >>> with unienv.record(envs, "by_hand") as recording:
    ...     observation, reward, terminated, truncated, info = recording.step(act(recording.observation))
    ...     recording.steps
    8
    """

    def __init__(self, env: Env, buffer: ReplayBuffer) -> None:
        self.buffer = buffer
        self._env = AutoresetWrapper(ReplayBufferCollectionWrapper(env, buffer), mode="same_step")
        self._width = env.batch_size or 1
        self.observation: Any
        self.context: Any
        self.reset(seed=_next_seed(env, self.steps) if self.steps else None)

    @property
    def steps(self) -> int:
        """The number of recorded transitions of all slots and runs, including those that a ring has overwritten."""
        return self.buffer.sample_numbers.stop

    def __len__(self) -> int:
        return len(self.buffer)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.steps:,} steps: {self.buffer!r}>"

    def reset(self, *, seed: int | None = None) -> Any:
        """End the episodes of all slots, begin new ones, and return the observation."""
        self.context, self.observation, _ = self._env.reset(seed=seed)
        return self.observation

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every slot once and record the transitions.

        Parameters
        ----------
        action
            The action of each slot.

        Returns
        -------
        tuple
            Observation, reward, terminated, truncated and infos. If an episode has ended, the observation is the first
            one of the next episode, and `info["final_obs"]` is the last one.
        """
        result = self._env.step(action)
        self.observation, info = result[0], result[4]
        self.context = info.get("context", self.context) if self._env.context_space is not None else None
        return result

    def run(self, steps: int, policy: Callable[[Any], Any] | None = None, *, progress: bool = True) -> None:
        """Record until there is a number of transitions.

        Parameters
        ----------
        steps
            How many transitions there are to be in all, rounded up to a multiple of the batch size.
        policy
            A function from the observation of all slots to their actions; by default actions are random.
        progress
            Show a progress bar if the output is a terminal.

        Raises
        ------
        ValueError
            `steps` is below 1.
        """
        steps = parse_integer(steps, "steps")
        if steps < 1:
            raise ValueError(f"steps is {steps}, it must be at least 1")
        hidden = None if progress else True  # None: hidden without a terminal
        with tqdm(total=steps, initial=min(self.steps, steps), unit=" steps", disable=hidden) as bar:
            while self.steps < steps:
                self.step(self._env.sample_action() if policy is None else policy(self.observation))
                bar.update(self._width)

    def close(self) -> None:
        """End the open episodes and close the buffer. May be called more than once."""
        if not self.buffer.is_closed:
            self.buffer.mark_segment_end(cut=True)
            self.buffer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def record(
    env: Env,
    path: PathLike,
    steps: int | None = None,
    policy: Callable[[Any], Any] | None = None,
    *,
    space: Space | None = None,
    storage: type[SpaceStorage] | str | None = None,
    capacity: int | None = None,
    durable: bool = False,
    progress: bool = True,
) -> Recording:
    """Record an environment into the folder `path`, or continue the recording in it.

    With `steps`, the function records until there are this many transitions, including those of earlier runs, and then
    returns; so a program that was stopped can be started again unchanged. Without `steps`, call `step` of the returned
    recording. A run that continues a recording uses other random numbers than the earlier runs.

    Parameters
    ----------
    env
        One environment or a batch. The slots of a batch record into one buffer, each with its own episodes.
    path
        A new or empty folder, or a recording of the same space.
    steps, policy, progress
        As in `Recording.run`.
    space
        The columns of a transition, by default `transition_space(env)`.
    storage
        A class or registered name, such as "hdf5"; by default packed rows, which survive a kill of this process.
    capacity
        The number of transitions to keep, a multiple of the batch size; None keeps all.
    durable
        Whether an episode survives a power cut as soon as it has ended. Otherwise `close` makes all episodes durable.

    Returns
    -------
    Recording
        The open recording.

    Raises
    ------
    FileExistsError
        The path exists and is not a recording.
    PermissionError
        Another process records into the folder; the message names it.
    ValueError
        The recording in the folder has another space, number of slots, capacity or storage; `env` restarts by itself;
        or there is a `policy` without `steps`.
    TypeError
        `env` is no environment.

    Examples
    --------
    >>> with unienv.record(envs, "by_policy", steps=10_000, policy=act) as recording:
    ...     print(recording)
    <Recording of 10,000 steps: ...>
    >>> with unienv.record(env, "by_hand") as recording:
    ...     for _ in range(100):
    ...         result = recording.step(act(recording.observation))
    """
    if not isinstance(env, Env):
        raise TypeError(f"env is {type(env).__name__}, wanted an environment: unienv.make(env) makes it one")
    if autoreset_mode(env) != "disabled":
        raise ValueError(
            f"{env!r} restarts by itself, as a recording does: record the environment under its AutoresetWrapper"
        )
    if policy is not None and steps is None:
        raise ValueError("policy without steps: give the number of steps to record, or call `step` of the recording")
    folder, space = local_path(path), transition_space(env) if space is None else space
    lanes = env.batch_size or 1
    clear_killed_create(folder)
    if _is_empty_folder(folder):
        folder.rmdir()  # the buffer creates the folder
    if os.path.lexists(folder):
        buffer = _reopened(folder, space)
        try:
            _check_same_settings(folder, buffer, space, lanes, capacity, storage, durable)
            buffer.mark_segment_end(cut=True)  # the open episodes of an earlier run that was killed
        except BaseException:
            buffer.close()
            raise
    else:
        options: dict[str, Any] = {"capacity": capacity, "lanes": lanes, "keep_episodes": True, "durable": durable}
        buffer = ReplayBuffer.create(storage or "packed", space, cache_path=folder, **options)
    try:
        recording = Recording(env, buffer)
        if steps is not None:
            recording.run(steps, policy, progress=progress)
    except BaseException:
        buffer.mark_segment_end(cut=True)
        buffer.close()
        raise
    return recording


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and next(path.iterdir(), None) is None


def _reopened(folder: Path, space: Space) -> ReplayBuffer:
    if not ReplayBuffer.is_loadable_from(folder):
        raise FileExistsError(f"{folder}: it exists already and is not a recording, give another path")
    return ReplayBuffer.load_from(folder, backend=space.backend, device=space.device, read_only=False)


def _check_same_settings(
    folder: Path,
    buffer: ReplayBuffer,
    space: Space,
    lanes: int,
    capacity: int | None,
    storage: type[SpaceStorage] | str | None,
    durable: bool,
) -> None:
    """Raise a ValueError if an argument differs from the recording; None and False stand for omitted arguments."""
    recorded = buffer.single_space
    if recorded != space:
        raise ValueError(
            f"{folder} does not fit the environment: {describe_difference(recorded, space)}; give the environment and "
            f"backend it was recorded with, or another path"
        )
    wanted = name_of(storage) if isinstance(storage, type) else storage
    for name, before, now in (
        ("slots", buffer.lanes, lanes),
        ("capacity", buffer.capacity, capacity),
        ("storage", name_of(type(buffer.storage)), wanted),
        ("durable", buffer.is_durable, durable or None),
    ):
        if now is not None and before != now:
            raise ValueError(
                f"{folder} was recorded with {name} {before}, not {now}: give the same value, or another path"
            )


def _next_seed(env: Env, present: int) -> int | None:
    """Draw a seed that depends on the number of present transitions; None if the environment has no generator."""
    if env.rng is None:
        return None
    env.rng, drawn = next_seed_rng(env.rng, env.backend)
    return int(np.random.SeedSequence([drawn, present]).generate_state(1, np.uint32)[0])
