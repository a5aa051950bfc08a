"""What runs in a worker process of `AsyncVecEnv`."""

from __future__ import annotations

import contextlib
import pickle
import select
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from ...space.row_layout import Rows
from ...utils.channel import Channel, ChannelClosedError, pickled
from ...utils.shared_block import SharedBlock, SharedEvent
from ...utils.worker_processes import ErrorReport
from .env_group import EnvGroup
from .infos import InfoForm, InfoRows, Infos
from .memory import NOTHING, PAYLOAD, Areas, Control, PartedHeap, export_rows, import_rows, result_arrays, row_arrays

# Commands; those for some environments are for those whose turn it is, by the number in `Control.turns`.
BUILD, ATTACH, STEP, STEP_SOME, RESET_SOME, ACCESS, CLOSE = range(1, 8)
# Answers
DONE, FAILED, INFOS_IN_ROWS = range(1, 4)

Factories = bytes | Sequence[Callable[[], Any]]  # by cloudpickle, or as they are where a fork inherits them


def worker_main(
    connection: Connection,
    worker: int,
    factories: Factories,
    own: range,
    block: SharedBlock,
    size: tuple[int, int],
    wake: SharedEvent,
    done: SharedEvent,
) -> None:
    """Serve commands until told to close or until the parent is gone; the first command is to build."""
    server = _Server(Channel(connection), worker, factories, own, block, size, done)
    with contextlib.suppress(ChannelClosedError):
        server.run(wake)
    server.group.close(quiet=True)
    server.channel.close()


class _Server:
    def __init__(
        self,
        channel: Channel,
        worker: int,
        factories: Factories,
        own: range,
        block: SharedBlock,
        size: tuple[int, int],
        done: SharedEvent,
    ) -> None:
        self.channel, self.factories, self.own, self.block, self.done = channel, factories, own, block, done
        control = Control(block, *size)
        self.ring = control.rings[worker]
        self.turns = control.turns[own.start : own.stop]
        self.seeds = control.seeds[own.start : own.stop]
        self.group = EnvGroup(own.start, self.ring.at_work)
        self.heap = PartedHeap(self.ring.at_work)
        self.action_heap = PartedHeap(self.ring.at_work)
        self.shares_memory = False
        self.areas: Areas
        self.own_actions: Rows
        self.info_rows: InfoRows | None = None
        self.info_form_since = 0  # the command whose answer had the form of `info_rows`

    def run(self, wake: SharedEvent) -> None:
        poll = select.poll()
        poll.register(wake.fd, select.POLLIN)
        poll.register(self.channel.fd, 0)  # for its end alone
        ring, number = self.ring, 0
        while True:
            while ring.given == number:
                if any(fd != wake.fd for fd, _ in poll.poll()):
                    return
                wake.clear()
            number += 1
            code = ring.take(number)
            if not self.serve(number, code & ~PAYLOAD, code & PAYLOAD):
                return

    def serve(self, number: int, code: int, has_payload: int) -> bool:
        """Carry out one command and answer it; False after the last one."""
        try:
            payload = self.receive(number) if has_payload else b""
            self.heap.parts.clear()
            answer, result = DONE, b""
            if code == STEP:
                answer, result = self.step(number, payload)
            elif code == STEP_SOME:
                positions = self.positions(number)
                result = self.results(positions, self.step_some(positions, payload))
            elif code == RESET_SOME:
                result = self.reset(self.positions(number), payload)
            elif code == ACCESS:
                result = pickled(self.group.access(*pickle.loads(payload)))
            elif code == ATTACH:
                self.attach(payload)
            elif code == BUILD:
                factories = self.factories
                self.group.build(pickle.loads(factories) if isinstance(factories, bytes) else factories)
                result = pickled(self.group.specs)
            elif code == CLOSE:
                self.group.close()
        except ChannelClosedError:
            raise
        except BaseException as error:
            report = ErrorReport.of(error, self.ring.at_work[0], self.group.command)
            self.answer(number, FAILED, pickle.dumps(tuple(report)))
            return code not in (BUILD, CLOSE)
        if code == NOTHING:
            self.ring.answer(number, DONE)
        else:
            self.answer(number, answer, result)
        return code != CLOSE

    def receive(self, number: int) -> bytes:
        """The payload of a command; those of commands that were never given are thrown away."""
        while (message := self.channel.receive()).number != number:
            pass
        return message.payload

    def answer(self, number: int, code: int, payload: bytes) -> None:
        self.ring.answer(number, code | PAYLOAD if payload else code)
        self.done.set()  # first, since the parent may have to read what is sent now
        if payload and not self.channel.send(number, code, payload):
            self.channel.flush()

    def attach(self, payload: bytes) -> None:
        plan, block_size = pickle.loads(payload)
        self.shares_memory = block_size > 0
        if self.shares_memory:
            self.block.map(block_size)
        self.areas = plan.lay_out(self.block if self.shares_memory else None, self.heap, self.action_heap)
        self.own_actions = self.areas.actions[self.own.start : self.own.stop]
        self.block.close()

    def positions(self, number: int) -> list[int]:
        """The positions of the environments that a command for some is for."""
        return [position for position, turn in enumerate(self.turns.tolist()) if turn == number]

    def step(self, number: int, payload: bytes) -> tuple[int, bytes]:
        positions = range(len(self.own))
        infos = self.step_some(positions, payload)
        if not self.shares_memory or self.heap.parts or not any(infos):
            return DONE, self.results(positions, infos)
        rows = self.info_rows
        if rows is not None and self.ring.known_form == self.info_form_since and rows.write(infos):
            return INFOS_IN_ROWS, b""
        form = InfoForm.of(infos)
        self.info_rows, self.info_form_since = None, number
        if form is not None:
            self.info_rows = InfoRows(form, self.areas.infos, self.own)
        return DONE, self.results(positions, infos, form)

    def step_some(self, positions: Sequence[int], payload: bytes) -> Infos:
        is_whole = len(positions) == len(self.own)
        rows = self.own if is_whole else [self.own[position] for position in positions]
        if payload:
            records, self.action_heap.parts = pickle.loads(payload)
            if records:
                import_rows(row_arrays(self.areas.actions), rows, records)
        actions = self.own_actions if is_whole else self.areas.actions.take(rows)
        layout = actions.layout
        # a copy: environments may keep their action, and the parent writes the next one
        return self.group.step(positions, layout.space, layout.copy_out(actions), self.areas.results, rows)

    def reset(self, positions: Sequence[int], payload: bytes) -> bytes:
        args, kwargs = pickle.loads(payload) if payload else ((), {})
        seeds, rows = self.seeds[positions].tolist(), [self.own[position] for position in positions]
        return self.results(positions, self.group.reset(positions, seeds, args, kwargs, self.areas.results, rows))

    def results(self, positions: Sequence[int], infos: Infos, form: InfoForm | None = None) -> bytes:
        """What of the results is not in shared memory; nothing at all in the common case."""
        rows = [self.own[position] for position in positions]
        records = [] if self.shares_memory else export_rows(result_arrays(self.areas.results), rows)
        if not records and not self.heap.parts and not any(infos):
            return b""
        try:
            return pickled((infos, self.heap.parts, records, form))
        except Exception:
            for position, info in zip(positions, infos, strict=True):  # to name the environment in the error
                self.group.turn_to(position)
                pickled(info)
            raise
