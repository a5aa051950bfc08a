"""Environments in worker processes; see `vec_env`."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import Any, Literal, NamedTuple

import numpy as np

from ...backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ...space.row_layout import Rows
from ...utils.channel import pickled
from ...utils.worker_processes import WorkerDied
from ..env import ActType, ContextType, Env, ObsType, RenderFrame
from .base import Call, VecEnv
from .env_group import Access
from .infos import AnyInfos, InfoRows, Infos, common_rows
from .memory import Control, MemoryPlan, PartedHeap, export_rows, import_rows, result_arrays, row_arrays
from .pool import Answer, Command, WorkerPool
from .worker import ACCESS, INFOS_IN_ROWS, RESET_SOME, STEP, STEP_SOME

_ABORT_GRACE = 0.4  # seconds for workers to end by themselves when one of them cannot be built


class _Reset(NamedTuple):
    """What environments are reset with, should the reset have to be repeated."""

    seeds: dict[int, int]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class AsyncVecEnv(VecEnv[BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType]):
    """Run multiple non-batched environments in separate worker processes.

    In a step, the parent writes the actions to shared memory, wakes the workers and blocks. Each worker steps its
    environments and writes the results to shared memory, and the parent returns a copy. Values without a fixed size,
    infos that are not numbers, frames, errors and attributes go through a pipe.

    Parameters
    ----------
    env_fn
        A factory for each environment. Cloudpickle sends the factories to the workers, so lambdas and closures work
        with every start method. No environment is created in this process.
    seed
        The seed of `rng`, which draws the seeds of resets without a seed.
    ctx
        The context of `multiprocessing` that starts the workers; by default Python's own, but no fork once JAX is
        imported.
    daemon
        Whether the processes are daemonic.
    num_workers
        The number of processes, each with a contiguous range of the environments; by default one for each core.
    timeout
        The seconds that a command may take; None for no limit.
    on_worker_error
        What happens when an environment raises in a step or reset, dies or hangs. `"raise"`: an error. `"restart"`:
        its worker is restarted, and its slots are reported as truncated, with `info["restarted"]` true. The other
        environments of this worker are restarted, too, and report it in their next step.
    shared_memory
        Whether results go through shared memory; with False all go through the pipes.
    copy
        Whether to return copies; with False the next step overwrites the returned arrays.
    validate
        Whether to check every action against the action space before any environment moves.

    Raises
    ------
    ValueError
        There are no environments, their spaces cannot be batched, or a setting is wrong.
    WorkerDied, TimeoutError
        A worker has died or has taken longer than the timeout. Every command may raise them.

    Examples
    --------
    >>> envs = AsyncVecEnv([MyEnv] * 8, seed=0, num_workers=2)
    >>> _, observation, _ = envs.reset()
    >>> envs.close()
    """

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
        factories = list(env_fn)
        if not factories:
            raise ValueError("env_fn gives no environments, a vector environment wants at least one")
        if on_worker_error not in ("raise", "restart"):
            raise ValueError(f"on_worker_error is {on_worker_error!r}, it must be 'raise' or 'restart'")
        if timeout is not None and timeout <= 0:
            raise ValueError(f"timeout is {timeout}, it must be a number of seconds above 0, or None for ever")
        workers = min(_cores() if num_workers is None else num_workers, len(factories))
        if workers < 1:
            raise ValueError(f"num_workers is {num_workers}, there must be at least one")
        self.num_workers = workers
        self.timeout = timeout
        self.on_worker_error = on_worker_error
        self.shared_memory = shared_memory
        self._copies = copy or not shared_memory
        ranges = _split(len(factories), workers)
        self._pool = WorkerPool(factories, ranges, ctx, daemon)
        # When the object goes, or at the interpreter's exit, before multiprocessing waits for its children there.
        self._finalizer = Finalize(self, self._pool.close, exitpriority=100)
        try:
            self._set_up(self._pool.build(range(workers), timeout), seed, validate)
            plan = MemoryPlan.of(self._spec, self._count, Control.nbytes(workers, self._count))
            self._pool.attach(plan, shared_memory, timeout)
            self._heap, self._action_heap = (PartedHeap([0]) for _ in range(2))
            block = self._pool.block if shared_memory else None
            self._results, self._actions, self._info_area = plan.lay_out(block, self._heap, self._action_heap)
        except BaseException:
            self._finalizer.cancel()
            self._pool.close(grace=_ABORT_GRACE)
            raise
        self._worker_of = [worker for worker, own in enumerate(ranges) for _ in own]
        self._whole = [(worker, list(own)) for worker, own in enumerate(ranges)]
        self._pending: dict[Command, list[int]] = {}  # environments of the commands that were given
        # environments whose command has ended, with their info, or with the rows that it is in
        self._ended: dict[int, dict[str, Any] | InfoRows] = {}
        self._info_rows: dict[int, InfoRows] = {}  # of the workers that write infos to rows
        self._sent: dict[int, list[Command]] = {}  # environment: what `send_command` has given, oldest first
        self._reset: _Reset | None = None  # the one under way
        self._lost: set[int] = set()  # environments that were restarted, and the caller does not know it yet
        self._last: Rows | None = None  # what the caller saw last, for slots that are restarted
        self._last_parts: dict[int, bytearray] = {}
        self._seen = np.zeros(self._count, bool)

    @property
    def command_pipes(self) -> list[Any]:
        """The parent's ends of the pipes, one for each worker.

        They carry what does not fit into shared memory. What is read from them here is lost to the environment.
        """
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

    def _per_worker(self, indices: np.ndarray) -> list[tuple[int, list[int]]]:
        """Which of these environments belong to which worker, in ascending order."""
        if indices is self._all:
            return self._whole
        by_worker: dict[int, list[int]] = {}
        for index in sorted(indices.tolist()):
            by_worker.setdefault(self._worker_of[index], []).append(index)
        return list(by_worker.items())

    def _begin_reset(
        self, indices: np.ndarray, seeds: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._reset = reset = _Reset(dict(zip(indices.tolist(), seeds, strict=True)), args, kwargs)
        payload = _reset_payload(reset)  # before the first worker is told, since it may be refused
        self._lost.difference_update(reset.seeds)
        for worker, own in self._per_worker(indices):
            self._pool.control.seeds[own] = [reset.seeds[index] for index in own]
            self._give(worker, RESET_SOME, "reset", own, payload)

    def _begin_step(self, indices: np.ndarray, action: Any) -> None:
        self._reset = None
        parts = self._action_heap.parts = {}
        self._write_actions(indices, action)
        for worker, own in self._per_worker(indices):
            if self._lost:
                own = self._report_lost(own)
                if not own:
                    continue
            payload = None
            if parts or not self.shared_memory:
                records = [] if self.shared_memory else export_rows(row_arrays(self._actions), own)
                payload = pickle.dumps((records, parts))
            is_whole = len(own) == len(self._whole[worker][1])
            self._give(worker, STEP if is_whole else STEP_SOME, "step", own, payload)

    def _write_actions(self, indices: np.ndarray, action: Any) -> None:
        rows = self._actions
        if indices is self._all:
            dtype, shape = rows.layout.plain_value
            if type(action) is np.ndarray and action.dtype is dtype and action.shape == (self._count, *shape):
                rows.columns[0][:] = action
                return
            indices = slice(None)  # type: ignore[assignment]
        rows.layout.pack(rows, indices, action)

    def _give(self, worker: int, code: int, what: str, envs: list[int], payload: bytes | None) -> None:
        try:
            command = self._pool.give(worker, code, what, self.timeout, payload, None if code == STEP else envs)
        except (WorkerDied, TimeoutError) as error:
            self._recover(worker, envs, error)
        else:
            self._pending[command] = envs

    def _finish(self, indices: np.ndarray, least: int | None) -> tuple[np.ndarray, AnyInfos]:
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        wanted = len(indices) if least is None else least
        while self._pending and len(self._ended) < wanted:
            enough = None if least is None else 1
            for command, outcome in self._pool.wait(self._pending, deadline, enough).items():
                envs = self._pending.pop(command, None)
                if envs is None:
                    continue  # its worker was restarted over another one
                if isinstance(outcome, BaseException):
                    self._recover(command.worker, envs, outcome)
                else:
                    self._take(command, envs, outcome)
        ended, self._ended = self._ended, {}
        ready = indices if len(ended) == len(indices) else indices[np.isin(indices, list(ended))]
        if self.on_worker_error == "restart":
            self._remember(ready)
        return ready, self._infos(ended, ready)

    def _take(self, command: Command, envs: list[int], answer: Answer) -> None:
        """Note the infos of a step or reset, and what of its results is not in shared memory."""
        worker, ended = command.worker, self._ended
        if answer.code == INFOS_IN_ROWS:
            ended.update(dict.fromkeys(envs, self._info_rows[worker]))
        elif not answer.payload:
            ended.update(dict.fromkeys(envs, _NO_INFO))
        else:
            infos = self._read(command, envs, answer.payload)
            ended.update(zip(envs, infos, strict=True))

    def _read(self, command: Command, envs: list[int], payload: bytes) -> Infos:
        """Take over the results in a payload; returns the infos, whose form may be in rows from now on."""
        infos, parts, records, form = pickle.loads(payload)
        self._heap.parts.update(parts)
        if records:
            import_rows(result_arrays(self._results), envs, records)
        if form is not None:
            worker = command.worker
            self._info_rows[worker] = InfoRows(form, self._info_area, self._pool.ranges[worker])
            self._pool.control.rings[worker].known_form = command.number
        return infos

    def _infos(self, ended: dict[int, Any], ready: np.ndarray) -> AnyInfos:
        """The infos of environments that are ready: in rows if all are, none if all are empty."""
        if not any(ended.values()):
            return []
        common = common_rows([ended[own[0]] for _, own in self._whole]) if ready is self._all else None
        if common is not None:
            return common
        for worker, rows in self._info_rows.items():
            own = self._whole[worker][1]
            if ended.get(own[0]) is rows:
                ended.update(zip(own, rows.read(), strict=True))
        return [ended[index] for index in ready.tolist()]

    def _give_up(self) -> None:
        if self._pending or self._ended:
            self._lost.update(index for index, info in self._ended.items() if _is_restarted(info))
            self._pool.abandon(list(self._pending))
            self._pending, self._ended = {}, {}
        self._resetting = self._stepping = None

    # -- recovery ------------------------------------------------------------------------------------------

    def _recover(self, worker: int, envs: list[int], error: BaseException) -> None:
        """Raise the error, or put a new worker in the place of the one it came from."""
        if self.on_worker_error == "raise":
            self._give_up()
            raise error
        try:
            self._restart(worker, envs, is_responsive=not isinstance(error, (WorkerDied, TimeoutError)))
        except BaseException as failure:
            self._pool.end(worker)  # it may have environments that were not reset; the next command starts another
            self._give_up()
            raise failure from error

    def _restart(self, worker: int, envs: list[int], is_responsive: bool) -> None:
        """Rebuild and reset the environments of a worker; these are reported as restarted, the others later."""
        for command in [command for command in self._pending if command.worker == worker]:
            envs = [*envs, *self._pending.pop(command)]  # these were next
        own = self._whole[worker][1]
        for index in own:
            self._sent.pop(index, None)
        self._info_rows.pop(worker, None)
        self._pool.restart(worker, self.timeout, is_responsive=is_responsive)
        others = [index for index in own if index not in envs]
        anew = _Reset(dict(enumerate(self._drawn_seeds(self._all))), (), {})
        with self._keeping([index for index in others if index in self._ended]):
            infos = self._reset_now(worker, [(envs, self._reset or anew), (others, anew)])
        self._lost.update(index for index in others if not _is_restarted(self._ended.get(index)))
        if self._reset is None:
            self._report_restart(envs)
        else:
            self._ended.update({index: {**infos[index], "restarted": True} for index in envs})

    def _reset_now(self, worker: int, resets: Sequence[tuple[list[int], _Reset]]) -> dict[int, dict[str, Any]]:
        """Reset environments of a new worker and wait for it; returns their infos."""
        commands: dict[Command, list[int]] = {}
        for envs, reset in resets:
            if envs:
                self._pool.control.seeds[envs] = [reset.seeds[index] for index in envs]
                what, payload = "reset after a restart", _reset_payload(reset)
                commands[self._pool.give(worker, RESET_SOME, what, self.timeout, payload, envs)] = sorted(envs)
        infos: dict[int, dict[str, Any]] = {}
        answers = self._pool.results(list(commands), self.timeout)
        for (command, envs), answer in zip(commands.items(), answers, strict=True):
            given = self._read(command, envs, answer.payload) if answer.payload else [_NO_INFO] * len(envs)
            infos.update(zip(envs, given, strict=True))
        return infos

    @contextlib.contextmanager
    def _keeping(self, envs: list[int]) -> Iterator[None]:
        """Keep the results of these environments, which the caller has not got yet, whatever is written over them."""
        arrays, parts = result_arrays(self._results), self._heap.parts
        records, kept = export_rows(arrays, envs), {index: parts[index] for index in envs if index in parts}
        yield
        import_rows(arrays, envs, records)
        parts.update(kept)

    def _report_lost(self, envs: list[int]) -> list[int]:
        """Report environments that were restarted since their last step; returns the others, which can step."""
        lost = [index for index in envs if index in self._lost]
        self._lost.difference_update(lost)
        self._report_restart(lost)
        return [index for index in envs if index not in lost]

    def _report_restart(self, envs: list[int]) -> None:
        """Make the results of restarted environments those of an episode cut short: the last observation again."""
        self._ended.update({index: {"restarted": True} for index in envs})
        results = self._results
        results.rewards[envs], results.terminated[envs], results.truncated[envs] = 0.0, False, True
        seen = [index for index in envs if self._seen[index]]
        if self._last is not None:
            _copy_rows(self._last, results.observations, seen)
        self._heap.parts.update({i: self._last_parts[i] for i in seen if i in self._last_parts})

    def _remember(self, ready: np.ndarray) -> None:
        """Keep what the caller is about to see."""
        if self._last is None:
            self._last = self._results.observations.take(self._all)
        _copy_rows(self._results.observations, self._last, slice(None) if ready is self._all else ready)
        self._last_parts.update({i: self._heap.parts[i] for i in ready.tolist() if i in self._heap.parts})
        self._seen[ready] = True

    # -- the rest ------------------------------------------------------------------------------------------

    def _give_access(
        self, verb: Access, name: str, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Command:
        worker = self._worker_of[index]
        payload = pickled((verb, index, name, args, kwargs))
        what = name if verb == "call" else f"{verb} {name}"
        return self._pool.give(worker, ACCESS, what, self.timeout, payload)

    def _access(self, verb: Access, name: str, calls: Sequence[Call]) -> list[Any]:
        commands: list[Command] = []
        try:
            for call in calls:
                commands.append(self._give_access(verb, name, *call))
            return [pickle.loads(answer.payload) for answer in self._pool.results(commands, self.timeout)]
        finally:
            self._pool.abandon(commands)

    def send_command(
        self, index: int, cmd: Literal["reset", "step", "render", "close"], *args: Any, **kwargs: Any
    ) -> None:
        """Send a command for one environment to its worker; `get_command_result` brings the result."""
        self._check_open(cmd)
        self._check_index(index)
        self._sent.setdefault(index, []).append(self._give_access("call", cmd, index, args, kwargs))

    def get_command_result(self, index: int) -> Any:
        """Receive one worker result and surface worker-side exceptions."""
        self._check_open("get_command_result")
        if not self._sent.get(index):
            raise RuntimeError(f"no command was sent to environment {index}, there is no result to wait for")
        (answer,) = self._pool.results([self._sent[index].pop(0)], self.timeout)
        return pickle.loads(answer.payload)

    def close(self) -> None:
        """Shut down all worker processes and communication pipes. Returns within two seconds, whatever they do.

        Environments that cannot be closed by then are ended with their process. Where an environment raises, a
        RuntimeWarning says so and `error_queue` has its report.
        """
        if self._closed:
            return
        self._closed = True
        self._resetting = self._stepping = None
        # the shared memory goes with the last array over it
        self._info_rows, self._ended = {}, {}
        del self._results, self._actions, self._info_area
        reports = self._pool.close()
        self._finalizer.cancel()
        if reports:
            texts = "\n".join(str(report.rebuild()) for report in reports)
            warnings.warn(f"environments have raised while they were closed: {texts}", RuntimeWarning, stacklevel=2)


_NO_INFO: dict[str, Any] = {}


def _is_restarted(info: dict[str, Any] | InfoRows | None) -> bool:
    return isinstance(info, dict) and "restarted" in info


def _reset_payload(reset: _Reset) -> bytes | None:
    return pickled((reset.args, reset.kwargs)) if reset.args or reset.kwargs else None


def _copy_rows(source: Rows, target: Rows, indices: Any) -> None:
    """Copy some rows to the same indices of other rows; what they have in a heap stays where it is."""
    for old, new in zip(row_arrays(source), row_arrays(target), strict=True):
        new[indices] = old[indices]


def _cores() -> int:
    """How many processes can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _split(count: int, parts: int) -> list[range]:
    """Contiguous ranges whose sizes differ by one at most."""
    edges = [count * part // parts for part in range(parts + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(edges)]
