"""Policies, which choose the actions of a recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from unienv_interface.env_base.env import Env
from unienv_interface.space import BoxSpace, DictSpace, Space
from unienv_interface.space.spaces import ArraySpace, TupleSpace

from ._errors import USER_ERRORS, CommandError, UsageError, import_module, with_type

#: Returns a batch of actions for a batch of observations; the generator is for random policies.
Policy = Callable[[Any, np.random.Generator], Any]


def make_policy(name: str, env: Env) -> Policy:
    """Return the policy of a name.

    `random` draws from the action space with the environment's generator, `zero` returns zeros (or the nearest action
    within the bounds), and `module:function` is a function of the user.
    """
    if name == "random":
        return lambda observation, rng: env.sample_action()
    if name == "zero":
        action = zero_action(env.action_space)
        return lambda observation, rng: action
    return _function(name)


def zero_action(space: Space) -> Any:
    """Return the action that is nearest to zeros."""
    if isinstance(space, DictSpace):
        return {key: zero_action(child) for key, child in space.spaces.items()}
    if isinstance(space, TupleSpace):
        return tuple(zero_action(child) for child in space.spaces)
    if not isinstance(space, ArraySpace):
        raise CommandError(f"policy 'zero': {space} has no zero, use 'random' or 'module:function'")
    zeros = space.backend.zeros(space.shape, dtype=space.dtype, device=space.device)
    if not isinstance(space, BoxSpace):
        return zeros
    return space.backend.minimum(space.backend.maximum(zeros, space.low), space.high)


def _function(name: str) -> Policy:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"policy is {name!r}, it must be 'random', 'zero' or 'module:function'")
    try:
        function = getattr(import_module(module, f"policy {name!r}"), attribute)
    except AttributeError as error:
        raise CommandError(f"policy {name!r}: {error}") from error
    if not callable(function):
        raise CommandError(f"policy {name!r}: {type(function).__name__}, it must be a function")

    def act(observation: Any, rng: np.random.Generator) -> Any:
        try:
            return function(observation, rng)
        except USER_ERRORS as error:
            raise CommandError(f"policy {name!r}: {with_type(error)}") from error

    return act
