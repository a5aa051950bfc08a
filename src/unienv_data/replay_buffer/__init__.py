"""The replay buffer, and the wrapper that records into it.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unienv_interface.utils.lazy import lazy_exports

if TYPE_CHECKING:
    from ._recording.transition_space import transition_space
    from .collection_wrapper import ReplayBufferCollectionWrapper
    from .func_replay_buffer import FuncReplayBuffer
    from .replay_buffer import BufferStats, ReplayBuffer
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "._recording.transition_space": ["transition_space"],
            ".collection_wrapper": ["ReplayBufferCollectionWrapper"],
            ".func_replay_buffer": ["FuncReplayBuffer"],
            ".replay_buffer": ["BufferStats", "ReplayBuffer"],
        },
    )

__all__ = [
    "transition_space",
    "ReplayBufferCollectionWrapper",
    "FuncReplayBuffer",
    "BufferStats",
    "ReplayBuffer",
]
