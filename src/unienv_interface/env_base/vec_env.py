"""Many environments as one batched environment, in this process or in several.

`SyncVecEnv` steps its environments one after the other, `AsyncVecEnv` in worker processes; `VecEnv` is their base
class. `reset_async` and `step_async` begin a command, `reset_wait` and `step_wait` wait for it. In a `SyncVecEnv`, the
first call does the work.

Both classes keep a row of memory for each environment and write all results there. The returned batch is a copy and
does not change at the next step. With `copy=False` the observations are the rows themselves, which the next step
overwrites.

Seeds: `reset(seed=s)` gives each environment its own seed, derived from s and the index of the environment alone.
Without a seed, the seeds are drawn from `rng`.

After an error in an `AsyncVecEnv`, the whole command is abandoned: the results of its other environments are dropped,
also if they arrive later. The next `reset` starts over.
"""

from __future__ import annotations

from ..backends.base import BArrayType as BArrayType
from ..backends.base import BDeviceType as BDeviceType
from ..backends.base import BDtypeType as BDtypeType
from ..backends.base import BRNGType as BRNGType
from ..utils.worker_processes import WorkerDied
from .env import ActType as ActType
from .env import ContextType as ContextType
from .env import ObsType as ObsType
from .env import RenderFrame as RenderFrame
from .stacking import data_stack
from .vector.async_vec_env import AsyncVecEnv
from .vector.base import VecEnv
from .vector.sync_vec_env import SyncVecEnv

__all__ = ["AsyncVecEnv", "SyncVecEnv", "VecEnv", "WorkerDied", "data_stack"]
