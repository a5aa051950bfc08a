"""Ctrl-C at every point of what changes a buffer of images or video: it has happened or has not, and nothing hangs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")
pytest.importorskip("PIL")

from frames import frame
from test_replay_buffer_interrupts import VERBS, Subject, Verb, interrupt_everywhere

from unienv_data import Image, ReplayBuffer, Video
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace

NUMPY = NumpyComputeBackend
SHAPE = (16, 24, 3)
RULES: dict[str, Any] = {"png": Image("png"), "ffv1": Video("ffv1")}
# A file that was opened and not yet entered: Python closes it at once, and warns.
pytestmark = pytest.mark.filterwarnings("ignore:.*_io[.].*:pytest.PytestUnraisableExceptionWarning")


class Filmed(Subject):
    """Each sample is a number and its frame."""

    def create(self, **options: Any) -> ReplayBuffer:
        number = BoxSpace(NUMPY, 0, 2**40, "int64", shape=())
        space = DictSpace(NUMPY, {"id": number, "cam": BoxSpace(NUMPY, 0, 255, "uint8", shape=SHAPE)})
        return ReplayBuffer.create(space, columns={"cam": RULES[self.leaves]}, **options)

    def sample(self, number: int) -> Any:
        return {"id": np.int64(number), "cam": frame(number, SHAPE)}

    def samples(self, *numbers: int) -> Any:
        return {"id": np.array(numbers), "cam": np.stack([frame(number, SHAPE) for number in numbers])}

    def number_in(self, value: Any) -> int | None:
        number = int(value["id"])
        return number if np.array_equal(value["cam"], frame(number, SHAPE)) else None

    def writes_after(self) -> list[Callable[[], Any]]:
        if self.leaves == "png":
            return super().writes_after()
        buffer = self.buffer  # of an episode that has ended, frames are not changed
        return [
            lambda: self.add(20, 21),
            lambda: buffer.set_at(-1, self.sample(24)),
            buffer.mark_segment_end,
            lambda: self.add(22, 23),
            lambda: buffer.remove_at([0]),
            buffer.discard_open_segment,
            lambda: buffer.extend(self.samples(25, 26)),
        ]


ACTS = {
    **{name: verb._replace(lanes=1) for name, verb in VERBS.items() if "lanes" not in name},
    "set open": Verb(lambda subject: subject.buffer.set_at([-1, -3], subject.samples(15, 16)), 1, True),
    "remove open": Verb(lambda subject: subject.buffer.remove_at([-2]), 1, True),
    "discard": Verb(lambda subject: subject.buffer.discard_open_segment(), 1, True),
}
OF_VIDEO = [name for name in ACTS if name not in ("set", "remove older")]


@pytest.mark.parametrize("most", [4, pytest.param(10**9, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", OF_VIDEO)
def test_video(name: str, most: int, tmp_path: Path) -> None:
    capacity = 12 if OF_VIDEO.index(name) % 2 else None
    assert interrupt_everywhere(ACTS[name], "disk", (capacity, "ffv1"), tmp_path, most, Filmed) > 3


@pytest.mark.parametrize("most", [6, pytest.param(10**9, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", ACTS)
def test_images(name: str, most: int, tmp_path: Path) -> None:
    place = ["memory", "disk", "shared disk"][list(ACTS).index(name) % 3]
    assert interrupt_everywhere(ACTS[name], place, (12, "png"), tmp_path, most, Filmed) > 3
