"""The parts of the vector environments; the names for users are in `unienv_interface.env_base.vec_env`.

- `base`: what the synchronous and the asynchronous one have in common.
- `sync_vec_env`, `async_vec_env`: the two.
- `env_group`: environments that step one after the other and write their results to rows, in either.
- `memory`: rows and commands in memory that processes share; `infos`: infos as rows.
- `pool`: the parent's side of the worker processes; `worker`: what runs in one.
"""
