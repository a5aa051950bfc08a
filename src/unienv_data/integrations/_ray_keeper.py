"""What outlives the actor of a replay: an actor of its own, which loads nothing."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from unienv_interface.utils.optional import need

# The longest that the replay's actor may take to answer a restarted keeper.
_SECONDS = 10.0


class ReplayRecord(NamedTuple):
    """What a replay's actor needs to begin anew."""

    made_of: bytes | None = None  # its class and arguments, pickled
    saved: str | None = None  # where it was last saved
    generation: int = 0  # how often its actor has begun anew


class Keeper:
    """Remembers the record of a replay for when its actor has died.

    A keeper that has died itself is restarted by Ray, and asks the replay's actor, of this name, for the record.
    """

    def __init__(self, replay_name: str, namespace: str) -> None:
        ray: Any = need("ray", extra="ray")
        self._record = ReplayRecord()
        self._asked: Any = None
        if ray.get_runtime_context().was_current_actor_reconstructed:
            with contextlib.suppress(ValueError):  # the replay's actor is gone as well
                # not waited for: the actor may be waiting for this keeper
                self._asked = ray.get_actor(replay_name, namespace).record.remote()

    def keep(self, record: ReplayRecord) -> None:
        """Replace the record."""
        self._record = record

    def get(self) -> ReplayRecord:
        """Return the record; an empty one if both actors have died at once."""
        ray: Any = need("ray", extra="ray")
        if self._record.made_of is None and self._asked is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                self._record = ray.get(self._asked, timeout=_SECONDS)
        return self._record
