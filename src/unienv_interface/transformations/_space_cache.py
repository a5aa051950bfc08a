"""`SpaceCache`: a cache of the constants that transformations derive from spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ..space.space import Space

Plan = TypeVar("Plan")


class SpaceCache(Generic[Plan]):
    """A cache of plans by space and device, each made at its first use.

    Spaces are compared by value, so a changed `DictSpace` is another key. A full cache is cleared. A copy or a pickle
    of the cache is empty, since plans hold arrays on a device.
    """

    LIMIT = 256

    def __init__(self) -> None:
        self._plans: dict[tuple[Space, Any], Plan] = {}

    def get(self, space: Space, device: Any, make_plan: Callable[[Any, Any], Plan]) -> Plan:
        """The plan for a space and a device; `make_plan` makes it at the first use."""
        key = (space, device)
        plan = self._plans.get(key)
        if plan is None:
            plan = make_plan(space, device)
            if len(self._plans) >= self.LIMIT:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def __len__(self) -> int:
        return len(self._plans)

    def __reduce__(self) -> tuple[Any, ...]:
        return (SpaceCache, ())
