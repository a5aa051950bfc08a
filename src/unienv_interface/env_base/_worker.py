"""What runs in a worker process of `AsyncVecEnv`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np

from ..space.row_layout import RowLayout, Rows
from ..utils.shared_block import SharedBlock
from ._channel import Channel, ChannelClosedError, Message
from ._env_group import SIGNALS, EnvGroup, EnvSpec, Slots

# Commands
ATTACH, MAP, STEP, RESET, CALL, GET_ATTR, SET_ATTR, CLOSE = range(8)
COMMAND_NAMES = ("attach", "map", "step", "reset", "call", "get_attr", "set_attr", "close")
# Replies
DONE, FAILED = range(2)
# The environment that a worker is at work on; a cache line each.
PROGRESS = np.dtype({"names": ["index"], "formats": ["<i4"], "offsets": [0], "itemsize": 64})
# The number of the report that worker 0 sends of its own accord when it has built its environments; worker w's is w less.
FIRST_REPORT = 2**63
# A reference to a worker's heap holds the worker's number above the offset.
HEAP_SHIFT = 40


@dataclass(frozen=True)
class MemoryPlan:
    """Which rows a vector environment keeps, and where each part of them lies in the shared block."""

    observation: RowLayout
    context: RowLayout | None
    action: RowLayout
    count: int
    workers: int

    @classmethod
    def of(cls, spec: EnvSpec, count: int, workers: int) -> MemoryPlan:
        context = None if spec.context_space is None else RowLayout(spec.context_space)
        return cls(RowLayout(spec.observation_space), context, RowLayout(spec.action_space), count, workers)

    def lay_out(self, block: SharedBlock | None, heap: Any, action_heap: Any) -> tuple[Slots, Rows, np.ndarray]:
        """Result slots, action rows and a cell for each worker's progress.

        They lie in the block, or without one in this process's own memory.
        """
        end = 0

        def area(dtype: np.dtype, count: int = self.count) -> np.ndarray:
            nonlocal end
            start = -(-end // 64) * 64  # a cache line each: workers write next to each other
            end = start + count * dtype.itemsize
            return np.zeros(count, dtype) if block is None else block.array(dtype, (count,), start)

        def rows(layout: RowLayout, heap: Any) -> Rows:
            records = area(layout.dtype)
            blocks = {leaf.name: area(leaf.codec.dtype) for leaf in layout.block_leaves}
            return Rows(layout, records, blocks, heap)

        contexts = None if self.context is None else rows(self.context, heap)
        slots = Slots(rows(self.observation, heap), contexts, area(SIGNALS))
        return slots, rows(self.action, action_heap), area(PROGRESS, self.workers)

    @property
    def nbytes(self) -> int:
        """The size of the block; some more than all the areas, which begin at cache lines."""
        layouts = [layout for layout in (self.observation, self.context, self.action) if layout is not None]
        areas = [layout.itemsize for layout in layouts]
        areas += [leaf.codec.dtype.itemsize for layout in layouts for leaf in layout.block_leaves]
        areas += [SIGNALS.itemsize]
        return sum(-(-self.count * itemsize // 64) * 64 for itemsize in areas) + self.workers * PROGRESS.itemsize


class MessageHeap:
    """Values without a fixed size that travel in a message; the worker's number is part of every reference."""

    def __init__(self, worker: int) -> None:
        self._base = worker << HEAP_SHIFT
        self.data = bytearray()

    def write(self, data: bytes) -> int:
        offset = self._base + len(self.data)
        self.data += data
        return offset

    def read(self, offset: int, length: int) -> memoryview:
        start = offset - self._base
        return memoryview(bytes(self.data[start : start + length]))


def export_rows(arrays: Sequence[np.ndarray], indices: Sequence[int]) -> list[bytes]:
    """The bytes of some rows, for a vector environment without shared memory."""
    return [array[indices].tobytes() for array in arrays]


def import_rows(arrays: Sequence[np.ndarray], indices: Sequence[int], parts: Sequence[bytes]) -> None:
    """Put exported rows where they belong."""
    for array, part in zip(arrays, parts, strict=True):
        array[indices] = np.frombuffer(part, array.dtype).reshape(len(indices), *array.shape[1:])


def result_arrays(slots: Slots) -> list[np.ndarray]:
    """The memory of result slots."""
    contexts = [] if slots.contexts is None else row_arrays(slots.contexts)
    return [slots.signals, *row_arrays(slots.observations), *contexts]


def row_arrays(rows: Rows) -> list[np.ndarray]:
    """The memory of rows."""
    return [rows.records, *rows.blocks.values()]


def worker_main(
    worker: int,
    connection: Connection,
    inherited: Sequence[Connection],
    factories: bytes,
    first_index: int,
    dies_with_parent: bool,
) -> None:
    """Build the environments, then serve commands until told to close or until the parent is gone."""
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair; it closes us
    for other in inherited:
        other.close()  # or the end of these connections would never be seen
    _watch(parent, dies_with_parent)
    channel = Channel(connection)
    server = _Server(worker, channel, first_index)
    with contextlib.suppress(ChannelClosedError):
        if server.build(factories):
            while server.serve(channel.receive()):
                pass
    server.end()


class _Server:
    def __init__(self, worker: int, channel: Channel, first_index: int) -> None:
        self.worker = worker
        self.channel = channel
        self.report_number = FIRST_REPORT - worker
        self.first_index = first_index
        self.heap = MessageHeap(worker)
        self.action_heap = MessageHeap(0)
        self.group = EnvGroup(first_index)
        self.shares_memory = False
        self.plan: MemoryPlan
        self.block_size = 0
        self.descriptor: int | None = None
        self.slots: Slots
        self.actions: Rows

    def build(self, factories: bytes) -> bool:
        try:
            self.group.build(cloudpickle.loads(factories))
            payload = cloudpickle.dumps(self.group.specs)
        except BaseException as error:
            self.fail(self.report_number, error, self.group.at_work)
            return False
        self.channel.send(Message(self.report_number, DONE, payload))
        return True

    def serve(self, message: Message) -> bool:
        """Carry out one command and answer it; False after the last one."""
        number, code, payload = message
        group = self.group
        try:
            self.heap.data.clear()
            if code == STEP:
                reply = self.step(payload)
            elif code == RESET:
                reply = self.reset(payload)
            elif code == ATTACH:
                reply = self.attach(payload)
            elif code == MAP:
                reply = self.map()
            elif code == CLOSE:
                group.close()
                reply = b""
            else:
                reply = self.attribute(code, payload)
        except BaseException as error:
            self.fail(number, error, group.at_work)
            return code != CLOSE
        self.channel.send(Message(number, DONE, reply))
        if code == ATTACH and self.block_size:
            self.descriptor = self.channel.receive_descriptor()
        return code != CLOSE

    def attach(self, payload: bytes) -> bytes:
        self.plan, self.block_size = cloudpickle.loads(payload)
        return b""

    def map(self) -> bytes:
        block = None
        if self.block_size:
            if self.descriptor is None:
                raise ChannelClosedError("no file descriptor came")
            block = SharedBlock.attach(self.descriptor, self.block_size)
        self.shares_memory = block is not None
        self.slots, self.actions, progress = self.plan.lay_out(block, self.heap, self.action_heap)
        self.group.progress = progress["index"][self.worker : self.worker + 1]
        return b""

    def step(self, payload: bytes) -> bytes:
        group = self.group
        positions: Sequence[int] = range(len(group.envs))
        if payload:
            positions, records, heap_bytes = pickle.loads(payload)
            if records:
                import_rows(row_arrays(self.actions), [self.first_index + p for p in positions], records)
            self.action_heap.data = bytearray(heap_bytes)
        rows = [self.first_index + position for position in positions]
        layout = self.actions.layout
        actions = layout.unpack(self.actions.take(rows))
        infos = group.step(positions, layout.space, actions, self.slots, rows)
        return self.results(infos, rows)

    def reset(self, payload: bytes) -> bytes:
        positions, seeds, args, kwargs = pickle.loads(payload)
        rows = [self.first_index + position for position in positions]
        infos = self.group.reset(positions, seeds, args, kwargs, self.slots, rows)
        return self.results(infos, rows)

    def results(self, infos: list[dict[str, Any]], rows: list[int]) -> bytes:
        """What of the results does not lie in shared memory; nothing at all in the common case."""
        parts = [] if self.shares_memory else export_rows(result_arrays(self.slots), rows)
        if not parts and not self.heap.data and not any(infos):
            return b""
        return cloudpickle.dumps((infos, bytes(self.heap.data), parts))

    def attribute(self, code: int, payload: bytes) -> bytes:
        position, name, args, kwargs = pickle.loads(payload)
        if code == CALL:
            return cloudpickle.dumps(self.group.call(position, name, args, kwargs))
        if code == GET_ATTR:
            return cloudpickle.dumps(self.group.get_attr(position, name))
        self.group.set_attr(position, name, *args)
        return b""

    def fail(self, number: int, error: BaseException, at_work: tuple[int, str]) -> None:
        """Report an error. What of it cannot be pickled is left out, but never the report."""
        text = "".join(traceback.format_exception(error))
        for what in ((type(error), error.args, vars(error)), (type(error), error.args, {}), (type(error), (), {})):
            with contextlib.suppress(Exception):
                report = cloudpickle.dumps((*at_work, text, *what))
                cloudpickle.loads(report)
                break
        else:
            report = cloudpickle.dumps((*at_work, text, RuntimeError, (), {}))
        self.channel.send(Message(number, FAILED, report))

    def end(self) -> None:
        self.group.close(quiet=True)
        self.channel.close()


def _watch(parent: int, dies_with_parent: bool) -> None:
    """Make sure that this process does not outlive its parent, not even while an environment hangs."""
    if dies_with_parent and sys.platform.startswith("linux"):
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            idle.wait(0.5)
        os.kill(os.getpid(), signal.SIGKILL)

    idle = threading.Event()
    threading.Thread(target=watch, name="unienv-parent-watch", daemon=True).start()
