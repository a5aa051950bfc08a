"""Many environments as one batched environment, in this process or in several.

`SyncVecEnv` steps its environments one after the other, `AsyncVecEnv` in worker processes; what they have in common is
in `VecEnv`. Beginning a command and waiting for it are two verbs, and in the synchronous one the first does the work.

Both keep a row of memory for each environment, and all results are written there. The returned batch is the caller's:
it does not change at the next step. With `copy=False` observations are those rows themselves, which the next step
overwrites.

Seeds: `reset(seed=s)` gives each environment a seed of its own derived from s, the same one whatever the number of
workers and whichever other environments are reset with it. Without a seed, one is drawn from `rng`.

When something goes wrong in an `AsyncVecEnv`, the command under way is given up as a whole: what its other
environments have done is not reported, and answers that still come are thrown away. The next `reset` begins anew.
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
