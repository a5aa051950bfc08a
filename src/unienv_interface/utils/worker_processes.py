"""Worker processes: how one is started, how it ends, and how an error in it reaches the caller.

`AsyncVecEnv` and `MultiprocessingSampler` start, watch and end their workers with what is here.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple

from .channel import Channel, pickled

_TERMINATE_GRACE, KILL_GRACE = 0.3, 0.4  # seconds that a worker has to end after SIGTERM and after SIGKILL


class WorkerDied(RuntimeError):  # noqa: N818 - the name of what happened
    """A worker process has ended by itself; the text says what it was working on and how it ended.

    Examples
    --------
    >>> class Crash(Wrapper):
    ...     def step(self, action):
    ...         os._exit(3)
    >>> envs = AsyncVecEnv([lambda: Crash(unienv.make("CartPole-v1"))] * 2)
    >>> _ = envs.reset()
    >>> try:
    ...     envs.step(envs.sample_action())
    ... except WorkerDied as error:
    ...     print(error)
    environment 0 (worker 0, pid ...) died at step: exit code 3
    >>> envs.close()
    """


# -- starting ----------------------------------------------------------------------------------------------


class Started(NamedTuple):
    """A worker process, our end of its connection, and whether it is the child of a fork server."""

    process: Any
    connection: Connection
    is_adopted: bool


def start_worker(
    ctx: BaseContext,
    target: Callable[..., None],
    args: tuple[Any, ...],
    *,
    siblings: Sequence[Connection],
    name: str,
    daemon: bool,
) -> Started:
    """Start a process that runs `target(connection, *args)`; `siblings` are our connections to other workers.

    To be called within `no_interrupt`, so that a started worker is not lost before it is noted.
    """
    context: Any = ctx
    method = context.get_start_method()
    _start_helpers(method)
    ours, theirs = context.Pipe(duplex=True)
    inherited = [*siblings, ours] if method == "fork" else []
    # The kernel can end a worker together with the thread that started it, if that is not before its time.
    dies_with_parent = method != "forkserver" and threading.current_thread() is threading.main_thread()
    process = context.Process(
        target=_run, args=(target, theirs, args, inherited, dies_with_parent), name=name, daemon=daemon
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # in the new process, until it ignores it
    try:
        process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
    return Started(process, ours, method == "forkserver")


def _run(
    target: Callable[..., None],
    connection: Connection,
    args: tuple[Any, ...],
    inherited: Sequence[Connection],
    dies_with_parent: bool,
) -> None:
    """What runs first in a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair; it closes us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # and not what the parent does at a SIGTERM, after a fork
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by the parent until we ignore it
    for other in inherited:
        other.close()  # or the end of these connections would never be seen
    if not _end_with_parent(dies_with_parent):
        return
    if "torch" in sys.modules:
        # A fork copies the fact that torch has threads but not the threads, and it would wait for them for ever.
        sys.modules["torch"].set_num_threads(1)
    target(connection, *args)


def _end_with_parent(dies_with_parent: bool) -> bool:
    """Make sure that this process does not outlive its parent, not even while an environment hangs.

    The kernel can see to it for a child of a thread that lives as long as its process; else a thread here looks now
    and then. Returns False if the parent was gone before.
    """
    creator = multiprocessing.parent_process()
    if creator is None:
        return True  # not a process of multiprocessing
    if dies_with_parent and sys.platform.startswith("linux"):
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(creator, os.getppid()), name="unienv-watch", daemon=True).start()
    return creator.is_alive()


def _watch(creator: Any, parent: int) -> None:
    idle = threading.Event()
    # Either may be the only sign: the parent is not the creator under a fork server, which outlives that one as long
    # as it has children; and a fork may have left the creator's pipe open elsewhere.
    while os.getppid() == parent and creator.is_alive():
        idle.wait(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def _start_helpers(method: str) -> None:
    """Start the processes that multiprocessing wants for a start method, so that what follows is about ours alone."""
    if method == "forkserver":
        forkserver.ensure_running()
    elif method == "spawn":
        resource_tracker.ensure_running()


def default_context() -> BaseContext:
    """The start method to use where none is asked for.

    Python's own choice, but not fork once JAX is in the process: JAX runs threads whose locks a fork copies as they
    are, and its first use in the child may then wait for ever.
    """
    # asked in a way that leaves the caller free to choose it later
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return multiprocessing.get_context("forkserver" if method == "fork" and "jax" in sys.modules else method)


# -- running and ending ------------------------------------------------------------------------------------


class WorkerProcess:
    """A worker process as its parent sees it.

    Parameters
    ----------
    process, connection, is_adopted
        The fields of `Started`.
    """

    def __init__(self, process: Any, connection: Connection, is_adopted: bool) -> None:
        self.process = process
        self.channel = Channel(connection)
        self._is_adopted = is_adopted

    def is_running(self) -> bool:
        """Whether the process has not ended yet."""
        if not self.process.is_alive():
            return False
        if self._is_adopted:
            return True  # the fork server reports its end
        try:
            os.kill(self.process.pid, 0)
        except ProcessLookupError:  # somebody else has reaped it, such as the kernel where SIGCHLD is ignored
            return False
        return True

    def how_it_ended(self) -> str:
        """The exit code in words."""
        code = self.process.exitcode
        if code is None:
            return "it has closed its connection but still runs" if self.is_running() else "exit code unknown"
        if code >= 0:
            return f"exit code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown signal"
        return f"exit code {code}, {name}" + (" (killed, or out of memory)" if -code == signal.SIGKILL else "")

    def how_its_start_ended(self, ctx: BaseContext) -> str:
        """The exit code in words, of a process that has done nothing yet, and what it may lack."""
        ended, method = self.how_it_ended(), ctx.get_start_method()
        if self.process.exitcode == 1 and method != "fork":
            ended += f"; {method} imports the main program, which needs a guard, if __name__ == '__main__':"
        return ended


def await_ends(workers: Sequence[WorkerProcess], seconds: float, listen: Callable[[], None]) -> None:
    """Wait for the end of processes, calling `listen` again and again.

    `listen` blocks for some milliseconds at most and reads what the workers send, since they might wait for that.
    Their sentinels are no help: processes of their own may hold them open.
    """
    deadline = time.monotonic() + seconds
    while any(worker.is_running() for worker in workers) and time.monotonic() < deadline:
        listen()


def end_workers(workers: Sequence[WorkerProcess], grace: float, listen: Callable[[], None]) -> None:
    """End processes: after the grace by SIGTERM, at last by SIGKILL, at once by that if Ctrl-C comes in between."""
    try:
        await_ends(workers, grace, listen)
        for worker in workers:
            if worker.is_running():
                worker.process.terminate()
        await_ends(workers, _TERMINATE_GRACE, listen)
    finally:
        for worker in workers:
            if worker.is_running():
                worker.process.kill()
        await_ends(workers, KILL_GRACE, listen)


# -- errors ------------------------------------------------------------------------------------------------


class ErrorReport(NamedTuple):
    """What a worker says of an error in one of its environments."""

    env_index: int
    command: str
    traceback: str
    words: str  # type and text
    error: bytes  # type, arguments and attributes, pickled as far as they can be

    @classmethod
    def of(cls, error: BaseException, env_index: int, command: str) -> ErrorReport:
        """What of the error cannot be pickled is left out, but never the report."""
        text = "".join(traceback.format_exception(error))
        words = "".join(traceback.format_exception_only(error)).strip()
        kind = type(error)
        for what in ((kind, error.args, vars(error)), (kind, error.args, {}), (kind, (), {})):
            with contextlib.suppress(Exception):
                sent = pickled(what)
                pickle.loads(sent)
                return cls(env_index, command, text, words, sent)
        return cls(env_index, command, text, words, b"")

    def rebuild(self, where: str | None = None) -> BaseException:
        """The error as one of the same type, its text naming environment and command, or `where`, and the traceback.

        It is a RuntimeError if its type cannot be had in this process. `in_words` of it is short, without traceback.
        """
        where = where or f"environment {self.env_index}, {self.command}"
        text = f"{where}: in its worker process\n\n{self.traceback}"
        try:
            error: Any = _with_text(text, *pickle.loads(self.error))
        except Exception:
            error = RuntimeError(text)
        error.in_words = f"{where}: {self.words}"
        return error


def _with_text(text: str, kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    is_plain = (
        kind.__str__ is BaseException.__str__
        and isinstance(kind.__init__, types.WrapperDescriptorType)
        and isinstance(kind.__new__, types.BuiltinFunctionType)
    )
    if is_plain:
        error = kind(text)
    else:
        # A type with a constructor or a text of its own cannot be made with ours: a subclass of the same name can.
        named = type(kind.__name__, (kind,), {"__str__": lambda self: text, "__module__": kind.__module__})
        builtin: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
        error = builtin.__new__(named, *args)
        builtin.__init__(error, *args)
        error.args = args
    error.__dict__.update(attributes)
    return error
