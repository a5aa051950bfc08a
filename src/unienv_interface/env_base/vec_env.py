"""Many environments as one batched environment, in this process or in several.

`SyncVecEnv` steps its environments one after the other, `AsyncVecEnv` in worker processes; everything they have in
common is in `VecEnv` (`_vec_core.py`). Asking and waiting are two verbs, and in the synchronous one the asking already
does the work.

Both keep a row of memory for each environment, and all results are written there. The returned batch is the caller's:
it does not change at the next step. With `copy=False` observations are those rows themselves, which the next step
overwrites.

Seeds: `reset(seed=s)` gives each environment a seed of its own derived from s, the same one whatever the number of
workers and whichever other environments are reset with it. Without a seed, one is drawn from `rng`.

When something goes wrong in an `AsyncVecEnv`, the command under way is given up as a whole: what its other
environments have done is not reported, and answers that still come are thrown away. The next `reset` begins anew.
"""

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

from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..space.row_layout import Rows
from ._channel import pickled
from ._env_group import Access
from ._info_table import AnyInfos, InfoRows, InfoTable
from ._stacking import data_stack
from ._sync_vec_env import SyncVecEnv
from ._vec_core import Call, VecEnv
from ._vec_memory import (
    NO_SEED,
    PROGRESS,
    MemoryPlan,
    PartedHeap,
    copy_rows,
    export_rows,
    import_rows,
    result_arrays,
    row_arrays,
)
from ._worker import ACCESS, IN_MEMORY, RESET, RESET_SEEDED, STEP, STEP_ALL
from ._worker_pool import WorkerDied, WorkerPool
from .env import ActType, ContextType, Env, ObsType, RenderFrame

__all__ = ["AsyncVecEnv", "SyncVecEnv", "VecEnv", "WorkerDied", "data_stack"]


class _Reset(NamedTuple):
    """What environments are reset with, should they have to be asked again."""

    seeds: dict[int, int]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class AsyncVecEnv(VecEnv[BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType]):
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

        - `ctx`: how processes are started; Python's own choice by default, but no fork once JAX is loaded.
        - `num_workers`: processes, each with a contiguous share of the environments; as many as cores by default.
        - `timeout`: seconds that a command may take (None: for ever).
        - `on_worker_error`: what happens when an environment raises in a step or reset, dies or hangs: `"raise"`, or
          `"restart"` its worker and report its slots as truncated, with `info["restarted"]` true for them. Other
          environments of that worker are restarted with it, and say so at their next step.
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
        shares = [range(*bounds) for bounds in _split(len(factories), workers)]
        self._pool = WorkerPool(factories, shares, ctx, daemon)
        # When the object goes, or at the interpreter's exit, before multiprocessing waits for its children there.
        self._finalizer = Finalize(self, self._pool.close, exitpriority=100)
        try:
            self._set_up(self._pool.reports(range(workers), timeout), seed, validate)
            plan = MemoryPlan.of(self._spec, self._count, workers * PROGRESS.itemsize)
            self._pool.attach(plan, shared_memory, timeout)
            self._heap, self._action_heap = (PartedHeap([0]) for _ in range(2))
            block = self._pool.block if shared_memory else None
            areas = plan.lay_out(block, self._heap, self._action_heap)
            self._slots, self._actions, self._info_rows, self._seeds = areas
        except BaseException:
            self._finalizer.cancel()
            self._pool.close(grace=_ABORT_GRACE)
            raise
        self._worker_of = [worker for worker, share in enumerate(shares) for _ in share]
        self._whole = [(worker, list(share)) for worker, share in enumerate(shares)]
        self._all_in_memory = [IN_MEMORY] * workers
        self._requests: dict[int, tuple[int, list[int]]] = {}  # request: worker, environments
        # environments whose command has ended, with their infos, or with where those of all of their worker are
        self._ended: dict[int, dict[str, Any] | InfoTable | InfoRows] = {}
        self._shared_infos: list[InfoRows | None] = [None] * workers
        self._common_infos: InfoRows | None = None  # if all of them are of one form, any of them
        self._commands: dict[int, list[int]] = {}  # environment: requests of send_command, oldest first
        self._reset: _Reset | None = None  # the one under way
        self._lost: set[int] = set()  # restarted, and the caller does not know it yet
        self._last: Rows | None = None  # what the caller saw last, for slots that are restarted
        self._last_parts: dict[int, bytearray] = {}
        self._seen = np.zeros(self._count, bool)

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

    def _per_worker(self, indices: np.ndarray) -> list[tuple[int, list[int]]]:
        """Which of these environments belong to which worker, in ascending order."""
        if indices is self._all:
            return self._whole
        found: dict[int, list[int]] = {}
        for index in sorted(indices.tolist()):
            found.setdefault(self._worker_of[index], []).append(index)
        return list(found.items())

    def _begin_reset(
        self, indices: np.ndarray, seeds: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._reset = reset = _Reset(dict(zip(indices.tolist(), seeds, strict=True)), args, kwargs)
        is_plain = self.shared_memory and not args and not kwargs
        if is_plain:
            self._seeds.fill(NO_SEED)
            self._seeds[indices] = seeds
        owners = self._per_worker(indices)
        # all of what is asked before the first one is, since a reset may be refused here
        payloads = [b"" if is_plain else self._reset_payload(worker, own, reset) for worker, own in owners]
        self._lost.difference_update(reset.seeds)
        for (worker, own), payload in zip(owners, payloads, strict=True):
            self._ask(worker, RESET_SEEDED if is_plain else RESET, payload, own)

    def _reset_payload(self, worker: int, envs: list[int], reset: _Reset) -> bytes:
        first = self._pool.shares[worker].start
        positions, seeds = [index - first for index in envs], [reset.seeds[index] for index in envs]
        return pickled((positions, seeds, reset.args, reset.kwargs))

    def _begin_step(self, indices: np.ndarray, action: Any) -> None:
        self._reset = None
        parts = self._action_heap.parts = {}
        self._write_actions(indices, action)
        for worker, own in self._per_worker(indices):
            if self._lost:
                own = self._report_lost(own)
                if not own:
                    continue
            share = self._pool.shares[worker]
            if parts or not self.shared_memory or len(own) < len(share):
                records = [] if self.shared_memory else export_rows(row_arrays(self._actions), own)
                positions = [index - share.start for index in own]
                self._ask(worker, STEP, pickle.dumps((positions, records, parts)), own)
            else:
                known = self._shared_infos[worker]
                self._ask(worker, STEP_ALL, b"" if known is None else known.name, own)

    def _write_actions(self, indices: np.ndarray, action: Any) -> None:
        rows = self._actions
        if indices is self._all:
            dtype, shape = rows.layout.plain_value
            if type(action) is np.ndarray and action.dtype is dtype and action.shape == (self._count, *shape):
                rows.columns[0][:] = action  # a plain array that fits, without ceremony
                return
            indices = slice(None)  # type: ignore[assignment]
        rows.layout.pack(rows, indices, action)

    def _ask(self, worker: int, code: int, payload: bytes, envs: list[int]) -> None:
        try:
            what = "step" if code in (STEP, STEP_ALL) else "reset"
            number = self._pool.send(worker, code, payload, what, self.timeout)
        except (WorkerDied, TimeoutError) as error:
            self._recover(worker, envs, error)
        else:
            self._requests[number] = (worker, envs)

    def _finish(self, indices: np.ndarray, least: int | None) -> tuple[np.ndarray, AnyInfos]:
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        wanted = len(indices) if least is None else least
        if least is None and not self._ended and (payloads := self._pool.left_answers(self._requests)) is not None:
            return self._finish_at_once(indices, payloads)
        while self._requests and len(self._ended) < wanted:
            enough = None if least is None else 1
            for number, outcome in self._pool.outcomes(list(self._requests), deadline, enough).items():
                if number not in self._requests:
                    continue  # its worker was restarted over another one
                worker, envs = self._requests.pop(number)
                if isinstance(outcome, BaseException):
                    self._recover(worker, envs, outcome)
                else:
                    self._ended.update(self._results(worker, envs, number, outcome.payload))
        infos, self._ended = self._ended, {}
        ready = indices if len(infos) == len(indices) else indices[np.isin(indices, list(infos))]
        if self.on_worker_error == "restart":
            self._remember(ready)
        return ready, self._in_order(infos, ready)

    def _finish_at_once(self, indices: np.ndarray, payloads: list[bytes]) -> tuple[np.ndarray, AnyInfos]:
        """The rest of `_finish` where workers that are awake have left all answers in memory."""
        requests, self._requests = self._requests, {}
        infos: AnyInfos = []
        if indices is self._all and self._common_infos is not None and payloads == self._all_in_memory:
            infos = self._common_infos
        elif any(payloads):
            found: dict[int, Any] = {}
            for (number, (worker, envs)), payload in zip(requests.items(), payloads, strict=True):
                found.update(self._results(worker, envs, number, payload))
            infos = self._in_order(found, indices)
        if self.on_worker_error == "restart":
            self._remember(indices)
        return indices, infos

    def _results(self, worker: int, envs: list[int], number: int, payload: bytes) -> dict[int, Any]:
        """The infos of a worker's answer. Results that are not in shared memory are in the answer, and taken in."""
        if not payload:
            return dict.fromkeys(envs, _NO_INFO)
        known = self._shared_infos[worker]
        if payload == IN_MEMORY and known is not None:
            return dict.fromkeys(envs, known)
        infos, parts, records = pickle.loads(payload)
        if isinstance(infos, InfoTable):
            self._shared_infos[worker] = InfoRows.after(number, infos, self._info_rows, self._pool.shares[worker])
            self._common_infos = _if_alike(self._shared_infos)
            return dict.fromkeys(envs, infos)
        self._heap.parts.update(parts)
        if records:
            import_rows(result_arrays(self._slots), envs, records)
        return dict(zip(envs, infos, strict=True))

    def _in_order(self, infos: dict[int, Any], ready: np.ndarray) -> AnyInfos:
        """The infos of environments that are ready, as one table if that is what they are; none if all are empty."""
        if all(info is _NO_INFO for info in infos.values()):
            return []
        shares = self._pool.shares
        answers = [infos.get(share.start) for share in shares]
        common = _if_alike(answers)
        if ready is self._all and common is not None:
            return common
        for share, answer in zip(shares, answers, strict=True):
            table = answer.read() if isinstance(answer, InfoRows) else answer
            if isinstance(table, InfoTable):
                infos.update(zip(share, table.infos(), strict=True))
        return [infos[index] for index in ready.tolist()]

    def _give_up(self) -> None:
        if self._requests or self._ended:
            self._lost.update(index for index, info in self._ended.items() if _is_restarted(info))
            self._pool.abandon(list(self._requests))
            self._requests, self._ended = {}, {}
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
        for number in [number for number, (whose, _) in self._requests.items() if whose == worker]:
            envs = [*envs, *self._requests.pop(number)[1]]  # these were next
        share = self._pool.shares[worker]
        for index in share:
            self._commands.pop(index, None)
        self._pool.restart(worker, self.timeout, is_responsive=is_responsive)
        others = [index for index in share if index not in envs]
        anew = _Reset(dict(enumerate(self._drawn_seeds(self._all))), (), {})
        with self._keeping([index for index in others if index in self._ended]):
            infos = self._reset_now(worker, [(envs, self._reset or anew), (others, anew)])
        self._lost.update(index for index in others if not _is_restarted(self._ended.get(index)))
        if self._reset is None:
            self._report_restart(envs)
        else:
            self._ended.update({index: {**infos[index], "restarted": True} for index in envs})

    def _reset_now(self, worker: int, asked: Sequence[tuple[list[int], _Reset]]) -> dict[int, dict[str, Any]]:
        """Reset environments of a new worker and wait for it; returns their infos."""
        resets = [(sorted(envs), reset) for envs, reset in asked if envs]
        payloads = [self._reset_payload(worker, envs, reset) for envs, reset in resets]
        what = "reset after a restart"
        numbers = [self._pool.send(worker, RESET, payload, what, self.timeout) for payload in payloads]
        answers = self._pool.answers(numbers, self.timeout)
        infos: dict[int, dict[str, Any]] = {}
        for (envs, _), answer in zip(resets, answers, strict=True):
            infos.update(self._results(worker, envs, answer.number, answer.payload))
        return infos

    @contextlib.contextmanager
    def _keeping(self, envs: list[int]) -> Iterator[None]:
        """Keep the results of these environments, which the caller has not got yet, whatever is written over them."""
        arrays, parts = result_arrays(self._slots), self._heap.parts
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
        slots = self._slots
        slots.rewards[envs], slots.terminated[envs], slots.truncated[envs] = 0.0, False, True
        seen = [index for index in envs if self._seen[index]]
        if self._last is not None:
            copy_rows(self._last, self._slots.observations, seen)
        self._heap.parts.update({i: self._last_parts[i] for i in seen if i in self._last_parts})

    def _remember(self, ready: np.ndarray) -> None:
        """Keep what the caller is about to see."""
        if self._last is None:
            self._last = self._slots.observations.take(self._all)
        copy_rows(self._slots.observations, self._last, slice(None) if ready is self._all else ready)
        self._last_parts.update({i: self._heap.parts[i] for i in ready.tolist() if i in self._heap.parts})
        self._seen[ready] = True

    # -- the rest ------------------------------------------------------------------------------------------

    def _send_access(self, verb: Access, name: str, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        worker = self._worker_of[index]
        payload = pickled((verb, index - self._pool.shares[worker].start, name, args, kwargs))
        return self._pool.send(worker, ACCESS, payload, name if verb == "call" else f"{verb} {name}", self.timeout)

    def _access(self, verb: Access, name: str, calls: Sequence[Call]) -> list[Any]:
        numbers: list[int] = []
        try:
            for call in calls:
                numbers.append(self._send_access(verb, name, *call))
            return [pickle.loads(answer.payload) for answer in self._pool.answers(numbers, self.timeout)]
        finally:
            self._pool.abandon(numbers)

    def send_command(
        self, index: int, cmd: Literal["reset", "step", "render", "close"], *args: Any, **kwargs: Any
    ) -> None:
        """Send a command for one environment to its worker; `get_command_result` brings the result."""
        self._check_open(cmd)
        self._check_index(index)
        self._commands.setdefault(index, []).append(self._send_access("call", cmd, index, args, kwargs))

    def get_command_result(self, index: int) -> Any:
        """Receive one worker result and surface worker-side exceptions."""
        self._check_open("get_command_result")
        if not self._commands.get(index):
            raise RuntimeError(f"no command was sent to environment {index}, there is no result to wait for")
        (answer,) = self._pool.answers([self._commands[index].pop(0)], self.timeout)
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
        self._shared_infos, self._common_infos, self._ended = [], None, {}
        # the shared memory goes with the last array over it
        del self._slots, self._actions, self._info_rows, self._seeds
        reports = self._pool.close()
        self._finalizer.cancel()
        if reports:
            texts = "\n".join(str(report.rebuild()) for report in reports)
            warnings.warn(f"environments have raised while they were closed: {texts}", RuntimeWarning, stacklevel=2)


_NO_INFO: dict[str, Any] = {}


def _if_alike(found: Sequence[Any]) -> InfoRows | None:
    """The first of them, if all of them are infos in shared memory and of one form."""
    first = found[0]
    is_one = all(isinstance(one, InfoRows) and one.form == first.form for one in found)
    return first if is_one else None


def _is_restarted(info: dict[str, Any] | InfoTable | InfoRows | None) -> bool:
    return isinstance(info, dict) and "restarted" in info


_ABORT_GRACE = 0.4  # seconds for workers to end by themselves when one of them cannot be built


def _cores() -> int:
    """How many processes can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _split(count: int, parts: int) -> list[tuple[int, int]]:
    """Bounds of contiguous shares whose sizes differ by one at most."""
    edges = [count * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(edges))
