"""Refuse draws while JAX traces: the compiled function would give the samples of one draw for ever."""

from __future__ import annotations

import functools
import sys
from typing import Any


def refuse_trace(verb: str) -> None:
    """Raise a RuntimeError while JAX traces a function to compile it, as for `jax.jit` or `jax.lax.scan`.

    Parameters
    ----------
    verb
        What was called, for the error.
    """
    jax: Any = sys.modules.get("jax")  # nothing traces where nobody has imported it
    if jax is not None and isinstance(-_zero(jax), jax.core.Tracer):
        raise RuntimeError(
            f"{verb} was called while JAX traces a function: compiled, it would return the samples drawn now in every "
            f"call. Draw outside and pass the batch in, as in jax.jit(train)(params, sampler.sample()), or keep the "
            f"samples in a FuncReplayBuffer, whose draws can be compiled"
        )


@functools.cache
def _zero(jax: Any) -> Any:
    """An array made outside of every trace; what is computed from it during a trace belongs to that trace."""
    with jax.ensure_compile_time_eval():
        return jax.numpy.zeros(())
