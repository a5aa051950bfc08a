"""How a worker process is started: the start method, what it is given, and what is held back meanwhile."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple

import cloudpickle

Factories = bytes | Sequence[Callable[[], Any]]  # by cloudpickle, or as they are where a fork inherits them


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
    try:
        process.start()
    except BaseException:
        ours.close()
        raise
    finally:
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


@contextlib.contextmanager
def no_interrupt() -> Iterator[None]:
    """Hold back Ctrl-C in this thread, and in processes that are started meanwhile until they let it in."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def portable(factories: Sequence[Callable[[], Any]], share: range, ctx: BaseContext | None) -> Factories:
    """The factories of a worker as they get there; only a fork can do with ones that cannot be pickled."""
    own = [factories[index] for index in share]
    try:
        return cloudpickle.dumps(own)
    except Exception as error:
        if (ctx or default_context()).get_start_method() == "fork":
            return own
        raise TypeError(
            f"the factories of environments {share.start} to {share[-1]} cannot be sent to another process: {error}"
        ) from error


def default_context() -> BaseContext:
    """The start method to use where none is asked for.

    Python's own choice, but not fork once JAX is in the process: JAX runs threads whose locks a fork copies as they
    are, and its first use in the child may then wait for ever.
    """
    # asked in a way that leaves the caller free to choose it later
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return multiprocessing.get_context("forkserver" if method == "fork" and "jax" in sys.modules else method)
