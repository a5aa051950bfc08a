"""The documented path of `unienv_interface.backends.seeding`."""

from ..backends.seeding import next_seed, next_seed_rng

__all__ = ["next_seed", "next_seed_rng"]
