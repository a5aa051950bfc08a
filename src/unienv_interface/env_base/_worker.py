"""What runs in a worker process of `AsyncVecEnv`."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from ..space.row_layout import Rows
from ..utils.shared_block import SharedBlock
from ._channel import Channel, ChannelClosedError, Message, pickled
from ._env_group import EnvGroup, Slots
from ._starting import Factories
from ._vec_memory import PROGRESS, PartedHeap, export_rows, import_rows, result_arrays, row_arrays
from ._worker_errors import ErrorReport

# Commands
ATTACH, STEP, RESET, ACCESS, CLOSE = range(5)
# Replies
DONE, FAILED = range(2)
# The number of the report that worker 0 sends of its own accord once it has built its environments; worker w's is w
# less.
FIRST_REPORT = 2**63


def worker_main(
    worker: int,
    connection: Connection,
    inherited: Sequence[Connection],
    factories: Factories,
    first_index: int,
    block: SharedBlock,
    dies_with_parent: bool,
) -> None:
    """Build the environments, then serve commands until told to close or until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair; it closes us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # and not what the parent does at a SIGTERM, after a fork
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by the parent until we ignore it
    for other in inherited:
        other.close()  # or the end of these connections would never be seen
    if not end_with_parent(dies_with_parent):
        return
    if "torch" in sys.modules:
        # A fork copies the fact that torch has threads but not the threads, and it would wait for them for ever.
        sys.modules["torch"].set_num_threads(1)
    channel = Channel(connection)
    progress = block.array(PROGRESS, (worker + 1,))["index"][worker:]
    server = _Server(worker, channel, block, EnvGroup(first_index, progress))
    with contextlib.suppress(ChannelClosedError):
        if server.build(factories):
            while server.serve(channel.receive()):
                pass
    server.end()


class _Server:
    def __init__(self, worker: int, channel: Channel, block: SharedBlock, group: EnvGroup) -> None:
        self.channel = channel
        self.report_number = FIRST_REPORT - worker
        self.block = block
        self.group = group
        self.first_index = group.first_index
        self.heap = PartedHeap(group.progress)
        self.action_heap = PartedHeap(group.progress)
        self.shares_memory = False
        self.slots: Slots
        self.actions: Rows

    def build(self, factories: Factories) -> bool:
        try:
            self.group.build(pickle.loads(factories) if isinstance(factories, bytes) else factories)
            payload = pickled(self.group.specs)
        except BaseException as error:
            self.fail(self.report_number, error)
            return False
        self.reply(self.report_number, DONE, payload)
        return True

    def serve(self, message: Message) -> bool:
        """Carry out one command and answer it; False after the last one."""
        number, code, payload = message
        try:
            self.heap.parts.clear()
            if code == STEP:
                answer = self.step(payload)
            elif code == RESET:
                answer = self.reset(payload)
            elif code == ATTACH:
                answer = self.attach(payload)
            elif code == CLOSE:
                self.group.close()
                answer = b""
            else:
                answer = pickled(self.group.access(*pickle.loads(payload)))
        except BaseException as error:
            self.fail(number, error)
        else:
            self.reply(number, DONE, answer)
        return code != CLOSE

    def attach(self, payload: bytes) -> bytes:
        plan, block_size = pickle.loads(payload)
        self.shares_memory = block_size > 0
        if self.shares_memory:
            self.block.map(block_size)
        self.slots, self.actions = plan.lay_out(self.block if self.shares_memory else None, self.heap, self.action_heap)
        self.block.close()
        return b""

    def step(self, payload: bytes) -> bytes:
        positions: Sequence[int] = range(len(self.group.envs))
        if payload:
            positions, records, self.action_heap.parts = pickle.loads(payload)
            if records:
                import_rows(row_arrays(self.actions), [self.first_index + p for p in positions], records)
        first, layout = self.first_index, self.actions.layout
        rows = range(first, first + len(positions)) if not payload else [first + position for position in positions]
        own = self.actions[rows.start : rows.stop].copy() if isinstance(rows, range) else self.actions.take(rows)
        actions = layout.unpack(own)
        infos = self.group.step(positions, layout.space, actions, self.slots, rows)
        return self.results(positions, infos, rows)

    def reset(self, payload: bytes) -> bytes:
        positions, seeds, args, kwargs = pickle.loads(payload)
        rows = [self.first_index + position for position in positions]
        infos = self.group.reset(positions, seeds, args, kwargs, self.slots, rows)
        return self.results(positions, infos, rows)

    def results(self, positions: Sequence[int], infos: list[dict[str, Any]], rows: Sequence[int]) -> bytes:
        """What of the results does not lie in shared memory; nothing at all in the common case."""
        records = [] if self.shares_memory else export_rows(result_arrays(self.slots), rows)
        if not records and not self.heap.parts and not any(infos):
            return b""
        try:
            return pickled((infos, self.heap.parts, records))
        except Exception:
            for position, info in zip(positions, infos, strict=True):  # so that the error names the right one
                self.group.turn_to(position)
                pickled(info)
            raise

    def fail(self, number: int, error: BaseException) -> None:
        report = ErrorReport.of(error, *self.group.at_work)
        self.reply(number, FAILED, pickle.dumps(tuple(report)))

    def reply(self, number: int, code: int, payload: bytes) -> None:
        if not self.channel.send(number, code, payload):
            self.channel.flush()

    def end(self) -> None:
        self.group.close(quiet=True)
        self.channel.close()


def end_with_parent(dies_with_parent: bool) -> bool:
    """Make sure that this process does not outlive its parent, not even while an environment hangs.

    The kernel can see to it for a child of a thread that lives as long as its process; else a thread here looks now
    and then. Returns False if the parent was gone before.
    """
    creator = multiprocessing.parent_process()
    if creator is None:
        return True  # not a process of multiprocessing
    if dies_with_parent and sys.platform.startswith("linux"):
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(creator, os.getppid()), name="unienv-watch", daemon=True).start()
    return creator.is_alive()


def _watch(creator: Any, parent: int) -> None:
    idle = threading.Event()
    # Either may be the only sign: the parent is not the creator under a fork server, which outlives that one as long
    # as it has children; and a fork may have left the creator's pipe open elsewhere.
    while os.getppid() == parent and creator.is_alive():
        idle.wait(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
