"""The last observations and infos of episodes, out of steps that have restarted slots already ("same_step").

`ended` is a mask of the rows whose episodes ended; for a single environment it is not used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from unienv_interface.env_base.env import Env
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.wrapper.slot_infos import InfoPart, merge_infos, rows_of_infos

from .recorders import owned_copy


def last_observations(env: Env, observation: Any, info: dict[str, Any], ended: Any) -> Any:
    """The observations, with the last one of the episode in each row that ended."""
    if env.batch_size is None:
        return info["final_obs"]
    rows = np.flatnonzero(ended)
    last = batch_utils.get_at(env.observation_space, info["final_obs"], rows)
    return batch_utils.set_at(env.observation_space, owned_copy(observation), rows, last)


def last_infos(env: Env, info: dict[str, Any], ended: Any) -> dict[str, Any]:
    """The infos, with those of the episode's last step in each row that ended."""
    if env.batch_size is None:
        last: dict[str, Any] = info["final_info"]
        return last
    parts = [InfoPart(~ended, rows_of_infos(info, ~ended)), InfoPart(ended, rows_of_infos(info["final_info"], ended))]
    return merge_infos(parts, env.backend, env.device)
