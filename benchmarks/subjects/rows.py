"""The row layout below everything: reading and writing 256 of a million rows, and one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from harness import Work, floor, ours

from unienv_interface.space.row_layout import RowLayout

from ._data import BATCH, ROWS, filled_rows, index_stream, one_transition, transition_space, transitions
from .sampling import take_rows
from .writing import copy_columns, write_columns


def works() -> list[Work]:
    return [
        Work("rows", "gather and unpack 256", "us", (gather, take_rows)),
        Work("rows", "pack 256", "us", (pack, copy_into_rows, copy_columns)),
        Work("rows", "pack one", "us", (pack_one, write_columns)),
    ]


def start_stream() -> Callable[[], int]:
    return itertools.cycle(np.random.default_rng(0).integers(0, ROWS - BATCH, 2048).tolist()).__next__


@ours("unienv", "RowLayout.gather")
def gather() -> Iterator[Callable]:
    layout, rows, index = RowLayout(transition_space()), filled_rows(), index_stream(ROWS)
    yield lambda: layout.gather(rows, index())


@ours("unienv", "RowLayout.pack of 256")
def pack() -> Iterator[Callable]:
    layout, rows, batch, start = RowLayout(transition_space()), filled_rows(), transitions(BATCH), start_stream()

    def pack_batch() -> None:
        at = start()
        layout.pack(rows, slice(at, at + BATCH), batch)

    yield pack_batch


@ours("unienv", "RowLayout.pack of one")
def pack_one() -> Iterator[Callable]:
    layout, rows, one, start = RowLayout(transition_space()), filled_rows(), one_transition(), start_stream()
    yield lambda: layout.pack(rows, start(), one)


@floor("copies into rows", "one numpy copy for each of six columns of the same rows")
def copy_into_rows() -> Iterator[Callable]:
    rows, batch, start = filled_rows(), transitions(BATCH), start_stream()
    names = [leaf.name for leaf in RowLayout(transition_space()).leaves]
    pairs = [(column, batch[name]) for name, column in zip(names, rows.columns, strict=True)]

    def copy() -> None:
        at = start()
        for column, values in pairs:
            column[at : at + BATCH] = values

    yield copy
