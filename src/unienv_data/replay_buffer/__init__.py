"""The replay buffer."""

from .replay_buffer import BufferStats, ReplayBuffer

__all__ = ["BufferStats", "ReplayBuffer"]
