"""The code that runs in a worker process of `AsyncVecEnv`."""

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
from .memory import NOTHING, PAYLOAD, Areas, ChunkedHeap, Control, export_rows, import_rows, result_arrays, row_arrays

# Commands. STEP_SOME and RESET_SOME are for the environments with the command's number in `Control.turns`.
BUILD, ATTACH, STEP, STEP_SOME, RESET_SOME, ACCESS, CLOSE = range(1, 8)
# Answers
DONE, FAILED, INFOS_IN_ROWS = range(1, 4)

Factories = bytes | Sequence[Callable[[], Any]]  # pickled by cloudpickle, or inherited by a fork


def worker_main(
    connection: Connection,
    worker: int,
    factories: Factories,
    env_range: range,
    block: SharedBlock,
    size: tuple[int, int],
    wake: SharedEvent,
    done: SharedEvent,
) -> None:
    """Serve commands until `CLOSE`, or until the parent closes the connection."""
    server = _Server(Channel(connection), worker, factories, env_range, block, size, done)
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
        env_range: range,
        block: SharedBlock,
        size: tuple[int, int],
        done: SharedEvent,
    ) -> None:
        self.channel, self.factories, self.env_range, self.block, self.done = channel, factories, env_range, block, done
        control = Control(block, *size)
        self.ring = control.rings[worker]
        self.turns, self.seeds = control.turns[env_range.start : env_range.stop], control.seeds
        self.group = EnvGroup(env_range.start, self.ring.at_work)
        self.heap = ChunkedHeap(self.ring.at_work)
        self.action_heap = ChunkedHeap(self.ring.at_work)
        self.shares_memory = False
        self.areas: Areas
        self.worker_actions: Rows
        self.info_rows: InfoRows | None = None
        self.info_form_number = 0  # the number of the command whose answer carried the form of `info_rows`

    def run(self, wake: SharedEvent) -> None:
        ring, number, is_open = self.ring, 0, True
        while is_open:
            while ring.posted == number:
                wake.wait()
            number += 1
            code = ring.take(number)
            is_open = self.serve(number, code & ~PAYLOAD, code & PAYLOAD)

    def serve(self, number: int, code: int, has_payload: int) -> bool:
        """Carry out one command and answer it; returns False after the last one."""
        try:
            payload = self.receive(number) if has_payload else b""
            self.heap.chunks.clear()
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
        """Receive the payload of a command; drops the payloads of skipped commands."""
        while (message := self.channel.receive()).number != number:
            pass
        return message.payload

    def answer(self, number: int, code: int, payload: bytes) -> None:
        self.ring.answer(number, code | PAYLOAD if payload else code)
        self.done.set()  # before the payload: the parent must read the pipe while a large payload is sent
        if payload and not self.channel.send(number, code, payload):
            self.channel.flush()

    def attach(self, payload: bytes) -> None:
        plan, block_size = pickle.loads(payload)
        self.shares_memory = block_size > 0
        if self.shares_memory:
            self.block.map(block_size)
        self.areas = plan.lay_out(self.block if self.shares_memory else None, self.heap, self.action_heap)
        self.worker_actions = self.areas.actions[self.env_range.start : self.env_range.stop]
        self.block.close()

    def indices(self, number: int) -> list[int]:
        """The environments of a command for some environments."""
        return [index for index, turn in zip(self.env_range, self.turns.tolist(), strict=True) if turn == number]

    def step(self, number: int, payload: bytes) -> tuple[int, bytes]:
        infos = self.step_some(self.env_range, payload)
        if not self.shares_memory or self.heap.chunks or not any(infos):
            return DONE, self.results(self.env_range, infos)
        rows = self.info_rows
        if rows is not None and self.ring.known_form == self.info_form_number and rows.write(infos):
            return INFOS_IN_ROWS, b""
        form = InfoForm.of(infos)
        self.info_rows, self.info_form_number = None, number
        if form is not None:
            self.info_rows = InfoRows(form, self.areas.infos, self.env_range)
        return DONE, self.results(self.env_range, infos, form)

    def step_some(self, indices: Sequence[int], payload: bytes) -> Infos:
        if payload:
            records, self.action_heap.chunks = pickle.loads(payload)
            if records:
                import_rows(row_arrays(self.areas.actions), indices, records)
        actions = self.worker_actions if indices is self.env_range else self.areas.actions.take(indices)
        layout = actions.layout
        # a copy: an environment may keep its action, and the parent overwrites the row
        return self.group.step(indices, layout.space, layout.copy_out(actions), self.areas.results)

    def reset(self, indices: Sequence[int], payload: bytes) -> bytes:
        args, kwargs = pickle.loads(payload) if payload else ((), {})
        seeds = self.seeds[indices].tolist()
        return self.results(indices, self.group.reset(indices, seeds, args, kwargs, self.areas.results))

    def results(self, indices: Sequence[int], infos: Infos, form: InfoForm | None = None) -> bytes:
        """Pickle the results that are not in shared memory; returns b"" if all are."""
        records = [] if self.shares_memory else export_rows(result_arrays(self.areas.results), indices)
        if not records and not self.heap.chunks and not any(infos):
            return b""
        try:
            return pickled((infos, self.heap.chunks, records, form))
        except Exception:
            for index, info in zip(indices, infos, strict=True):  # raise with the environment's index in `at_work`
                self.ring.at_work[0] = index
                pickled(info)
            raise
