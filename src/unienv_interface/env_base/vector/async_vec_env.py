"""`AsyncVecEnv`: environments in worker processes; see `vec_env`."""

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
from .memory import ChunkedHeap, Control, MemoryPlan, export_rows, import_rows, result_arrays, row_arrays
from .pool import Answer, Command, WorkerPool
from .worker import ACCESS, INFOS_IN_ROWS, RESET_SOME, STEP, STEP_SOME

_ABORT_GRACE = 0.4  # seconds for workers to end by themselves when one of them cannot be built


class _Reset(NamedTuple):
    """The seeds and arguments of a reset, kept to repeat it in a restarted worker."""

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
        `env_fn` is empty, the spaces cannot be batched, or a setting is wrong.
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
        # Runs when this object is collected, or at exit before multiprocessing joins its children.
        self._finalizer = Finalize(self, self._pool.close, exitpriority=100)
        try:
            self._set_up(self._pool.build(range(workers), timeout), seed, validate)
            plan = MemoryPlan.of(self._spec, self._count, Control.nbytes(workers, self._count))
            self._pool.attach(plan, shared_memory, timeout)
            self._heap, self._action_heap = (ChunkedHeap([0]) for _ in range(2))
            block = self._pool.block if shared_memory else None
            self._results, self._actions, self._info_area = plan.lay_out(block, self._heap, self._action_heap)
        except BaseException:
            self._finalizer.cancel()
            self._pool.close(grace=_ABORT_GRACE)
            raise
        self._worker_of = [worker for worker, env_range in enumerate(ranges) for _ in env_range]
        self._envs_by_worker = [(worker, list(env_range)) for worker, env_range in enumerate(ranges)]
        self._pending: dict[Command, list[int]] = {}  # posted command: its environments
        # environment whose command has ended: its info, or the rows that hold its info
        self._ended: dict[int, dict[str, Any] | InfoRows] = {}
        self._info_rows: dict[int, InfoRows] = {}  # worker: the rows that it writes infos to
        self._sent: dict[int, list[Command]] = {}  # environment: the commands of `send_command`, oldest first
        self._reset: _Reset | None = None  # the reset under way
        self._unreported: set[int] = set()  # restarted environments that the caller does not know of yet
        self._last: Rows | None = None  # the observations that the caller saw last, to report for restarted slots
        self._last_chunks: dict[int, bytearray] = {}
        self._seen = np.zeros(self._count, bool)

    @property
    def command_pipes(self) -> list[Any]:
        """The parent's ends of the pipes, one for each worker.

        The pipes carry what does not fit into shared memory. A message that the caller reads is lost to this class.
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

    # -- reset and step ------------------------------------------------------------------------------------

    def _per_worker(self, indices: np.ndarray) -> list[tuple[int, list[int]]]:
        """Group environments by worker, each group in ascending order."""
        if indices is self._all:
            return self._envs_by_worker
        by_worker: dict[int, list[int]] = {}
        for index in sorted(indices.tolist()):
            by_worker.setdefault(self._worker_of[index], []).append(index)
        return list(by_worker.items())

    def _begin_reset(
        self, indices: np.ndarray, seeds: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._reset = reset = _Reset(dict(zip(indices.tolist(), seeds, strict=True)), args, kwargs)
        payload = _reset_payload(reset)  # before the first post: pickling may fail
        self._unreported.difference_update(reset.seeds)
        for worker, envs in self._per_worker(indices):
            self._pool.control.seeds[envs] = [reset.seeds[index] for index in envs]
            self._post(worker, RESET_SOME, "reset", envs, payload)

    def _begin_step(self, indices: np.ndarray, action: Any) -> None:
        self._reset = None
        chunks = self._action_heap.chunks = {}
        self._write_actions(indices, action)
        for worker, envs in self._per_worker(indices):
            if self._unreported:
                envs = self._report_restarted(envs)
                if not envs:
                    continue
            payload = None
            if chunks or not self.shared_memory:
                records = [] if self.shared_memory else export_rows(row_arrays(self._actions), envs)
                payload = pickle.dumps((records, chunks))
            steps_all = len(envs) == len(self._envs_by_worker[worker][1])
            self._post(worker, STEP if steps_all else STEP_SOME, "step", envs, payload)

    def _write_actions(self, indices: np.ndarray, action: Any) -> None:
        rows = self._actions
        if indices is self._all:
            dtype, shape = rows.layout.plain_value
            if type(action) is np.ndarray and action.dtype is dtype and action.shape == (self._count, *shape):
                rows.columns[0][:] = action
                return
            indices = slice(None)  # type: ignore[assignment]
        rows.layout.pack(rows, indices, action)

    def _post(self, worker: int, code: int, label: str, envs: list[int], payload: bytes | None) -> None:
        try:
            command = self._pool.post(worker, code, label, self.timeout, payload, None if code == STEP else envs)
        except (WorkerDied, TimeoutError) as error:
            self._recover(worker, envs, error)
        else:
            self._pending[command] = envs

    def _finish(self, indices: np.ndarray, least: int | None) -> tuple[np.ndarray, AnyInfos]:
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        min_ended = len(indices) if least is None else least
        while self._pending and len(self._ended) < min_ended:
            enough = None if least is None else 1
            for command, outcome in self._pool.wait(self._pending, deadline, enough).items():
                envs = self._pending.pop(command, None)
                if envs is None:
                    continue  # another command has failed, and the worker was restarted
                if isinstance(outcome, BaseException):
                    self._recover(command.worker, envs, outcome)
                else:
                    self._note_answer(command, envs, outcome)
        ended, self._ended = self._ended, {}
        ready = indices if len(ended) == len(indices) else indices[np.isin(indices, list(ended))]
        if self.on_worker_error == "restart":
            self._save_last(ready)
        return ready, self._infos(ended, ready)

    def _note_answer(self, command: Command, envs: list[int], answer: Answer) -> None:
        """Note the infos of a step or reset, and the results that came through the pipe."""
        worker, ended = command.worker, self._ended
        if answer.code == INFOS_IN_ROWS:
            ended.update(dict.fromkeys(envs, self._info_rows[worker]))
        elif not answer.payload:
            ended.update(dict.fromkeys(envs, _NO_INFO))
        else:
            infos = self._read_payload(command, envs, answer.payload)
            ended.update(zip(envs, infos, strict=True))

    def _read_payload(self, command: Command, envs: list[int], payload: bytes) -> Infos:
        """Copy the results of a payload to the rows; returns the infos. A payload with a form announces info rows."""
        infos, chunks, records, form = pickle.loads(payload)
        self._heap.chunks.update(chunks)
        if records:
            import_rows(result_arrays(self._results), envs, records)
        if form is not None:
            worker = command.worker
            self._info_rows[worker] = InfoRows(form, self._info_area, self._pool.ranges[worker])
            self._pool.control.rings[worker].known_form = command.number
        return infos

    def _infos(self, ended: dict[int, Any], ready: np.ndarray) -> AnyInfos:
        """The infos of the ready environments: as rows if all infos are in rows, [] if all are empty, else dicts."""
        if not any(ended.values()):
            return []
        common = common_rows([ended[envs[0]] for _, envs in self._envs_by_worker]) if ready is self._all else None
        if common is not None:
            return common
        for worker, rows in self._info_rows.items():
            envs = self._envs_by_worker[worker][1]
            if ended.get(envs[0]) is rows:
                ended.update(zip(envs, rows.read(), strict=True))
        return [ended[index] for index in ready.tolist()]

    def _give_up(self) -> None:
        if self._pending or self._ended:
            self._unreported.update(index for index, info in self._ended.items() if _is_restarted(info))
            self._pool.abandon(list(self._pending))
            self._pending, self._ended = {}, {}
        self._resetting = self._stepping = None

    # -- recovery ------------------------------------------------------------------------------------------

    def _recover(self, worker: int, envs: list[int], error: BaseException) -> None:
        """Raise the error, or restart the worker that it came from."""
        if self.on_worker_error == "raise":
            self._give_up()
            raise error
        try:
            self._restart(worker, envs, is_responsive=not isinstance(error, (WorkerDied, TimeoutError)))
        except BaseException as failure:
            self._pool.end(worker)  # some of its environments may not be reset; the next command starts a new worker
            self._give_up()
            raise failure from error

    def _restart(self, worker: int, envs: list[int], is_responsive: bool) -> None:
        """Restart a worker and reset its environments. Reports `envs` now, the others at their next step."""
        for command in [command for command in self._pending if command.worker == worker]:
            envs = [*envs, *self._pending.pop(command)]  # commands that the worker has not answered
        worker_envs = self._envs_by_worker[worker][1]
        for index in worker_envs:
            self._sent.pop(index, None)
        self._info_rows.pop(worker, None)
        self._pool.restart(worker, self.timeout, is_responsive=is_responsive)
        others = [index for index in worker_envs if index not in envs]
        fresh = _Reset(dict(enumerate(self._drawn_seeds(self._all))), (), {})
        with self._preserved([index for index in others if index in self._ended]):
            infos = self._reset_now(worker, [(envs, self._reset or fresh), (others, fresh)])
        self._unreported.update(index for index in others if not _is_restarted(self._ended.get(index)))
        if self._reset is None:
            self._report_truncated(envs)
        else:
            self._ended.update({index: {**infos[index], "restarted": True} for index in envs})

    def _reset_now(self, worker: int, resets: Sequence[tuple[list[int], _Reset]]) -> dict[int, dict[str, Any]]:
        """Reset environments of a new worker and block until they are reset; returns their infos."""
        commands: dict[Command, list[int]] = {}
        for envs, reset in resets:
            if envs:
                self._pool.control.seeds[envs] = [reset.seeds[index] for index in envs]
                label, payload = "reset after a restart", _reset_payload(reset)
                commands[self._pool.post(worker, RESET_SOME, label, self.timeout, payload, envs)] = sorted(envs)
        infos: dict[int, dict[str, Any]] = {}
        answers = self._pool.results(list(commands), self.timeout)
        for (command, envs), answer in zip(commands.items(), answers, strict=True):
            new = self._read_payload(command, envs, answer.payload) if answer.payload else [_NO_INFO] * len(envs)
            infos.update(zip(envs, new, strict=True))
        return infos

    @contextlib.contextmanager
    def _preserved(self, envs: list[int]) -> Iterator[None]:
        """Restore the results of environments, not yet returned to the caller, after the block has overwritten them."""
        arrays, chunks = result_arrays(self._results), self._heap.chunks
        records, old_chunks = export_rows(arrays, envs), {index: chunks[index] for index in envs if index in chunks}
        yield
        import_rows(arrays, envs, records)
        chunks.update(old_chunks)

    def _report_restarted(self, envs: list[int]) -> list[int]:
        """Report environments restarted since their last step; returns the others, which can step."""
        restarted = [index for index in envs if index in self._unreported]
        self._unreported.difference_update(restarted)
        self._report_truncated(restarted)
        return [index for index in envs if index not in restarted]

    def _report_truncated(self, envs: list[int]) -> None:
        """Report restarted environments as truncated, with the observation that the caller saw last."""
        self._ended.update({index: {"restarted": True} for index in envs})
        results = self._results
        results.rewards[envs], results.terminated[envs], results.truncated[envs] = 0.0, False, True
        seen = [index for index in envs if self._seen[index]]
        if self._last is not None:
            _copy_rows(self._last, results.observations, seen)
        self._heap.chunks.update({i: self._last_chunks[i] for i in seen if i in self._last_chunks})

    def _save_last(self, ready: np.ndarray) -> None:
        """Save the observations that the caller is about to see."""
        if self._last is None:
            self._last = self._results.observations.take(self._all)
        _copy_rows(self._results.observations, self._last, slice(None) if ready is self._all else ready)
        self._last_chunks.update({i: self._heap.chunks[i] for i in ready.tolist() if i in self._heap.chunks})
        self._seen[ready] = True

    # -- attributes, single commands, close ----------------------------------------------------------------

    def _post_access(
        self, verb: Access, name: str, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Command:
        worker = self._worker_of[index]
        payload = pickled((verb, index, name, args, kwargs))
        label = name if verb == "call" else f"{verb} {name}"
        return self._pool.post(worker, ACCESS, label, self.timeout, payload)

    def _access(self, verb: Access, name: str, calls: Sequence[Call]) -> list[Any]:
        commands: list[Command] = []
        try:
            for call in calls:
                commands.append(self._post_access(verb, name, *call))
            return [pickle.loads(answer.payload) for answer in self._pool.results(commands, self.timeout)]
        finally:
            self._pool.abandon(commands)

    def send_command(
        self, index: int, cmd: Literal["reset", "step", "render", "close"], *args: Any, **kwargs: Any
    ) -> None:
        """Send a command for one environment to its worker; `get_command_result` brings the result."""
        self._check_open(cmd)
        self._check_index(index)
        self._sent.setdefault(index, []).append(self._post_access("call", cmd, index, args, kwargs))

    def get_command_result(self, index: int) -> Any:
        """Wait for the result of the oldest `send_command` to an environment; raises the error of its worker.

        Raises
        ------
        RuntimeError
            No command was sent to this environment.
        """
        self._check_open("get_command_result")
        if not self._sent.get(index):
            raise RuntimeError(f"no command was sent to environment {index}, there is no result to wait for")
        (answer,) = self._pool.results([self._sent[index].pop(0)], self.timeout)
        return pickle.loads(answer.payload)

    def close(self) -> None:
        """End all worker processes and close the pipes. Returns within two seconds, even if environments hang.

        An environment that is not closed by then ends with its process. If an environment raises, a RuntimeWarning
        says so and `error_queue` has its report.
        """
        if self._closed:
            return
        self._closed = True
        self._resetting = self._stepping = None
        # the shared memory is freed with the last array over it
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
    """Copy rows to the same indices of other rows, without their heap."""
    for old, new in zip(row_arrays(source), row_arrays(target), strict=True):
        new[indices] = old[indices]


def _cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _split(count: int, workers: int) -> list[range]:
    """A contiguous range of environments for each worker; sizes differ by one at most."""
    edges = [count * worker // workers for worker in range(workers + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(edges)]
