"""`unienv collect`: recording a Gymnasium environment into a folder, and continuing such a recording."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np
from typing_extensions import Self

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.env_base.vec_env import AsyncVecEnv, SyncVecEnv, VecEnv
from unienv_interface.space import Space, describe_mismatch
from unienv_interface.wrapper.backend_compat import ToBackendOrDeviceWrapper

from ..base.files import read_json, write_json
from ..checking import FORMATS, BeingWrittenError, ProgressCallback, describe_difference
from ..checking.reading import unwatched
from ..replay_buffer import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from ..replay_buffer.inspection import clear_killed_create
from ..storages.registry import name_of, storage_by_name
from ._environments import backend_for, env_factory, info_spaces
from ._errors import USER_ERRORS, CommandError, Stopped, UsageError, reporting_user_errors, with_type
from ._policies import Policy, make_policy

#: The file beside the buffer with the arguments of the recording, which a later run must share.
ORIGIN_FILE = "collect.json"
# Seconds between flushes, which make samples survive a power cut.
_FLUSH_SECONDS = 5.0


@dataclass(frozen=True)
class Plan:
    """The arguments of a recording; `steps` includes earlier runs, and is rounded up to complete vector steps.

    None stands for an argument that was left out: a run with --resume uses the value of the earlier run.
    """

    env_id: str
    steps: int
    out: Path
    num_envs: int = 8
    workers: int = 2
    seed: int = 0
    policy: str = "random"
    storage: str = "packed"
    resume: bool = False
    env_kwargs: Mapping[str, Any] | None = None
    episode_id: bool | None = None
    step: bool | None = None
    timestamp: bool | None = None
    context: bool | None = None
    info: Sequence[str] | None = None

    @property
    def target(self) -> int:
        return -(-self.steps // self.num_envs) * self.num_envs

    def origin(self) -> dict[str, Any]:
        """The arguments that a run must share to continue the recording."""
        names = ("env_id", "num_envs", "seed", "policy", "storage", *_DEFAULTS)
        return {name: getattr(self, name) for name in names}


#: Defaults of the arguments.
_DEFAULTS: dict[str, Any] = {
    "env_kwargs": {},
    "episode_id": False,
    "step": False,
    "timestamp": False,
    "context": False,
    "info": [],
}


@dataclass(frozen=True)
class CollectReport:
    """The result of a run: `recorded` samples in this run, `samples` in all runs.

    `stopped_by` is the signal that ended the run early; None for a complete run.
    """

    path: str
    env_id: str
    samples: int
    recorded: int
    episodes: int
    seconds: float
    steps_per_second: float
    stopped_by: int | None


def collect(plan: Plan, progress: ProgressCallback = unwatched) -> CollectReport:
    """Record until the planned number of steps, or until a signal.

    Open episodes are cut at the end. The same plan gives the same samples for any number of workers; a run with
    --resume draws other random numbers than earlier runs.
    """
    shown, plan = plan.out, replace(plan, out=plan.out.absolute())  # user code may change the current folder
    _check(plan)
    plan = _with_defaults(plan)
    with contextlib.ExitStack() as cleanup:
        envs = cleanup.enter_context(_environments(plan))
        policy = make_policy(plan.policy, envs)
        buffer, present = _open(plan, envs)
        cleanup.enter_context(_removed_if_empty(plan))
        cleanup.callback(buffer.close)
        cleanup.callback(buffer.mark_segment_end)  # runs before `close`
        progress(present, plan.target)
        seed = run_seed(plan.seed, present)
        is_moved = buffer.backend is not envs.backend  # environments run on NumPy for every format
        env = ReplayBufferCollectionWrapper(
            ToBackendOrDeviceWrapper(envs, buffer.backend) if is_moved else envs, buffer
        )
        begun = time.perf_counter()
        with StopRequest() as stop:
            try:
                _record(env, policy, seed, plan, stop, progress)
            except KeyboardInterrupt as error:
                raise Stopped(stop.signal, _kept(plan, len(buffer))) from error
            except USER_ERRORS as error:
                raise CommandError(_kept_after(error, plan, len(buffer))) from error
        seconds = time.perf_counter() - begun
        buffer.mark_segment_end(cut=True)
        samples, episodes = len(buffer), len(buffer.get_segments() or ())
    recorded = samples - present
    rate = recorded / seconds if seconds else 0.0
    return CollectReport(str(shown), plan.env_id, samples, recorded, episodes, seconds, rate, stop.signal)


def _record(
    env: ReplayBufferCollectionWrapper,
    policy: Policy,
    seed: int,
    plan: Plan,
    stop: StopRequest,
    progress: ProgressCallback,
) -> None:
    (buffer,) = env.replay_buffers
    to_numpy, flushed = env.backend.to_numpy, time.monotonic()
    rng = np.random.default_rng(seed)
    _, observation, _ = env.reset(seed=seed)
    actions, observations = env.action_space.to(NumpyComputeBackend), env.observation_space
    is_moved = env.backend is not NumpyComputeBackend
    for done in range(len(buffer), plan.target, plan.num_envs):
        if stop.signal is not None:
            return
        action = policy(observations.data_to(observation, NumpyComputeBackend) if is_moved else observation, rng)
        try:
            result = env.step(actions.data_to(action, env.backend) if is_moved else action)
        except USER_ERRORS as error:
            finding = describe_mismatch(actions, action)
            if finding is None:
                raise
            raise CommandError(f"policy {plan.policy!r}: action: {finding}") from error
        observation, _, terminated, truncated, _ = result
        progress(done + plan.num_envs, plan.target)
        ended = to_numpy(terminated) | to_numpy(truncated)
        if ended.any():
            mask = env.backend.from_numpy(ended)
            _, first, _ = env.reset(mask=mask)
            observation = env.update_observation_post_reset(observation, first, mask)
        if time.monotonic() - flushed > _FLUSH_SECONDS:
            buffer.flush()
            flushed = time.monotonic()


def run_seed(seed: int, present: int) -> int:
    """Return the seed of a run: the given seed for the first run, another seed after `present` samples."""
    if not present:
        return seed
    return int(np.random.SeedSequence([seed, present]).generate_state(1, np.uint32)[0])


@contextlib.contextmanager
def _removed_if_empty(plan: Plan) -> Iterator[None]:
    """Remove the folder of a run that fails before its first step, so that the next run can use the path."""
    try:
        yield
    except CommandError:
        if not plan.resume and ReplayBuffer.get_length_from_path(plan.out) == 0:
            shutil.rmtree(plan.out, ignore_errors=True)
        raise


def _kept_after(error: BaseException, plan: Plan, samples: int) -> str:
    if not samples:
        return f"{with_type(error)}; nothing was recorded"
    return f"{with_type(error)}; {_kept(plan, samples)}"


def _kept(plan: Plan, samples: int) -> str:
    return f"the {samples:,} samples recorded until then are kept in {plan.out}, continue with --resume"


def _check(plan: Plan) -> None:
    for name, least in (("steps", 1), ("num_envs", 1), ("workers", 0), ("seed", 0)):
        if getattr(plan, name) < least:
            raise UsageError(f"{name} is {getattr(plan, name)}, it must be at least {least}")
    if plan.storage not in FORMATS:
        raise UsageError(f"storage is {plan.storage!r}, it must be one of {', '.join(FORMATS)}")
    if plan.resume and not plan.out.exists():
        raise CommandError(f"{plan.out}: there is no recording to continue")
    clear_killed_create(plan.out)
    if plan.resume and _is_empty_folder(plan.out):
        raise CommandError(f"{plan.out}: the folder is empty, record into it without --resume")
    if not plan.resume and os.path.lexists(plan.out) and not _is_empty_folder(plan.out):
        can_resume = (plan.out / ORIGIN_FILE).exists() or _is_without_samples(plan.out)
        way_out = "continue it with --resume, or give another path" if can_resume else "give another path"
        raise CommandError(f"{plan.out}: it exists already; {way_out}")


def _is_without_samples(path: Path) -> bool:
    """Whether a folder has a buffer without samples, as after a kill before the first step."""
    return ReplayBuffer.get_length_from_path(path) == 0


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and next(path.iterdir(), None) is None


@contextlib.contextmanager
def _environments(plan: Plan) -> Iterator[VecEnv]:
    make = env_factory(plan.env_id, plan.env_kwargs or {}, with_context=bool(plan.context))
    factories = [make] * plan.num_envs
    with reporting_user_errors():
        if plan.workers:
            envs: VecEnv = AsyncVecEnv(factories, seed=plan.seed, num_workers=min(plan.workers, plan.num_envs))
        else:
            envs = SyncVecEnv(factories, seed=plan.seed)
    with envs:
        yield envs


# -- the folder --------------------------------------------------------------------------------------------


def _with_defaults(plan: Plan) -> Plan:
    """Fill in the defaults of a plan; a CommandError if it does not fit the earlier run."""
    if plan.info is not None:
        plan = replace(plan, info=sorted(set(plan.info)))
    recorded = {**_DEFAULTS, **(_read_origin(plan) if plan.resume else {})}
    left_out = {name: recorded[name] for name in _DEFAULTS if getattr(plan, name) is None}
    plan = replace(plan, **left_out)
    if plan.resume:
        _check_same_origin(plan, recorded)
    return plan


def _read_origin(plan: Plan) -> dict[str, Any]:
    path = plan.out / ORIGIN_FILE
    if not path.exists() and _is_without_samples(plan.out):
        return {name: value for name, value in plan.origin().items() if value is not None}
    if not path.exists():
        raise CommandError(f"{plan.out}: not made by `unienv collect`, there is no {ORIGIN_FILE}")
    return read_json(path, checksum=True)


def _check_same_origin(plan: Plan, recorded: Mapping[str, Any]) -> None:
    for name, wanted in plan.origin().items():
        if recorded.get(name) != wanted:
            option = name.replace("_", "-")
            raise CommandError(
                f"{plan.out} was recorded with {option} {recorded.get(name)!r}, not {wanted!r}: give the same value, "
                f"or another folder"
            )


def _open(plan: Plan, envs: VecEnv) -> tuple[ReplayBuffer, int]:
    """Open the buffer to record into, and return it with the number of its samples."""
    if plan.resume:
        buffer = _reopen(plan, envs)
        return buffer, len(buffer)
    with reporting_user_errors():
        infos = info_spaces(envs, plan.info) if plan.info else None
    space = _space(plan, envs, infos)
    cls = storage_by_name(FORMATS[plan.storage])
    capacity = plan.target if plan.storage == "pt" else None
    options: Any = {"capacity": capacity, "lanes": plan.num_envs, "maintain_segment_metadata": True}
    if _is_empty_folder(plan.out):
        plan.out.rmdir()  # the buffer creates the folder
    buffer = ReplayBuffer.create(cls, space, cache_path=plan.out, **options)
    try:
        _write_origin(plan)
    except BaseException:  # without this file, no run could continue the recording
        buffer.close()
        shutil.rmtree(plan.out, ignore_errors=True)
        raise
    return buffer, 0


def _write_origin(plan: Plan) -> None:
    write_json(plan.out / ORIGIN_FILE, {"type": "collect", **plan.origin()})


def _space(plan: Plan, envs: VecEnv, info: Mapping[str, Space] | None) -> Space:
    space = transition_space(
        envs,
        context=bool(plan.context),
        episode_id=bool(plan.episode_id),
        step=bool(plan.step),
        timestamp=bool(plan.timestamp),
        info=info,
    )
    return space.to(backend_for(plan.storage))


def _reopen(plan: Plan, envs: VecEnv) -> ReplayBuffer:
    try:
        buffer: Any = ReplayBuffer.load_from(plan.out, backend=backend_for(plan.storage), read_only=False)
    except BeingWrittenError as error:
        raise CommandError(
            f"{plan.out}: process {error.pid} is recording into it; wait for it, or give another path"
        ) from error
    try:
        info = buffer.single_space["info"].to(envs.backend).spaces if plan.info else None
        space = _space(plan, envs, info)
        if buffer.single_space != space:
            raise CommandError(
                f"{plan.out} does not fit {plan.env_id}: {describe_difference(buffer.single_space, space)}"
            )
        if buffer.capacity is not None and buffer.capacity < plan.target:
            kind = name_of(type(buffer.storage))
            raise CommandError(
                f"{plan.out} has room for {buffer.capacity:,} steps, and its storage ({kind}) cannot grow"
            )
        if not (plan.out / ORIGIN_FILE).exists():  # the earlier run was killed before it wrote this file
            _write_origin(plan)
        buffer.mark_segment_end(cut=True)  # the open episodes of an earlier run that was killed
    except BaseException:
        buffer.close()
        raise
    return buffer


# -- signals -------------------------------------------------------------------------------------------------


class StopRequest:
    """During a `with` block, SIGINT and SIGTERM only set `signal`; a second signal raises a KeyboardInterrupt.

    The caller can thus stop between two steps. Outside of the main thread signal handlers do not change.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
