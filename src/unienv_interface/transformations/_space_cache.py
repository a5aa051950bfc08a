"""A cache of what transformations derive from spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ..space.space import Space

Plan = TypeVar("Plan")


class SpaceCache(Generic[Plan]):
    """Plans by space and device, each made at the first use and then kept.

    Spaces are told apart by what they describe, so a `DictSpace` that was changed is another space. The cache is
    bounded: when it is full it starts over. A copy or a pickle of it is empty, since plans hold arrays of a device.
    """

    LIMIT = 256

    def __init__(self) -> None:
        self._plans: dict[tuple[Space, Any], Plan] = {}

    def get(self, space: Space, device: Any, work_out: Callable[[Any, Any], Plan]) -> Plan:
        """The plan for a space and a device; `work_out` is asked for it if there is none yet."""
        key = (space, device)
        plan = self._plans.get(key)
        if plan is None:
            plan = work_out(space, device)
            if len(self._plans) >= self.LIMIT:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def __len__(self) -> int:
        return len(self._plans)

    def __reduce__(self) -> tuple[Any, ...]:
        return (SpaceCache, ())
