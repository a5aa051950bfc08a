"""The keeper of a replay in a Ray actor: a second actor that keeps the data for a restart, and imports little."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from unienv_interface.utils.optional import need

# The longest time that a restarted keeper waits for the replay's actor.
_SECONDS = 10.0


class ReplayRecord(NamedTuple):
    """The data that a restarted actor needs to make its replay again."""

    made_of: bytes | None = None  # the class and arguments of the replay, pickled
    saved: str | None = None  # the path of the last save
    generation: int = 0  # the number of restarts of the actor


class Keeper:
    """Keeps the record of a replay for a restart of its actor.

    Ray restarts a keeper that has died; the keeper then gets the record from the replay's actor, by `replay_name`.
    """

    def __init__(self, replay_name: str, namespace: str) -> None:
        ray: Any = need("ray", extra="ray")
        self._record = ReplayRecord()
        self._request: Any = None
        if ray.get_runtime_context().was_current_actor_reconstructed:
            with contextlib.suppress(ValueError):  # the replay's actor is gone as well
                # Waiting here could be a deadlock: the actor may be waiting for this keeper.
                replay = ray.get_actor(replay_name, namespace)  # older Ray fails where the handle is gone
                self._request = replay.record.remote()

    def keep(self, record: ReplayRecord) -> None:
        """Replace the record."""
        self._record = record

    def get(self) -> ReplayRecord:
        """Return the record; an empty record if both actors have died at once."""
        ray: Any = need("ray", extra="ray")
        if self._record.made_of is None and self._request is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                self._record = ray.get(self._request, timeout=_SECONDS)
        return self._record
