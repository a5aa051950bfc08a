"""A Minari dataset of 100,000 steps like HalfCheetah's as an experience replay, beside TorchRL's.

100 episodes of 1,000 steps, observations of 17 float64, actions of 6 float32. TorchRL's reader is patched so that the
files it writes have content: as released it maps new ones and copies nothing into them.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import Ready, Work, floor, ours, peer

from ._child import peak_growth
from ._data import BATCH, folder
from ._peers import TORCHRL

EPISODES, STEPS = 100, 1000
LIKE_HALFCHEETAH, SMALL = "halfcheetah/like-v0", "halfcheetah/small-v0"
NEEDS = ("minari", "h5py", "torch", "tensordict")


def works() -> list[Work]:
    return [
        Work("minari", "sample of 256", "us", (sample, torchrl_sample)),
        Work("minari", "conversion", "s", (conversion, torchrl_conversion), rounds=7),
        Work("minari", "conversion, peak memory", "MB", (conversion_memory, torchrl_conversion_memory), rounds=1),
        Work("minari", "reopening", "ms", (reopening, torchrl_reopening)),
        Work("minari", "a step on disk", "bytes", (on_disk, columns_on_disk, torchrl_on_disk), rounds=1),
    ]


# -- the dataset -------------------------------------------------------------------------------------------


@functools.cache
def datasets() -> Path:
    """The folder that Minari keeps its datasets in, with ours in it, until this process ends."""
    path = Path(tempfile.mkdtemp(prefix="unienv-bench-minari-"))
    atexit.register(shutil.rmtree, path)
    os.environ["MINARI_DATASETS_PATH"] = str(path)
    _write(LIKE_HALFCHEETAH, EPISODES)
    _write(SMALL, 2)
    return path


def _write(dataset_id: str, episodes: int) -> None:
    import gymnasium
    import minari
    from minari.data_collector import EpisodeBuffer

    rng = np.random.default_rng(0)
    box = gymnasium.spaces.Box
    minari.create_dataset_from_buffers(
        dataset_id,
        [
            EpisodeBuffer(
                id=number,
                observations=rng.normal(size=(STEPS + 1, 17)),
                actions=rng.uniform(-1, 1, size=(STEPS, 6)).astype(np.float32),
                rewards=rng.normal(size=STEPS),
                terminations=np.zeros(STEPS, np.bool_),
                truncations=np.arange(STEPS) == STEPS - 1,
                infos={},
            )
            for number in range(episodes)
        ],
        observation_space=box(-np.inf, np.inf, (17,), np.float64),
        action_space=box(-1, 1, (6,), np.float32),
    )


# -- opening, which converts where it has not been -----------------------------------------------------------


def open_ours(root: Path, dataset_id: str = LIKE_HALFCHEETAH) -> Any:
    from unienv_data.datasets import MinariExperienceReplay

    return MinariExperienceReplay(dataset_id, BATCH, root=root, load_from_local_minari=True, progress=False)


def open_torchrl(root: Path, dataset_id: str = LIKE_HALFCHEETAH, *, again: bool = False) -> Any:
    """TorchRL's; `again` opens one that was converted before, which it does not for those of the local Minari."""
    from tensordict import TensorDictBase
    from torchrl.data.datasets import MinariExperienceReplay

    TensorDictBase.memmap_like = lambda self, prefix=None, **_: self.memmap_(prefix)
    root.mkdir(exist_ok=True)
    return MinariExperienceReplay(dataset_id, BATCH, root=root, download=False, load_from_local_minari=not again)


def converting(open_it: Callable[[Path], Any]) -> Iterator[Ready]:
    """Each time into a new folder, which does not stay."""
    datasets()
    with folder() as path:
        numbers = itertools.count()
        root = path / "none"

        def next_root() -> None:
            nonlocal root
            root = path / str(next(numbers))

        yield Ready(lambda: open_it(root), next_root, lambda: shutil.rmtree(root))


def in_own_process(open_it: Callable[..., Any]) -> Iterator[Callable]:
    """The megabytes that a conversion adds to a process that has converted a small dataset."""
    datasets()
    with folder() as path:
        yield lambda: peak_growth(open_it, [path / "small", SMALL], [path / "large", LIKE_HALFCHEETAH]) / 2**20


def bytes_per_step(open_it: Callable[[Path], Any]) -> Iterator[Callable]:
    datasets()
    with folder() as path:
        replay = open_it(path / "root")
        yield lambda: _size(path / "root") / (EPISODES * STEPS)
        del replay


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


# -- ours --------------------------------------------------------------------------------------------------

OURS, THEIRS = "MinariExperienceReplay", "MinariExperienceReplay, patched to store what it reads"


@ours("unienv", f"{OURS}.sample, as TensorDict", *NEEDS)
def sample() -> Iterator[Callable]:
    datasets()
    with folder() as path:
        yield open_ours(path / "root").sample


@ours("unienv", f"{OURS}, episode by episode, synced", *NEEDS)
def conversion() -> Iterator[Ready]:
    yield from converting(open_ours)


@ours("unienv", f"{OURS}, in a process of its own", *NEEDS)
def conversion_memory() -> Iterator[Callable]:
    yield from in_own_process(open_ours)


@ours("unienv", f"{OURS}, load_from_local_minari=True", *NEEDS)
def reopening() -> Iterator[Callable]:
    datasets()
    with folder() as path:
        open_ours(path / "root").close()
        yield lambda: open_ours(path / "root").close()


@ours("unienv", f"the folder of {OURS}", *NEEDS)
def on_disk() -> Iterator[Callable]:
    yield from bytes_per_step(open_ours)


# -- floor and peer ----------------------------------------------------------------------------------------


@floor("columns", "what the HDF5 file holds, without its own structure")
def columns_on_disk() -> Iterator[Callable]:
    columns = EPISODES * ((STEPS + 1) * 17 * 8 + STEPS * (6 * 4 + 8 + 2))
    yield lambda: columns / (EPISODES * STEPS)


@peer("torchrl", THEIRS, *TORCHRL, *NEEDS)
def torchrl_sample() -> Iterator[Callable]:
    datasets()
    with folder() as path:
        yield open_torchrl(path / "root").sample


@peer("torchrl", THEIRS, *TORCHRL, *NEEDS)
def torchrl_conversion() -> Iterator[Ready]:
    yield from converting(open_torchrl)


@peer("torchrl", f"{THEIRS}, in a process of its own", *TORCHRL, *NEEDS)
def torchrl_conversion_memory() -> Iterator[Callable]:
    yield from in_own_process(open_torchrl)


@peer("torchrl", "MinariExperienceReplay(download=False)", *TORCHRL, *NEEDS)
def torchrl_reopening() -> Iterator[Callable]:
    datasets()
    with folder() as path:
        open_torchrl(path / "root")
        yield lambda: open_torchrl(path / "root", again=True)


@peer("torchrl", f"the folder of {THEIRS}", *TORCHRL, *NEEDS)
def torchrl_on_disk() -> Iterator[Callable]:
    yield from bytes_per_step(open_torchrl)
