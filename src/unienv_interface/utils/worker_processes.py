"""Worker processes: how one is started, how it ends, and how an error in it reaches the caller.

`AsyncVecEnv` and `MultiprocessingSampler` start, watch and end their workers with these functions.
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


class WorkerDied(RuntimeError):  # noqa: N818 - a public name
    """A worker process has ended by itself; the text names its command and its exit code.

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
    """A worker process, the parent's end of its connection, and whether a fork server is its parent process."""

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
    """Start a process that runs `target(connection, *args)`; `siblings` are the connections to other workers.

    Call it within `no_interrupt`, so that Ctrl-C cannot come before the caller has noted the worker.
    """
    context: Any = ctx
    method = context.get_start_method()
    _start_helpers(method)
    ours, theirs = context.Pipe(duplex=True)
    inherited = [*siblings, ours] if method == "fork" else []
    # PR_SET_PDEATHSIG kills a worker when the thread that started it ends: only the main thread lives long enough.
    dies_with_parent = method != "forkserver" and threading.current_thread() is threading.main_thread()
    process = context.Process(
        target=_run, args=(target, theirs, args, inherited, dies_with_parent), name=name, daemon=daemon
    )
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by the new process
    try:
        process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        theirs.close()
    return Started(process, ours, method == "forkserver")


def _run(
    target: Callable[..., None],
    connection: Connection,
    args: tuple[Any, ...],
    inherited: Sequence[Connection],
    dies_with_parent: bool,
) -> None:
    """Set up a worker process, then run `target`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork inherits the parent's handler
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `start_worker` has blocked it
    for other in inherited:
        other.close()  # an open copy would hide the end of the connection from its worker
    if not _end_with_parent(dies_with_parent):
        return
    if "torch" in sys.modules:
        # A fork does not copy torch's threads: torch would wait for them for ever.
        sys.modules["torch"].set_num_threads(1)
    target(connection, *args)


def _end_with_parent(dies_with_parent: bool) -> bool:
    """Make this process end with its parent, even while an environment hangs; returns False if the parent has ended.

    With `dies_with_parent`, the kernel kills this process; otherwise a thread checks the parent twice a second.
    """
    creator = multiprocessing.parent_process()
    if creator is None:
        return True  # not started by multiprocessing
    if dies_with_parent and sys.platform.startswith("linux"):
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(creator, os.getppid()), name="unienv-watch", daemon=True).start()
    return creator.is_alive()


def _watch(creator: Any, parent: int) -> None:
    idle = threading.Event()
    # Both checks are needed: a fork server is the parent and outlives the creator; and `is_alive` reads a pipe that a
    # fork of the creator may keep open.
    while os.getppid() == parent and creator.is_alive():
        idle.wait(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def _start_helpers(method: str) -> None:
    """Start multiprocessing's helper process of a start method now, so that it inherits nothing of the worker."""
    if method == "forkserver":
        forkserver.ensure_running()
    elif method == "spawn":
        resource_tracker.ensure_running()


def default_context() -> BaseContext:
    """The context to use where the caller gives none.

    It has Python's default start method, but not fork once JAX is imported: a fork copies the locks that JAX's
    threads hold, and JAX may then wait for ever in the child.
    """
    # `get_start_method()` would set the start method for the whole program
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return multiprocessing.get_context("forkserver" if method == "fork" and "jax" in sys.modules else method)


# -- running and ending ------------------------------------------------------------------------------------


class WorkerProcess:
    """The parent's side of a worker process.

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
            return True  # `is_alive` has asked the fork server
        try:
            os.kill(self.process.pid, 0)
        except ProcessLookupError:  # the process was reaped elsewhere, for example since SIGCHLD is ignored
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
        """The exit code in words, for a process that ended before its first command, and the likely cause."""
        ended, method = self.how_it_ended(), ctx.get_start_method()
        if self.process.exitcode == 1 and method != "fork":
            ended += f"; {method} imports the main program, which needs a guard, if __name__ == '__main__':"
        return ended


def await_ends(workers: Sequence[WorkerProcess], seconds: float, listen: Callable[[], None]) -> None:
    """Wait until processes have ended, at most `seconds`, calling `listen` repeatedly.

    `listen` blocks for a few milliseconds and reads the messages of the workers, which may block on a full pipe.
    Waiting for the sentinels would not do: a process that a worker has started may hold them open.
    """
    deadline = time.monotonic() + seconds
    while any(worker.is_running() for worker in workers) and time.monotonic() < deadline:
        listen()


def end_workers(workers: Sequence[WorkerProcess], grace: float, listen: Callable[[], None]) -> None:
    """End processes: by SIGTERM after `grace` seconds, then by SIGKILL; Ctrl-C in between kills them at once."""
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
    """The report of an error in a worker process."""

    env_index: int
    command: str
    traceback: str
    words: str  # type and text
    error: bytes  # type, arguments and attributes, pickled as far as they can be

    @classmethod
    def of(cls, error: BaseException, env_index: int, command: str) -> ErrorReport:
        """Make a report; arguments and attributes of the error that cannot be pickled are left out."""
        text = "".join(traceback.format_exception(error))
        words = "".join(traceback.format_exception_only(error)).strip()
        kind = type(error)
        for fields in ((kind, error.args, vars(error)), (kind, error.args, {}), (kind, (), {})):
            with contextlib.suppress(Exception):
                data = pickled(fields)
                pickle.loads(data)
                return cls(env_index, command, text, words, data)
        return cls(env_index, command, text, words, b"")

    def rebuild(self, where: str | None = None) -> BaseException:
        """Make an error of the same type whose text names `where` (default: environment and command) and the traceback.

        A type that cannot be unpickled here becomes a RuntimeError. The attribute `in_words` has the text without the
        traceback.
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
        # A type with its own constructor or `__str__` may reject the text: make a subclass of the same name.
        named = type(kind.__name__, (kind,), {"__str__": lambda self: text, "__module__": kind.__module__})
        builtin: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
        error = builtin.__new__(named, *args)
        builtin.__init__(error, *args)
        error.args = args
    error.__dict__.update(attributes)
    return error
