"""What runs in a worker process of `MultiprocessingSampler`."""

from __future__ import annotations

import contextlib
import pickle
import random
import struct
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np

from unienv_interface.utils.channel import Channel, ChannelClosedError, Message
from unienv_interface.utils.shared_block import SharedBlock
from unienv_interface.utils.worker_processes import ErrorReport

from ..base.common import BatchBase
from ..base.sampling import Form
from ._batch_blocks import BatchPlan, block_memory

# Commands and replies
FETCH, CLOSE = range(2)
DONE, FAILED = range(2)
#: The number of the report that a worker sends of its own accord once it is ready.
READY = 0

FORMS: tuple[Form, ...] = (
    "get_at",
    "get_at_with_metadata",
    "get_flattened_at",
    "get_flattened_at_with_metadata",
)
_REQUEST = struct.Struct("<Bqq")  # form, block, and the end of the numbers of the samples that there are


class Portable:
    """What a worker is given: as it is to one that is forked, by value to others, lambdas and all."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (cloudpickle.dumps(self.value),)


def _received(data: bytes) -> Portable:
    return Portable(pickle.loads(data))


def request(form: Form, block: int, end: int, index: np.ndarray) -> bytes:
    """The payload of a `FETCH`."""
    return _REQUEST.pack(FORMS.index(form), block, end) + index.tobytes()


def worker_main(
    connection: Connection, given: Portable, shared: SharedBlock | None, block_nbytes: int, seed: Sequence[int]
) -> None:
    """Fetch batches until told to close or until the parent is gone."""
    _seed_apart(seed)
    channel = Channel(connection)
    server = _Server(channel, given.value, shared, block_nbytes)
    with contextlib.suppress(ChannelClosedError):
        server.reply(READY, DONE, b"")
        while (message := channel.receive()).code != CLOSE:
            server.serve(message)
    channel.close()


class _Server:
    def __init__(
        self, channel: Channel, given: tuple[BatchBase, BatchPlan], shared: SharedBlock | None, block_nbytes: int
    ) -> None:
        self._channel, self._shared, self._block_nbytes = channel, shared, block_nbytes
        self._source, self._plan = given

    def serve(self, message: Message) -> None:
        try:
            answer = self._fetch(message.payload)
        except BaseException as error:
            report = ErrorReport.of(error, 0, "fetch")
            self.reply(message.number, FAILED, pickle.dumps(tuple(report)))
        else:
            self.reply(message.number, DONE, answer)

    def _fetch(self, payload: bytes) -> bytes:
        form_number, block, end = _REQUEST.unpack_from(payload)
        form, index = FORMS[form_number], np.frombuffer(payload, np.int64, offset=_REQUEST.size)
        if self._source.sample_numbers.stop < end:
            raise RuntimeError(
                "samples were added since the workers were started, and each has a copy of the data of its own: make "
                "the replay buffer with multiprocessing=True or load it from disk, so that they see what is added"
            )
        memory = None
        if block >= 0 and self._shared is not None:
            memory = block_memory(self._shared, block, self._block_nbytes)
        if form == "get_at" and self._plan.write_rows(memory, len(index), self._source.read_rows(index)):
            return b""
        return self._plan.write(memory, len(index), form, getattr(self._source, form)(index))

    def reply(self, number: int, code: int, payload: bytes) -> None:
        self._channel.send(number, code, payload)
        self._channel.flush()


def _seed_apart(seed: Sequence[int]) -> None:
    """Give the global generators states of their own: forked workers have inherited one and the same."""
    first, second = np.random.SeedSequence(seed).generate_state(2)
    random.seed(int(first))
    np.random.seed(int(second))
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(int(first))
