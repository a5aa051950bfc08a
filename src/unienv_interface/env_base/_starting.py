"""How a worker process is started: the start method, what it is given, and what is held back meanwhile."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import Any

import cloudpickle

Factories = bytes | Sequence[Callable[[], Any]]  # by cloudpickle, or as they are where a fork inherits them


def start_helpers(method: str) -> None:
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
