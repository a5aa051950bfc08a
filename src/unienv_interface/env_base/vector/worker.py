"""What runs in a worker process of `AsyncVecEnv`."""

from __future__ import annotations

import contextlib
import pickle
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
    """Serve commands until told to close; the first one is to build. The worker is killed if the parent is gone."""
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
        self.turns, self.seeds = control.turns[own.start : own.stop], control.seeds
        self.group = EnvGroup(own.start, self.ring.at_work)
        self.heap = PartedHeap(self.ring.at_work)
        self.action_heap = PartedHeap(self.ring.at_work)
        self.shares_memory = False
        self.areas: Areas
        self.own_actions: Rows
        self.info_rows: InfoRows | None = None
        self.info_form_since = 0  # the command whose answer had the form of `info_rows`

    def run(self, wake: SharedEvent) -> None:
        ring, number, is_wanted = self.ring, 0, True
        while is_wanted:
            while ring.given == number:
                wake.wait()
            number += 1
            code = ring.take(number)
            is_wanted = self.serve(number, code & ~PAYLOAD, code & PAYLOAD)

    def serve(self, number: int, code: int, has_payload: int) -> bool:
        """Carry out one command and answer it; False after the last one."""
        try:
            payload = self.receive(number) if has_payload else b""
            self.heap.parts.clear()
            answer, result = DONE, b""
            if code == STEP:
                answer, result = self.step(number, payload)
            elif code == STEP_SOME:
                indices = self.indices(number)
                result = self.results(indices, self.step_some(indices, payload))
            elif code == RESET_SOME:
                result = self.reset(self.indices(number), payload)
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

    def indices(self, number: int) -> list[int]:
        """The environments that a command for some is for."""
        return [index for index, turn in zip(self.own, self.turns.tolist(), strict=True) if turn == number]

    def step(self, number: int, payload: bytes) -> tuple[int, bytes]:
        infos = self.step_some(self.own, payload)
        if not self.shares_memory or self.heap.parts or not any(infos):
            return DONE, self.results(self.own, infos)
        rows = self.info_rows
        if rows is not None and self.ring.known_form == self.info_form_since and rows.write(infos):
            return INFOS_IN_ROWS, b""
        form = InfoForm.of(infos)
        self.info_rows, self.info_form_since = None, number
        if form is not None:
            self.info_rows = InfoRows(form, self.areas.infos, self.own)
        return DONE, self.results(self.own, infos, form)

    def step_some(self, indices: Sequence[int], payload: bytes) -> Infos:
        if payload:
            records, self.action_heap.parts = pickle.loads(payload)
            if records:
                import_rows(row_arrays(self.areas.actions), indices, records)
        actions = self.own_actions if indices is self.own else self.areas.actions.take(indices)
        layout = actions.layout
        # a copy: environments may keep their action, and the parent writes the next one
        return self.group.step(indices, layout.space, layout.copy_out(actions), self.areas.results)

    def reset(self, indices: Sequence[int], payload: bytes) -> bytes:
        args, kwargs = pickle.loads(payload) if payload else ((), {})
        seeds = self.seeds[indices].tolist()
        return self.results(indices, self.group.reset(indices, seeds, args, kwargs, self.areas.results))

    def results(self, indices: Sequence[int], infos: Infos, form: InfoForm | None = None) -> bytes:
        """What of the results is not in shared memory; nothing at all in the common case."""
        records = [] if self.shares_memory else export_rows(result_arrays(self.areas.results), indices)
        if not records and not self.heap.parts and not any(infos):
            return b""
        try:
            return pickled((infos, self.heap.parts, records, form))
        except Exception:
            for index, info in zip(indices, infos, strict=True):  # to name the environment in the error
                self.ring.at_work[0] = index
                pickled(info)
            raise
