"""Many environments as one batched environment, in this process or in several.

`SyncVecEnv` steps its environments one after the other, `AsyncVecEnv` in worker processes; everything they have in
common is in `VecEnv` (`_vec_core.py`). Asking and waiting are two verbs, and in the synchronous one the asking already
does the work.

The returned batch is the caller's: it does not change at the next step. With `copy=False` an `AsyncVecEnv` hands out
its shared memory itself, which the next step overwrites.

Seeds: `reset(seed=s)` gives each environment a seed of its own derived from s, the same one whatever the number of
workers and whichever other environments are reset with it. Without a seed, one is drawn from `rng`.
"""

from __future__ import annotations

import itertools
import os
import pickle
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.context import BaseContext
from typing import Any, Literal

import cloudpickle
import numpy as np

from ..space.row_layout import RowLayout, Rows
from ..utils.shared_block import SharedBlock
from ._env_group import EnvGroup, Slots
from ._stacking import data_stack
from ._vec_core import Infos, VecEnv
from ._worker import (
    CALL,
    GET_ATTR,
    HEAP_SHIFT,
    RESET,
    SET_ATTR,
    STEP,
    MemoryPlan,
    MessageHeap,
    export_rows,
    import_rows,
    result_arrays,
    row_arrays,
)
from ._worker_pool import WorkerDied, WorkerPool, default_context
from .env import Env

__all__ = ["AsyncVecEnv", "SyncVecEnv", "VecEnv", "WorkerDied", "data_stack"]


class SyncVecEnv(VecEnv):
    """Run multiple non-batched environments synchronously in one process."""

    def __init__(self, env_fn: Iterable[Callable[[], Env]], seed: int | None = None, *, validate: bool = False) -> None:
        """Instantiate every environment immediately and batch their interfaces.

        `validate` checks every action against the action space before any environment moves.
        """
        self._group = EnvGroup()
        self._group.build(list(env_fn))
        self.envs = self._group.envs
        try:
            self._set_up(self._group.specs, seed, validate)
        except BaseException:
            self._group.close(quiet=True)
            raise
        self._observation_layout = RowLayout(self._spec.observation_space)
        self._context_layout = None if self._spec.context_space is None else RowLayout(self._spec.context_space)
        self._done: list[tuple[np.ndarray, Slots, Infos]] = []

    def _slots(self, count: int) -> Slots:
        # made for one call: what is handed out of it is the caller's
        return Slots.empty(self._observation_layout, self._context_layout, count)

    def _begin_reset(
        self, indices: np.ndarray, seeds: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        slots = self._slots(len(indices))
        infos = self._group.reset(indices.tolist(), seeds, args, kwargs, slots, range(len(indices)))
        self._done.append((indices, slots, infos))

    def _begin_step(self, indices: np.ndarray, action: Any) -> None:
        slots = self._slots(len(indices))
        infos = self._group.step(indices.tolist(), self.action_space, action, slots, range(len(indices)))
        self._done.append((indices, slots, infos))

    def _finish(self, indices: np.ndarray, what: str, least: int | None) -> tuple[np.ndarray, Slots, Infos]:
        done, self._done = self._done, []
        if len(done) == 1:
            return done[0]
        # several partial steps, waited for together
        slots = self._slots(sum(len(part) for part, _, _ in done))
        start = 0
        for part, results, _ in done:
            rows = list(range(start, start + len(part)))
            import_rows(result_arrays(slots), rows, export_rows(result_arrays(results), list(range(len(part)))))
            start += len(part)
        ready = np.concatenate([part for part, _, _ in done])
        return ready, slots, [info for _, _, infos in done for info in infos]

    def render(self) -> Sequence[Any] | None:
        """The frames of all environments that give one, or None if none does."""
        frames = [frame for frame in (env.render() for env in self.envs) if frame is not None]
        return frames or None

    def call(self, name: str, *args: Any, index: Iterable[int] | None = None, **kwargs: Any) -> list[Any]:
        return [self._group.call(target, name, args, kwargs) for target in self._targets(index)]

    def get_attr(self, name: str, index: Iterable[int] | None = None) -> list[Any]:
        return [self._group.get_attr(target, name) for target in self._targets(index)]

    def set_attr(self, name: str, value: Any, index: Iterable[int] | None = None) -> None:
        targets = self._targets(index)
        for target, one in zip(targets, self._values_for(value, targets), strict=True):
            self._group.set_attr(target, name, one)

    def close(self) -> None:
        self._group.close()


class _CollectedHeap:
    """The values without a fixed size of the last answer of every worker."""

    def __init__(self) -> None:
        self.data: dict[int, bytes] = {}

    def write(self, data: bytes) -> int:
        raise TypeError("results are written by the workers")

    def read(self, offset: int, length: int) -> memoryview:
        start = offset & ((1 << HEAP_SHIFT) - 1)
        return memoryview(self.data[offset >> HEAP_SHIFT])[start : start + length]


class AsyncVecEnv(VecEnv):
    """Run multiple non-batched environments in separate worker processes."""

    def __init__(
        self,
        env_fn: Iterable[Callable[[], Env]],
        seed: int | None = None,
        ctx: BaseContext | None = None,
        daemon: bool = True,
        *,
        num_workers: int | None = None,
        timeout: float | None = 60.0,
        on_worker_error: Literal["raise", "restart"] = "raise",
        shared_memory: bool = True,
        copy: bool = True,
        validate: bool = False,
    ) -> None:
        """Spawn worker processes and batch their exposed spaces.

        - `num_workers`: processes, each with a contiguous share of the environments; as many as cores by default.
        - `timeout`: seconds that a command may take (None: for ever).
        - `on_worker_error`: what happens when an environment raises in a step or reset, dies or hangs: `"raise"`, or
          `"restart"` its worker and report its slots as truncated, with `info["restarted"]` true for them.
        - `shared_memory`: False sends all results through the pipe.
        - `copy`: False hands out the shared memory itself, which the next step overwrites.
        - `validate`: check every action against the action space before any environment moves.

        Factories travel by cloudpickle, so lambdas and closures work with every start method. No environment is
        built in this process.
        """
        factories = list(env_fn)
        if not factories:
            raise ValueError("env_fn gives no environments, a vector environment wants at least one")
        if on_worker_error not in ("raise", "restart"):
            raise ValueError(f"on_worker_error is {on_worker_error!r}, it must be 'raise' or 'restart'")
        workers = min(num_workers if num_workers is not None else os.cpu_count() or 1, len(factories))
        if workers < 1:
            raise ValueError(f"num_workers is {num_workers}, there must be at least one")
        self.num_workers = workers
        self.timeout = timeout
        self.on_worker_error = on_worker_error
        self.shared_memory = shared_memory
        self._copies = copy or not shared_memory
        shares = [range(*bounds) for bounds in _split(len(factories), workers)]
        pool = WorkerPool(factories, shares, ctx or default_context(), daemon)
        self._pool = pool
        # Runs when the object goes, at the interpreter's exit, or at close(), whichever comes first.
        self._finalizer = weakref.finalize(self, pool.close)
        try:
            specs = [spec for report in pool.started(range(workers), timeout) for spec in report]
            self._set_up(specs, seed, validate)
            self._worker_of = np.repeat(np.arange(workers), [len(share) for share in shares])
            plan = MemoryPlan.of(self._spec, self._count, workers)
            block = SharedBlock.create(plan.nbytes) if shared_memory else None
            self._heap, self._action_heap = _CollectedHeap(), MessageHeap(0)
            self._slots, self._actions, progress = plan.lay_out(block, self._heap, self._action_heap)
            pool.attach(plan, block, progress["index"] if shared_memory else None, timeout)
        except BaseException:
            self._finalizer()
            raise
        self._whole = [(worker, np.array(share)) for worker, share in enumerate(shares)]
        self._requests: dict[int, tuple[int, np.ndarray]] = {}  # request: worker, environments
        self._commands: dict[int, list[int]] = {}  # environment: requests of send_command, oldest first
        self._lost: set[int] = set()  # restarted, and the caller does not know it yet
        self._ended: dict[int, dict[str, Any]] = {}  # environments whose command has ended, with their infos
        self._before: Rows | None = None  # the last observations, for slots that are restarted

    @property
    def command_pipes(self) -> list[Any]:
        """The parent's ends of the workers' connections."""
        return self._pool.connections

    @property
    def processes(self) -> list[Any]:
        """The worker processes."""
        return self._pool.processes

    @property
    def error_queue(self) -> Any:
        """Reports of the errors that environments have raised, oldest first."""
        return self._pool.errors

    # -- the two verbs -------------------------------------------------------------------------------------

    def _per_worker(self, indices: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Which of these environments belong to which worker."""
        if len(indices) == self._count:
            return self._whole
        owners = self._worker_of[indices]
        return [(int(worker), indices[owners == worker]) for worker in np.unique(owners)]

    def _begin_reset(
        self, indices: np.ndarray, seeds: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        seed_of = dict(zip(indices.tolist(), seeds, strict=True))
        self._lost.difference_update(seed_of)
        for worker, own in self._per_worker(indices):
            self._ask(worker, RESET, self._reset_payload(worker, own, seed_of, args, kwargs), own)

    def _reset_payload(
        self, worker: int, envs: np.ndarray, seed_of: dict[int, int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bytes:
        first, indices = self._pool.shares[worker].start, envs.tolist()
        return cloudpickle.dumps(([i - first for i in indices], [seed_of[i] for i in indices], args, kwargs))

    def _begin_step(self, indices: np.ndarray, action: Any) -> None:
        shares = self._per_worker(indices)
        if self._requests:
            self._check_workers_free(shares)
        is_whole = len(indices) == self._count
        self._action_heap.data = bytearray()
        self._actions.layout.pack(self._actions, slice(None) if is_whole else indices, action)
        for worker, own in shares:
            if self._lost:
                own = self._report_lost(own)
            payload = b""
            if not (is_whole and self.shared_memory and not self._action_heap.data) or len(own) < len(
                self._pool.shares[worker]
            ):
                first = self._pool.shares[worker].start
                parts = [] if self.shared_memory else export_rows(row_arrays(self._actions), own.tolist())
                payload = pickle.dumps(((own - first).tolist(), parts, bytes(self._action_heap.data)))
            if len(own):
                self._ask(worker, STEP, payload, own)

    def _check_workers_free(self, shares: list[tuple[int, np.ndarray]]) -> None:
        busy = dict(self._requests.values())
        for worker, own in shares:
            if worker in busy:
                raise RuntimeError(
                    f"environments {own.tolist()} share worker {worker} with {busy[worker].tolist()}, which are still "
                    "stepping: call step_wait first, or use more workers"
                )

    def _ask(self, worker: int, code: int, payload: bytes, envs: np.ndarray) -> None:
        try:
            number = self._pool.send(worker, code, payload, self.timeout)
        except (WorkerDied, TimeoutError) as error:
            self._recover(worker, envs, error, is_step=code == STEP)
        else:
            self._requests[number] = (worker, envs)

    def _finish(self, indices: np.ndarray, what: str, least: int | None) -> tuple[np.ndarray, Slots, Infos]:
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        wanted = len(indices) if least is None else least
        while len(self._ended) < wanted:
            ended = self._pool.outcomes(list(self._requests), deadline, what, least=1)
            for number, outcome in ended.items():
                worker, envs = self._requests.pop(number)
                if isinstance(outcome, BaseException):
                    self._recover(worker, envs, outcome, is_step=what == "step")
                else:
                    self._take_in(worker, envs, outcome.payload)
        infos, self._ended = self._ended, {}
        ready = indices if len(infos) == len(indices) else indices[np.isin(indices, list(infos))]
        if self.on_worker_error == "restart":
            self._before = self._slots.observations.take(self._all)
        return ready, self._handed_out(ready), [infos[index] for index in ready.tolist()]

    def _take_in(self, worker: int, envs: np.ndarray, payload: bytes) -> None:
        """Note that a worker has done what it was asked; results that are not in shared memory are in its answer."""
        if not payload:
            self._ended.update(dict.fromkeys(envs.tolist(), _NO_INFO))
            return
        infos, heap, parts = pickle.loads(payload)
        self._heap.data[worker] = heap
        if parts:
            import_rows(result_arrays(self._slots), envs.tolist(), parts)
        self._ended.update(zip(envs.tolist(), infos, strict=True))

    def _handed_out(self, ready: np.ndarray) -> Slots:
        slots = self._slots
        if not self._copies and len(ready) == self._count:
            return slots
        contexts = None if slots.contexts is None else slots.contexts.take(ready)
        return Slots(slots.observations.take(ready), contexts, slots.signals.take(ready))

    # -- recovery ------------------------------------------------------------------------------------------

    def _recover(self, worker: int, envs: np.ndarray, error: BaseException, is_step: bool) -> None:
        """Raise the error, or put a new worker in the place of the one it came from."""
        if self.on_worker_error == "raise":
            self._pool.abandon(list(self._requests))
            self._requests, self._ended = {}, {}
            raise error
        self._pool.restart(worker, self.timeout)
        share = np.array(self._pool.shares[worker])
        seeds = self._drawn_seeds()
        seed_of = {index: seeds[index] for index in share.tolist()}
        number = self._pool.send(worker, RESET, self._reset_payload(worker, share, seed_of, (), {}), self.timeout)
        (answer,) = self._pool.answers([number], self.timeout, "reset after a restart")
        asked = set(envs.tolist())
        ended, self._ended = self._ended, {}
        self._take_in(worker, share, answer.payload)
        self._ended = {**ended, **{index: info for index, info in self._ended.items() if index in asked}}
        # the others of this worker have lost their episodes too; their next step says so
        self._lost.update(set(share.tolist()) - asked)
        self._report_restart(envs, is_step)

    def _report_lost(self, envs: np.ndarray) -> np.ndarray:
        """Report environments that were restarted since their last step; returns the others, which can step."""
        lost = envs[np.isin(envs, list(self._lost))]
        self._lost.difference_update(lost.tolist())
        self._ended.update(dict.fromkeys(lost.tolist(), _NO_INFO))
        self._report_restart(lost, is_step=True)
        return envs[~np.isin(envs, lost)]

    def _report_restart(self, envs: np.ndarray, is_step: bool) -> None:
        """Make the results of restarted environments those of an episode cut short: the last observation again."""
        for index in envs.tolist():
            self._ended[index] = {"restarted": True} if is_step else {**self._ended[index], "restarted": True}
        if not is_step:
            return
        self._slots.signals[envs] = (0.0, False, True)
        before, now = self._before, self._slots.observations
        if before is not None and not now.layout.has_heap:
            for old, new in zip(row_arrays(before), row_arrays(now), strict=True):
                new[envs] = old[envs]

    # -- the rest ------------------------------------------------------------------------------------------

    def _position(self, index: int) -> tuple[int, int]:
        """The worker of an environment, and its place there."""
        if not 0 <= index < self._count:
            raise IndexError(f"index {index}, there are {self._count} environments")
        worker = int(self._worker_of[index])
        return worker, index - self._pool.shares[worker].start

    def _send_call(self, code: int, index: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        worker, position = self._position(index)
        return self._pool.send(worker, code, cloudpickle.dumps((position, name, args, kwargs)), self.timeout)

    def _call_all(
        self, code: int, name: str, calls: Iterable[tuple[int, tuple[Any, ...], dict[str, Any]]]
    ) -> list[Any]:
        self._check_idle(name)
        numbers = [self._send_call(code, index, name, args, kwargs) for index, args, kwargs in calls]
        answers = self._pool.answers(numbers, self.timeout, name)
        return [pickle.loads(answer.payload) if answer.payload else None for answer in answers]

    def send_command(
        self, index: int, cmd: Literal["reset", "step", "render", "close"], *args: Any, **kwargs: Any
    ) -> None:
        """Send a command for one environment to its worker; `get_command_result` brings the result."""
        self._commands.setdefault(index, []).append(self._send_call(CALL, index, cmd, args, kwargs))

    def get_command_result(self, index: int) -> Any:
        """Receive one worker result and surface worker-side exceptions."""
        if not self._commands.get(index):
            raise RuntimeError(f"no command was sent to environment {index}, there is no result to wait for")
        number = self._commands[index].pop(0)
        (answer,) = self._pool.answers([number], self.timeout, f"command of environment {index}")
        return pickle.loads(answer.payload)

    def call(self, name: str, *args: Any, index: Iterable[int] | None = None, **kwargs: Any) -> list[Any]:
        return self._call_all(CALL, name, [(target, args, kwargs) for target in self._targets(index)])

    def get_attr(self, name: str, index: Iterable[int] | None = None) -> list[Any]:
        return self._call_all(GET_ATTR, name, [(target, (), {}) for target in self._targets(index)])

    def set_attr(self, name: str, value: Any, index: Iterable[int] | None = None) -> None:
        targets = self._targets(index)
        values = self._values_for(value, targets)
        self._call_all(SET_ATTR, name, [(target, (one,), {}) for target, one in zip(targets, values, strict=True)])

    def render(self) -> Sequence[Any] | None:
        """The frames of all environments that give one, or None if none does."""
        frames = [frame for frame in self.call("render") if frame is not None]
        return frames or None

    def close(self) -> None:
        """Shut down all worker processes and communication pipes. Returns within two seconds, whatever they do."""
        self._finalizer()


_NO_INFO: dict[str, Any] = {}


def _split(count: int, parts: int) -> list[tuple[int, int]]:
    """Bounds of contiguous shares whose sizes differ by one at most."""
    edges = [count * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(edges))
