"""What runs in a worker process of `AsyncVecEnv`."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from ..space.row_layout import Rows
from ..utils.shared_block import SharedBlock
from ._channel import Channel, ChannelClosedError, Message, give_way, pickled
from ._env_group import EnvGroup
from ._info_table import InfoRows, InfoTable
from ._mailbox import CAPACITY, Mailbox
from ._starting import Factories
from ._vec_memory import (
    NO_SEED,
    PROGRESS,
    Areas,
    PartedHeap,
    export_rows,
    import_rows,
    mailboxes,
    result_arrays,
    row_arrays,
)
from ._worker_errors import ErrorReport

# Commands
ATTACH, STEP, STEP_ALL, RESET, RESET_SEEDED, ACCESS, CLOSE = range(7)
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
    commands, answers = mailboxes(block, worker)
    channel = Channel(connection, inbox=commands, outbox=answers)
    progress = block.array(PROGRESS, (worker + 1,))["index"][worker:].data
    server = _Server(worker, channel, answers, block, EnvGroup(first_index, progress))
    with contextlib.suppress(ChannelClosedError):
        if server.build(factories):
            while server.serve(channel.receive()):
                pass
    server.end()


class _Server:
    def __init__(self, worker: int, channel: Channel, answers: Mailbox, block: SharedBlock, group: EnvGroup) -> None:
        self.channel = channel
        self.answers = answers
        self.report_number = FIRST_REPORT - worker
        self.block = block
        self.group = group
        self.first_index = group.first_index
        self.heap = PartedHeap(group.progress)
        self.action_heap = PartedHeap(group.progress)
        self.shares_memory = False
        self.areas: Areas
        self.own_rows: range
        self.own_actions: Rows
        self.shared_infos: InfoRows | None = None

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
        number, code, payload, is_boxed = message
        try:
            self.heap.parts.clear()
            if code == STEP_ALL:
                answer = self.step_all(number, payload)
            elif code == STEP:
                answer = self.step(payload)
            elif code == RESET_SEEDED:
                answer = self.reset_seeded()
            elif code == RESET:
                answer = self.reset(*pickle.loads(payload))
            elif code == ATTACH:
                answer = self.attach(payload)
            elif code == CLOSE:
                self.group.close()
                answer = b""
            else:
                answer = pickled(self.group.access(*pickle.loads(payload)))
        except BaseException as error:
            self.answers.served = number
            self.fail(number, error)
        else:
            self.answers.served = number
            if is_boxed and len(answer) <= CAPACITY:
                self.channel.leave(number, DONE, answer)
                give_way()  # to the parent, which may be waiting for this very core
            else:
                self.reply(number, DONE, answer)
        return code != CLOSE

    def attach(self, payload: bytes) -> bytes:
        plan, block_size = pickle.loads(payload)
        self.shares_memory = block_size > 0
        if self.shares_memory:
            self.block.map(block_size)
        block = self.block if self.shares_memory else None
        self.areas = plan.lay_out(block, self.heap, self.action_heap)
        self.own_rows = range(self.first_index, self.first_index + len(self.group.envs))
        self.own_actions = self.areas.actions[self.own_rows.start : self.own_rows.stop]
        self.block.close()
        return b""

    def step_all(self, number: int, payload: bytes) -> bytes:
        """A step of all environments here, with everything in shared memory; `payload` says which form of infos."""
        rows = self.own_rows
        positions = range(len(rows))
        infos = self._step(positions, rows, self.own_actions)
        if self.heap.parts or not any(infos):
            return self.results(positions, infos, rows)
        known = self.shared_infos
        if known is not None and payload == known.name and known.write(infos):
            return IN_MEMORY
        table = InfoTable.of(infos)
        if table is None:
            return self.results(positions, infos, rows)
        self.shared_infos = InfoRows.after(number, table, self.areas.infos, rows)
        return pickled((table, {}, []))

    def step(self, payload: bytes) -> bytes:
        positions, records, self.action_heap.parts = pickle.loads(payload)
        rows = [self.first_index + position for position in positions]
        if records:
            import_rows(row_arrays(self.areas.actions), rows, records)
        return self.results(positions, self._step(positions, rows, self.areas.actions.take(rows)), rows)

    def _step(self, positions: Sequence[int], rows: Sequence[int], actions: Rows) -> list[dict[str, Any]]:
        layout, slots, group = actions.layout, self.areas.slots, self.group
        values = layout.unpack(actions)
        if not group.can_borrow(values, len(positions)):  # else they are copied there
            values = layout.unpack(actions.copy())
        return group.step(positions, layout.space, values, slots, rows)

    def reset_seeded(self) -> bytes:
        """A reset of those environments for which there is a seed in shared memory."""
        seeds = self.areas.seeds[self.own_rows.start : self.own_rows.stop].tolist()
        positions = [position for position, seed in enumerate(seeds) if seed != NO_SEED]
        return self.reset(positions, [seeds[position] for position in positions], (), {})

    def reset(
        self, positions: Sequence[int], seeds: Sequence[int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bytes:
        rows = [self.first_index + position for position in positions]
        infos = self.group.reset(positions, seeds, args, kwargs, self.areas.slots, rows)
        return self.results(positions, infos, rows)

    def results(self, positions: Sequence[int], infos: list[dict[str, Any]], rows: Sequence[int]) -> bytes:
        """What of the results does not lie in shared memory; nothing at all in the common case."""
        records = [] if self.shares_memory else export_rows(result_arrays(self.areas.slots), rows)
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
