"""A writer among several that do not know of each other. Run as a program:

    python tests/data/unrelated_writer.py FOLDER WHO [--die SEED]

It adds episodes of rows that know their hash until it is killed, and says of each when it is acknowledged: its first
number and its length. With `--die` it kills itself in the middle of one of its writes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.dirname(sys.path[0]))

from buffers import hashed
from interrupter import Interrupter

import unienv_data
from unienv_data import ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend

PAYLOAD = 300
MOST_EPISODES = 1500


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("who", type=int)
    parser.add_argument("--die", type=int)
    arguments = parser.parse_args()
    chance, which, points = random.Random(arguments.who), 1, 0
    fate = random.Random(arguments.die)
    last = MOST_EPISODES if arguments.die is None else fate.randrange(2, 20)
    buffer = ReplayBuffer.load_from(
        arguments.folder, backend=NumpyComputeBackend, read_only=False, multiprocessing=True
    )
    for episode in range(MOST_EPISODES):
        count = chance.choice([1, 2, 7])
        rows = hashed(arguments.who, which, count, PAYLOAD)
        if arguments.die is not None and episode in (last - 1, last):
            at = fate.randrange(1, points) if episode == last else 0
            with Interrupter((unienv_data,), at, die) as interrupter:
                buffer.extend(rows)
            points = interrupter.count
            if episode == last:  # this write had fewer points than the one before
                last += 1
        else:
            buffer.extend(rows)
        print(which, count, flush=True)
        which += count
        if chance.random() < 0.02:
            buffer.set_at(0, buffer.get_at(0))  # the oldest never changes: nothing is dropped
    signal.pause()


if __name__ == "__main__":
    main()
