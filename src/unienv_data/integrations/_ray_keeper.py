"""What outlives the actor of a replay. It is an actor of its own, so it loads nothing."""

from __future__ import annotations


class Keeper:
    """Remembers where a replay was last saved, for the time after its actor has died."""

    def __init__(self) -> None:
        self._path: str | None = None

    def put(self, path: str) -> None:
        self._path = path

    def get(self) -> str | None:
        return self._path
