"""Data of environments that is kept beyond the call that gave it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from array_api_compat import is_jax_array, is_torch_array

from unienv_interface.backends.numpy import NumpyComputeBackend
from unienv_interface.env_base.env import Env
from unienv_interface.space.spaces import ArraySpace


def owned_copy(value: Any) -> Any:
    """Data that nobody else can change: environments may reuse their arrays, and callers may write to what they get."""
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    if value is None or is_jax_array(value):  # which never changes
        return value
    if isinstance(value, dict):
        return {key: owned_copy(child) for key, child in value.items()}
    if type(value) in (tuple, list):
        return type(value)(owned_copy(child) for child in value)
    if is_torch_array(value):
        return value.clone()
    return copy.deepcopy(value)


def is_plain(env: Env) -> bool:
    """Whether a batch of observations is a NumPy array that is merged after a reset in the usual way."""
    usual = type(env).update_observation_post_reset is Env.update_observation_post_reset
    return usual and env.backend is NumpyComputeBackend and isinstance(env.observation_space, ArraySpace)
