"""Workers that share a core while the parent, which only waits for them, has one to itself.

For the scheduler one who looks and gives way is as busy as one who works. Where there are as many workers as cores it
may therefore leave two of them on one core, for seconds on end, and every step takes twice as long meanwhile. The
parent can tell: there is nobody that it could give way to. Then it draws one of the two to its own core.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ._starting import no_interrupt

_STAT = "/proc/{}/stat"
# So many waits in a row that the parent was alone in, before something is done; twice as many each time that follows.
_PATIENCE, _MOST_PATIENCE = 2, 1024


class CoreSharing:
    """Tells from how the parent waits whether workers share a core."""

    def __init__(self, workers: int) -> None:
        is_known = hasattr(os, "sched_setaffinity") and os.path.exists(_STAT.format("self"))
        #: Whether it can come to that: with cores to spare the parent may well have one to itself.
        self.is_possible = is_known and workers >= len(os.sched_getaffinity(0)) > 1
        self._alone = 0
        self._patience = _PATIENCE

    def is_likely(self, was_alone: bool) -> bool:
        """Whether workers should be parted, given that the parent was alone, or not, when it waited for all of them."""
        if not was_alone:
            self._alone = 0
            if self._patience > _PATIENCE:
                self._patience -= 1
            return False
        self._alone += 1
        if self._alone < self._patience:
            return False
        self._alone, self._patience = 0, min(2 * self._patience, _MOST_PATIENCE)
        return True


def part(pids: Sequence[int]) -> int | None:
    """Draw one of the processes that share a core to the core of the caller, and give back which; None if none do.

    It may go wherever it could before. One that may not come here, because its environment has chosen its cores, is
    left where it is. They should be waiting: a thread that one of them starts just now would have to stay here.
    """
    try:
        here, cores = core_of("thread-self"), [core_of(pid) for pid in pids]
        for pid, core in zip(pids, cores, strict=True):
            if core != here and cores.count(core) > 1 and here in (allowed := os.sched_getaffinity(pid)):
                with no_interrupt():
                    os.sched_setaffinity(pid, {here})
                    os.sched_setaffinity(pid, allowed)
                return pid
    except OSError:  # one has ended, which is for others to find out, or may not be asked
        pass
    return None


def core_of(process: int | str) -> int:
    """The core that the main thread of a process runs on, or has run on last."""
    with open(_STAT.format(process), "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[36])
