"""Columns of a recording whose spaces no environment declares: its infos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unienv_interface.env_base.env import Env
from unienv_interface.space import BinarySpace, BoxSpace, Space

from ._errors import CommandError

# An info that comes and goes is looked for in so many steps, since its first value says what it looks like.
_STEPS_TO_LOOK = 500


def info_spaces(env: Env, names: Sequence[str]) -> dict[str, Space]:
    """The spaces of infos of a batched environment, after the values that it gives when it is stepped at random.

    With "_x" beside "x", the info x may be missing, and "_x" says where it is there. The environment has to be reset
    afterwards.
    """
    flags = {name for name in names if name.startswith("_") and name[1:] in names}
    values = _first_values(env, [name for name in names if name not in flags], {name[1:] for name in flags})
    flag = BinarySpace(env.backend, (), device=env.device)
    return {name: flag if name in flags else _space_of(env, name, values[name]) for name in names}


def _first_values(env: Env, names: Sequence[str], may_be_missing: set[str]) -> Mapping[str, Any]:
    """The infos of these names in the first step that has them; an error where one is missing that may not be."""
    env.reset(seed=0)
    found: dict[str, Any] = {}
    seen: set[str] = set()
    for _ in range(_STEPS_TO_LOOK):
        _, _, terminated, truncated, info = env.step(env.sample_action())
        seen.update(map(str, info))
        found = {**{name: info[name] for name in names if name in info}, **found}
        for name in names:
            if name not in may_be_missing and (name not in info or f"_{name}" in info):
                raise CommandError(
                    f"info {name!r}: not every environment gives it at every step (there are "
                    f"{', '.join(sorted(seen)) or 'none'}); if it comes and goes, add --info _{name}, which records "
                    f"where it is there"
                )
        if len(found) == len(names):
            return found
        if np.any(env.backend.to_numpy(terminated | truncated)):
            env.reset()
    missing = ", ".join(repr(name) for name in names if name not in found)
    given = ", ".join(sorted(seen)) or "none"
    raise CommandError(f"info {missing}: not given in {_STEPS_TO_LOOK} random steps, where there are {given}")


def _space_of(env: Env, name: str, values: Any) -> Space:
    """The space of one of these values."""
    backend, device = env.backend, env.device
    if not backend.is_backendarray(values) or backend.dtype_is_complex(values.dtype):
        raise CommandError(
            f"info {name!r} is {type(values).__name__} of {values!r:.60}, not a number or an array of one shape, which "
            f"can be recorded"
        )
    shape = tuple(values.shape[1:])
    if backend.dtype_is_boolean(values.dtype):
        return BinarySpace(backend, shape, device=device)
    # A whole number may be followed by a fraction.
    is_float = backend.dtype_is_real_floating(values.dtype)
    dtype = values.dtype if is_float else backend.dtype_from_name("float64")
    return BoxSpace(backend, -float("inf"), float("inf"), dtype, device, shape)
