"""What runs in a worker process of `AsyncVecEnv`."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ..space.row_layout import Rows
from ..utils.shared_block import SharedBlock
from ._channel import Channel, ChannelClosedError, Message, pickled
from ._env_group import EnvGroup, Slots
from ._info_table import InfoTable, SharedInfos
from ._starting import Factories
from ._vec_memory import PROGRESS, PartedHeap, export_rows, import_rows, result_arrays, row_arrays
from ._worker_errors import ErrorReport

# Commands
ATTACH, STEP, STEP_ALL, RESET, ACCESS, CLOSE = range(6)
# Replies
DONE, FAILED = range(2)
# The answer to a step whose infos lie in shared memory.
IN_MEMORY = b"m"
# The number of the report that worker 0 sends of its own accord once it has built its environments; worker w's is w
# less.
FIRST_REPORT = 2**63


def worker_main(
    connection: Connection, worker: int, factories: Factories, first_index: int, block: SharedBlock
) -> None:
    """Build the environments, then serve commands until told to close or until the parent is gone."""
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
        self.info_columns: list[np.ndarray]
        self.shared_infos: SharedInfos | None = None

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
            if code == STEP_ALL:
                answer = self.step_all(number, payload)
            elif code == STEP:
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
        block = self.block if self.shares_memory else None
        self.slots, self.actions, self.info_columns = plan.lay_out(block, self.heap, self.action_heap)
        self.block.close()
        return b""

    def step_all(self, number: int, payload: bytes) -> bytes:
        """A step of all environments here, with everything in shared memory; `payload` says which form of infos."""
        positions = range(len(self.group.envs))
        rows = range(self.first_index, self.first_index + len(positions))
        infos = self._step(positions, rows, self.actions[rows.start : rows.stop].copy())
        if self.heap.parts or not any(infos):
            return self.results(positions, infos, rows)
        known = self.shared_infos
        if known is not None and payload == known.name and known.write(infos):
            return IN_MEMORY
        table = InfoTable.of(infos)
        if table is None:
            return self.results(positions, infos, rows)
        self.shared_infos = SharedInfos.after(number, table, self.info_columns, rows)
        return pickled((table, {}, []))

    def step(self, payload: bytes) -> bytes:
        positions, records, self.action_heap.parts = pickle.loads(payload)
        rows = [self.first_index + position for position in positions]
        if records:
            import_rows(row_arrays(self.actions), rows, records)
        return self.results(positions, self._step(positions, rows, self.actions.take(rows)), rows)

    def _step(self, positions: Sequence[int], rows: Sequence[int], actions: Rows) -> list[dict[str, Any]]:
        layout = actions.layout
        return self.group.step(positions, layout.space, layout.unpack(actions), self.slots, rows)

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
