"""What outlives the actor of a replay. It is an actor of its own, so it loads nothing."""

from __future__ import annotations


class Keeper:
    """Remembers what a replay is made of, pickled, and where it was last saved, for when its actor has died."""

    def __init__(self) -> None:
        self._made_of: bytes | None = None
        self._saved: str | None = None

    def keep_made_of(self, made_of: bytes) -> None:
        self._made_of = made_of

    def keep_saved(self, path: str) -> None:
        self._saved = path

    def get(self) -> tuple[bytes | None, str | None]:
        return self._made_of, self._saved
