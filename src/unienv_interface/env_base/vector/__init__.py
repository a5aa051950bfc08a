"""The modules of the vector environments; `unienv_interface.env_base.vec_env` has the public names.

- `base`: `VecEnv`, the base class of `SyncVecEnv` (`sync_vec_env`) and `AsyncVecEnv` (`async_vec_env`).
- `env_group`: the environments of one process, which step one after the other and write their results to rows.
- `memory`: rows and commands in memory that processes share; `infos`: infos as rows.
- `pool`: the parent's side of the worker processes; `worker`: the code that runs in a worker process.
"""
