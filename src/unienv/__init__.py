"""Short names for the most frequent tasks.

`make` creates an environment, `record` records it, and `load` opens a recording to sample from. `info`, `stats`,
`check`, `repair` and `convert` do what the commands of these names do. The classes behind these functions are
documented in `unienv_interface` and `unienv_data`. Each name is imported at its first use.

Examples
--------
>>> envs = unienv.make("CartPole-v1", num_envs=8, seed=0)
>>> with unienv.record(envs, "cartpole", steps=10_000) as recording:
...     print(recording)
>>> batch = unienv.load("cartpole").sampler(256, seed=0).sample()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unienv_interface.utils.lazy import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from unienv_data.checking import check, convert, info, repair, stats

    from ._environments import make
    from ._loading import Data, load
    from ._recording import Recording, record
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "._environments": ["make"],
            "._loading": ["Data", "load"],
            "._recording": ["Recording", "record"],
            "unienv_data.checking": ["check", "convert", "info", "repair", "stats"],
        },
    )

__all__ = [
    "Data",
    "Recording",
    "__version__",
    "check",
    "convert",
    "info",
    "load",
    "make",
    "record",
    "repair",
    "stats",
]
