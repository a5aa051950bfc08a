"""Refuse draws while JAX traces: the compiled function would return the samples of one draw in every call."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


def refuse_trace(verb: str) -> None:
    """Raise a RuntimeError while JAX traces a function to compile it, as for `jax.jit` or `jax.lax.scan`.

    Parameters
    ----------
    verb
        The name of the called method, for the error.
    """
    jax: Any = sys.modules.get("jax")  # without an import of JAX nothing traces
    if jax is None:
        return
    outside = _outside(jax)
    if outside.read_state(convention="flax") != outside.state and isinstance(-outside.zero, jax.core.Tracer):
        raise RuntimeError(
            f"{verb} was called while JAX traces a function: compiled, it would return the samples drawn now in every "
            f"call. Draw outside and pass the batch in, as in jax.jit(train)(params, sampler.sample()), or keep the "
            f"samples in a FuncReplayBuffer, whose draws can be compiled"
        )


class _Outside(NamedTuple):
    """The state of JAX outside of every trace. `jax.grad` and `jax.vmap` change `state` too, but not `zero`."""

    read_state: Callable[..., Any]
    state: Any
    zero: Any  # a result computed from this array during a trace is a Tracer


@functools.cache
def _outside(jax: Any) -> _Outside:
    core = importlib.import_module("jax.extend.core")
    read_state = getattr(core, "get_opaque_trace_state", lambda **_: object())  # for older JAX: never equal
    states: list[Any] = []
    # The first draw of a process may itself be traced; a new thread has no trace.
    reader = threading.Thread(target=lambda: states.append(read_state(convention="flax")))
    reader.start()
    reader.join()
    with jax.ensure_compile_time_eval():
        return _Outside(read_state, states[0], jax.numpy.zeros(()))
