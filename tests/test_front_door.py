"""The package `unienv`: a newcomer's five tasks as the site has them, resuming, and errors that name the way out."""

from __future__ import annotations

import gc
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import unienv
import unienv_data
import unienv_interface
from unienv_data import BatchBase, ReplayBuffer, transition_space
from unienv_data.base.common import convert_index_to_backendarray
from unienv_data.integrations.lerobot import LeRobotAsUniEnvDataset
from unienv_data.replay_buffer._state import BufferState
from unienv_data.replay_buffer.inspection import clear_killed_create
from unienv_data.replay_buffer.replay_buffer import index_with_offset
from unienv_data.storages.backend_compat import ToBackendOrDeviceStorage
from unienv_data.storages.registry import storage_by_name
from unienv_interface import AsyncVecEnv, Env, SyncVecEnv
from unienv_interface.backends import (
    JaxComputeBackend,
    NumpyComputeBackend,
    PyTorchComputeBackend,
    deserialize_dtype,
    get_backend_from_tensor,
    parse_backend,
    serialize_backend,
)
from unienv_interface.env_base.stacking import data_stack
from unienv_interface.space import (
    BinarySpace,
    BoxSpace,
    DictSpace,
    DynamicBoxSpace,
    GraphSpace,
    TextSpace,
    TupleSpace,
    UnionSpace,
)
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.space_utils import reshape_batch_size_in_data, swap_batch_dims_in_data
from unienv_interface.space.space_utils.gym_utils import from_gym_space
from unienv_interface.space.space_utils.serialization_utils import space_to_json
from unienv_interface.transformations.image_compress import ImageCompressTransformation
from unienv_interface.wrapper import AutoresetWrapper, TimeLimitWrapper

QUICKSTART = Path(__file__).parent.parent / "docs" / "getting_started.md"
MOST_LINES = {"1": 3, "2": 4, "3": 2, "4": 2, "5": 2}
CARTPOLE = "CartPole-v1"


# -- the five tasks ----------------------------------------------------------------------------------------


def tasks() -> dict[str, str]:
    """The code of each numbered task of the page, without its import."""
    text = QUICKSTART.read_text(encoding="utf-8")
    found = re.findall(r"## (\d)\. .*?```py(?:thon)?\n(.*?)```", text, re.DOTALL)
    return {number: code.replace("import unienv\n", "").strip() for number, code in found}


def test_the_program_with_workers_runs_where_processes_are_spawned(tmp_path: Path) -> None:
    (block,) = re.findall(r"## With workers\n.*?```python\n(.*?)```", QUICKSTART.read_text(encoding="utf-8"), re.DOTALL)
    spawned = '    import multiprocessing\n\n    multiprocessing.set_start_method("spawn")\n    main()\n'
    (tmp_path / "program.py").write_text(block.replace("    main()\n", spawned), encoding="utf-8")
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"True \d+ episodes\n", done.stdout)


def test_a_program_with_workers_and_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    make = 'multiprocessing.set_start_method("spawn", force=True)\nunienv.make("CartPole-v1", num_envs=2, workers=2)\n'
    (tmp_path / "program.py").write_text(f"import multiprocessing, unienv\n{make}", encoding="utf-8")
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    told = "died at construction: exit code 1; spawn imports the main program, which needs a guard, if __name__"
    assert told in done.stderr


def test_each_task_takes_few_lines() -> None:
    assert {number: len(code.splitlines()) <= MOST_LINES[number] for number, code in tasks().items()} == dict.fromkeys(
        MOST_LINES, True
    )


def test_the_tasks_do_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, names = tasks(), {"unienv": unienv}
    for number in ("1", "2"):
        exec(code[number], names)
    for name, steps, lanes in (("one", 1_000, 1), ("eight", 10_000, 8)):
        with ReplayBuffer.load_from(name, backend="numpy") as buffer:
            assert (len(buffer), buffer.lanes, buffer.has_open_segment) == (steps, lanes, False)
            assert_continuous(buffer)
    exec(code["3"], names)
    batch: Any = names["batch"]
    assert {key: tuple(value.shape) for key, value in batch.items()}["obs"] == (256, 4)
    assert isinstance(batch["obs"], torch.Tensor)
    exec(code["4"], names)
    batch, mask = names["batch"], names["metadata"]["slice_valid_mask"]  # type: ignore[index]
    assert (tuple(batch["obs"].shape), tuple(mask.shape)) == ((64, 16, 4), (64, 16))
    follows = mask[:, 1:] & mask[:, :-1]
    assert bool(follows.any() and not mask.all())
    assert torch.equal(batch["obs"][:, 1:][follows], batch["next_obs"][:, :-1][follows])


def assert_continuous(buffer: ReplayBuffer) -> None:
    """Within each episode the next observation is that of the next step, and only its last step may end it."""
    segments = buffer.get_segments()
    assert segments
    for start, stop in segments:
        episode = buffer.get_at(np.arange(start, stop, buffer.lanes))
        np.testing.assert_array_equal(episode["obs"][1:], episode["next_obs"][:-1])
        assert not (episode["terminated"] | episode["truncated"])[:-1].any()


def test_a_minari_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari wants to know more of the dataset
        import minari

        collector = minari.DataCollector(gymnasium.make(CARTPOLE, max_episode_steps=7))
        for seed in range(3):
            collector.reset(seed=seed)
            while not any(collector.step(seed % 2)[2:4]):
                pass
        collector.create_dataset("pole/random-v0")
        collector.close()
        collector._tmp_dir.cleanup()  # or it warns of having to do so itself
    names: dict[str, Any] = {"unienv": unienv}
    exec(tasks()["5"].replace("mujoco/hopper/expert-v0", "pole/random-v0"), names)
    assert tuple(names["batch"]["observation"].shape) == (256, 4)
    with names["data"] as data:
        assert [stop - start for start, stop in data.episodes] == [7, 7, 7]
        assert tuple(data.windows(after=2).sampler(5).sample()["next"]["reward"].shape)[:2] == (5, 3)


# -- make --------------------------------------------------------------------------------------------------


def first_steps(env: Env) -> Any:
    _, observation, _ = env.reset()
    return np.asarray(observation), np.asarray(env.sample_action()), np.asarray(env.step(env.sample_action())[0])


@pytest.mark.parametrize("num_envs", [None, 1, 3])
def test_the_same_seed_gives_the_same_steps(num_envs: int | None) -> None:
    one, again, other = (first_steps(unienv.make(CARTPOLE, num_envs, seed=seed)) for seed in (5, 5, 6))
    for left, right, different in zip(one, again, other, strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.shape == different.shape
    assert not np.array_equal(one[0], other[0])


@pytest.mark.parametrize(("workers", "kind"), [(None, SyncVecEnv), (0, SyncVecEnv), (1, SyncVecEnv), (2, AsyncVecEnv)])
def test_workers_choose_the_vector_environment(workers: int | None, kind: type) -> None:
    with unienv.make(CARTPOLE, num_envs=2, workers=workers) as env:
        assert type(env) is kind


@pytest.mark.parametrize("backend", ["numpy", "torch", "pytorch", "jax"])
def test_a_backend_by_name(backend: Any) -> None:
    env = unienv.make(CARTPOLE, num_envs=2, backend=backend, seed=0)
    assert env.backend is parse_backend(backend)
    assert env.backend.is_backendarray(env.reset()[1])


def test_what_makes_an_environment() -> None:
    made = gymnasium.make(CARTPOLE)
    assert unienv.make(made).batch_size is None
    assert unienv.make(lambda: gymnasium.make(CARTPOLE), num_envs=2).batch_size == 2
    own = unienv.make(CARTPOLE)
    assert unienv.make(own) is own
    short = unienv.make(CARTPOLE, env_kwargs={"max_episode_steps": 1})
    short.reset()
    assert short.step(short.sample_action())[3]
    assert unienv.make(lambda limit: TimeLimitWrapper(own, limit), env_kwargs={"limit": 4}).unwrapped is own.unwrapped


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("CartPol-v1",), gymnasium.error.NameNotFound, "Did you mean: `CartPole`"),
        ((CARTPOLE, 0), ValueError, "num_envs is 0, it must be at least 1, or None for a single environment"),
        ((CARTPOLE, 2, -1), ValueError, "workers is -1, it must not be negative"),
        ((CARTPOLE, None, 2), ValueError, "workers is 2 without num_envs: give the number of environments"),
        ((CARTPOLE, 2, 0, "trch"), ValueError, "unknown backend 'trch', .* numpy, torch, jax, did you mean 'torch'?"),
        (("envpol:" + CARTPOLE,), ModuleNotFoundError, "there is no module 'envpol', did you mean 'envpool'?"),
        ((CARTPOLE, "8"), TypeError, "num_envs is '8', it wants an integer"),
        ((CARTPOLE, 8, 2.0), TypeError, "workers is 2.0, it wants an integer"),
        ((3,), TypeError, "source: env is int, wanted a gymnasium.Env .*; it may also be an id or a function"),
        ((CARTPOLE, 2, 0, 3), TypeError, "backend is 3, wanted a ComputeBackend such as NumpyComputeBackend"),
    ],
)
def test_what_cannot_be_made(arguments: tuple[Any, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        unienv.make(*arguments)


def test_one_that_is_made_already_has_its_size() -> None:
    with pytest.raises(ValueError, match="exists already, with 1 environments: to choose num_envs"):
        unienv.make(gymnasium.make(CARTPOLE), num_envs=2)


# -- record ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [None, 3])
def test_a_recording_goes_on_with_other_random_numbers(tmp_path: Path, num_envs: int | None) -> None:
    def run(steps: int) -> int:
        with unienv.record(unienv.make(CARTPOLE, num_envs, seed=0), tmp_path / "r", steps) as recording:
            return recording.steps

    width = num_envs or 1
    assert run(60) == 60
    assert run(60) == 60  # done already
    assert run(100) == -(-100 // width) * width
    with ReplayBuffer.load_from(tmp_path / "r", backend="numpy") as buffer:
        assert_continuous(buffer)
        obs = buffer.get_at(slice(None))["obs"]
        assert not np.array_equal(obs[:30], obs[60:90])
        segments = buffer.get_segments() or []
        assert sum((stop - start + width - 1) // width for start, stop in segments) == len(buffer)


def test_steps_by_hand(tmp_path: Path) -> None:
    env = unienv.make(lambda: gymnasium.make(CARTPOLE, max_episode_steps=5), num_envs=2, seed=0)
    with unienv.record(env, tmp_path / "r") as recording:
        shown = [recording.observation]
        for step in range(1, 8):
            observation, _, _, truncated, info = recording.step(np.array([0, 1]))
            np.testing.assert_array_equal(observation, recording.observation)
            assert truncated.all() == (step == 5) == ("final_obs" in info)
            shown.append(observation)
    env.reset()  # the environment is open still
    with unienv.load(tmp_path / "r") as data:
        np.testing.assert_array_equal(data[:]["obs"], np.concatenate(shown[:-1]))
        assert len(data.episodes or ()) == 4


def test_a_policy_that_raises_leaves_what_was_recorded(tmp_path: Path) -> None:
    calls = iter([0, 1, 0])
    with pytest.raises(StopIteration):
        unienv.record(unienv.make(CARTPOLE, seed=0), tmp_path / "r", 10, lambda observation: next(calls))
    with unienv.load(tmp_path / "r") as data:
        assert (len(data), data.episodes) == (3, [(0, 3)])
        assert data.batch.cut_episodes() == [(0, 3)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("ends", ["close", "drop"])
def test_the_episode_under_way_is_cut(ends: str, tmp_path: Path) -> None:
    env = unienv.make(lambda: gymnasium.make(CARTPOLE, max_episode_steps=5), seed=0)
    recording = unienv.record(env, tmp_path / "r", steps=7, policy=lambda observation: int(observation[2] > 0))
    if ends == "close":
        recording.close()
    else:  # and is closed where the recording goes on
        del recording
        gc.collect()
        unienv.record(env, tmp_path / "r").close()
    with unienv.load(tmp_path / "r") as data:
        assert data.episodes == [(0, 5), (5, 7)]
        assert data.batch.cut_episodes() == [(5, 7)]  # type: ignore[attr-defined]


def test_a_recording_that_was_killed_goes_on(tmp_path: Path) -> None:
    code = """
import os, sys, unienv
recording = unienv.record(unienv.make("CartPole-v1", num_envs=2, seed=0), sys.argv[1])
recording.run(40)
os._exit(1)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "r"], timeout=60, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, b"")
    with unienv.record(batch(), tmp_path / "r", 60) as recording:
        assert len(recording) == 60
    with ReplayBuffer.load_from(tmp_path / "r", backend="numpy") as buffer:
        assert_continuous(buffer)
        assert buffer.verify() == []


KILLED_WHILE_CREATING = """
import os, sys, unienv
from unienv_data.replay_buffer import _folder
setattr(*{place}, lambda *args, **kwargs: os.kill(os.getpid(), 9))
unienv.record(unienv.make("CartPole-v1", num_envs=2, seed=0), sys.argv[1], 10)
"""


@pytest.mark.parametrize(
    "place", ["_folder.BufferState, 'create'", "_folder, 'write_description'", "_folder, 'sync_folder'"]
)
def test_one_that_was_killed_while_it_was_created_is_begun_anew(tmp_path: Path, place: str) -> None:
    code = KILLED_WHILE_CREATING.format(place=f"({place})")
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "r"], timeout=60, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (-9, b"")
    assert list((tmp_path / "r").iterdir())
    with unienv.record(batch(), tmp_path / "r", 20) as recording:
        assert len(recording) == 20
    assert unienv.check(tmp_path / "r").is_sound


def test_a_folder_that_another_process_is_creating_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = BufferState.create

    def slow(*args: Any, **kwargs: Any) -> BufferState:
        clear_killed_create(tmp_path / "r")  # as a second recording would meanwhile
        assert (tmp_path / "r" / "storage" / "rows.bin").exists()
        with pytest.raises(FileExistsError, match="exists already and is not a recording"):
            unienv.record(batch(), tmp_path / "r", 10)
        return made(*args, **kwargs)

    monkeypatch.setattr(BufferState, "create", slow)
    unienv.record(batch(), tmp_path / "r", 10).close()
    assert unienv.check(tmp_path / "r").is_sound


def test_one_that_was_dropped_without_close_goes_on(tmp_path: Path) -> None:
    unienv.record(batch(), tmp_path / "r", 10)
    gc.collect()
    with unienv.record(batch(), tmp_path / "r", 20) as recording:
        assert len(recording) == 20


def test_storages_and_columns_of_choice(tmp_path: Path) -> None:
    env = unienv.make(CARTPOLE, seed=0)
    space = transition_space(env, step=True)
    with unienv.record(env, tmp_path / "r", 20, space=space, storage="hdf5") as recording:
        assert isinstance(recording.buffer.storage, storage_by_name("hdf5"))
    with unienv.load(tmp_path / "r", backend="torch") as data:
        assert data[:]["step"][0] == 0


def other_slots(path: Path) -> Any:
    return unienv.record(unienv.make(CARTPOLE, num_envs=3), path, 10)


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (other_slots, "was recorded with slots 2, not 3: give the same value, or another path"),
        (lambda path: unienv.record(batch(), path, 10, capacity=8), "with capacity None, not 8"),
        (lambda path: unienv.record(batch(), path, 10, storage="hdf5"), "with storage packed, not hdf5"),
        (lambda path: unienv.record(batch(), path, 10, durable=True), "with durable False, not True"),
        (lambda path: unienv.record(unienv.make("Acrobot-v1", 2), path, 10), "action was .* and is "),
        (lambda path: unienv.record(AutoresetWrapper(batch()), path, 10), "restarts by itself"),
        (lambda path: unienv.record(batch(), path, policy=len), "policy without steps"),
        (lambda path: unienv.record(batch(), path, steps=0), "steps is 0, it must be at least 1"),
    ],
)
def test_what_does_not_go_on(tmp_path: Path, act: Callable[[Path], Any], text: str) -> None:
    path = tmp_path / "r"
    unienv.record(batch(), path, 10).close()
    with pytest.raises(ValueError, match=text):
        act(path)
    with unienv.record(batch(), path) as recording:  # nothing holds its lock
        assert len(recording) == 10


def batch() -> Env:
    return unienv.make(CARTPOLE, num_envs=2, seed=0)


def test_a_policy_that_gives_one_action_for_all_slots(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="actions are 5, 2 are wanted, one for each environment"):
        unienv.record(batch(), tmp_path / "r", 10, lambda observation: 5)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(FileExistsError, match="it exists already and is not a recording, give another path"):
        unienv.record(batch(), tmp_path, 10)
    with pytest.raises(TypeError, match=r"env is CartPoleEnv, wanted an environment: unienv.make\(env\) makes it one"):
        unienv.record(gymnasium.make(CARTPOLE).unwrapped, tmp_path)  # type: ignore[arg-type]


def test_one_process_records_at_a_time(tmp_path: Path) -> None:
    with unienv.record(batch(), tmp_path / "r"), pytest.raises(PermissionError, match=r"\d+"):
        unienv.record(batch(), tmp_path / "r")


# -- load --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [True, False])
def test_a_file_of_arrays(tmp_path: Path, flags: bool) -> None:
    arrays: dict[str, Any] = {"obs": np.arange(20.0).reshape(10, 2), "reward": np.arange(10.0, dtype=np.float32)}
    if flags:
        arrays["terminated"] = np.arange(10) % 4 == 3
    np.savez(tmp_path / "a.npz", **arrays)
    with unienv.load(tmp_path / "a.npz", backend="jax") as data:
        np.testing.assert_array_equal(data[3:5]["obs"], arrays["obs"][3:5])
        if flags:
            assert data.episodes == [(0, 4), (4, 8), (8, 10)]
            assert data.windows(after=1)[3]["reward"].tolist() == [3, 3]
        else:
            with pytest.raises(ValueError, match="does not know its episodes, windows would reach from one into the"):
                data.windows(after=1)


def test_what_data_are_shown_as(tmp_path: Path) -> None:
    unienv.record(batch(), tmp_path / "r", 40).close()
    with unienv.load(tmp_path / "r") as data:
        text = repr(data.windows(after=1))
        assert text == f"<Data: 40 samples of <FrameStackedBatch of {data.batch!r}>>"
    with unienv.load(LEROBOT) as data:
        assert repr(data) == "<Data: 60 samples of <LeRobotAsUniEnvDataset>>"


@pytest.mark.parametrize("name", ["pt", "hdf5", "parquet", "npz"])
def test_recordings_of_each_format(tmp_path: Path, name: str) -> None:
    unienv.record(batch(), tmp_path / "r", 40).close()
    unienv.convert(tmp_path / "r", tmp_path / "converted", to=name)
    with unienv.load(tmp_path / "r") as one, unienv.load(tmp_path / "converted") as other:
        np.testing.assert_array_equal(one[:]["obs"], other[:]["obs"])
        assert one.episodes == other.episodes
        assert other.windows(before=2).sampler(4, seed=0).sample()["obs"].shape == (4, 3, 4)


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    unienv.record(batch(), tmp_path / "cartpole", 10).close()
    with pytest.raises(FileNotFoundError, match=r"there is no such recording or file, did you mean 'cartpole'\?"):
        unienv.load(tmp_path / "catpole")
    for function in (unienv.info, unienv.stats, unienv.check):
        with pytest.raises(FileNotFoundError, match=r"there is no such folder, did you mean 'cartpole'\?"):
            function(tmp_path / "catpole")
    with pytest.raises(ValueError, match=r"'checksm' is no kind of finding, .*, did you mean 'checksum'\?"):
        unienv.check(tmp_path / "cartpole", ignore=["checksm"])
    for function in (unienv.load, lambda url: unienv.record(batch(), url)):
        with pytest.raises(ValueError, match="'s3://bucket/r' is a URL, and buffers lie in local folders: copy"):
            function("s3://bucket/r")
    with pytest.raises(FileNotFoundError, match=r"there is no such folder, did you mean 'cartpole'\?"):
        unienv.repair(tmp_path / "catpole", tmp_path / "repaired")
    with pytest.raises(ValueError, match=r"'hfd5' is no format, .*, did you mean 'hdf5'\?"):
        unienv.convert(tmp_path / "cartpole", tmp_path / "converted", "hfd5")
    with (
        unienv.load(tmp_path / "cartpole") as data,
        pytest.raises(ValueError, match="before is -1, it must not be neg"),
    ):
        data.windows(before=-1)
    with pytest.raises(FileNotFoundError, match="not a replay buffer, it has no metadata"):
        unienv.load(tmp_path)
    (tmp_path / "a.csv").touch()
    with pytest.raises(ValueError, match=r"or a file .npz, .h5, .hdf5 or .parquet, not .csv"):
        unienv.load(tmp_path / "a.csv")
    np.savez(tmp_path / "b.npz", a=np.zeros(2), b=np.zeros(3))
    with pytest.raises(ValueError, match=r"the arrays must have the same length, they have {'a': 2, 'b': 3}"):
        unienv.load(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", a=np.zeros((0, 2)))
    with pytest.raises(ValueError, match="the arrays are empty"):
        unienv.load(tmp_path / "c.npz")


# -- names -------------------------------------------------------------------------------------------------


def test_storages_by_name_and_episodes_by_another() -> None:
    space = BoxSpace("numpy", 0, 1, np.float32, shape=())
    with ReplayBuffer.create("list", space, capacity=4, keep_episodes=True) as buffer:
        assert isinstance(buffer.storage, storage_by_name("list"))
        assert buffer.maintain_segment_metadata
    with pytest.raises(ValueError, match=r"no storage is registered as 'hfd5', .* did you mean 'hdf5'\?"):
        ReplayBuffer.create("hfd5", space, capacity=4)
    for storage in ("packed", "flattened"):
        with pytest.raises(TypeError, match=r"takes no keyword 'keep_episode', .* did you mean 'keep_episodes'\?"):
            ReplayBuffer.create(storage, space, capacity=4, keep_episode=True)
    with pytest.raises(ValueError, match="maintain_segment_metadata=True contradicts keep_episodes=False"):
        ReplayBuffer.create(space, maintain_segment_metadata=True, keep_episodes=False)


LEROBOT = Path(__file__).parent / "data" / "lerobot_folders" / "v3_pick"
BOX = BoxSpace(NumpyComputeBackend, 0, 1, "float32", shape=(2,))
# Each takes a backend and returns what tells on which one it has worked.
TAKES_A_BACKEND: dict[str, Callable[[Any], Any]] = {
    "LeRobotAsUniEnvDataset.from_local": lambda b: LeRobotAsUniEnvDataset.from_local(LEROBOT, b).backend,
    "ToBackendOrDeviceStorage.create": lambda b: (
        ToBackendOrDeviceStorage.create(BOX, capacity=2, backend=b).inner_storage.backend
    ),
    "from_gym_space": lambda b: from_gym_space(gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(3)), b).backend,
    "data_stack": lambda b: get_backend_from_tensor(data_stack([1.0, 2.0], b)),
    "RowLayout.from_json": lambda b: RowLayout.from_json(space_to_json(BOX), b).space.backend,
    "reshape_batch_size_in_data": lambda b: get_backend_from_tensor(
        reshape_batch_size_in_data(b, parse_backend(b).from_numpy(np.arange(4.0)), (4,), (2, 2))
    ),
    "swap_batch_dims_in_data": lambda b: get_backend_from_tensor(
        swap_batch_dims_in_data(b, parse_backend(b).from_numpy(np.ones((2, 3))), 0, 1)
    ),
    "DynamicBoxSpace.pad_array_on_axis": lambda b: get_backend_from_tensor(
        DynamicBoxSpace.pad_array_on_axis(b, parse_backend(b).from_numpy(np.ones(2)), 0, 3)
    ),
    "DynamicBoxSpace.unpad_array_on_axis": lambda b: get_backend_from_tensor(
        DynamicBoxSpace.unpad_array_on_axis(b, parse_backend(b).from_numpy(np.ones(2)), 0)
    ),
    "DictSpace.with_children": lambda b: (
        DictSpace("numpy", {"a": BOX}).with_children([BOX.to("torch")], b).backend
        if b in ("torch", PyTorchComputeBackend)
        else parse_backend(b)
    ),
    "serialize_backend": lambda b: parse_backend(serialize_backend(b)),  # type: ignore[arg-type]
    "deserialize_dtype": lambda b: (
        parse_backend(b) if deserialize_dtype(b, "float32") == parse_backend(b).dtype_from_name("float32") else None
    ),
    "convert_index_to_backendarray": lambda b: get_backend_from_tensor(convert_index_to_backendarray(b, [0, 1], 3)),
    "index_with_offset": lambda b: get_backend_from_tensor(index_with_offset(b, [0, 1], 3, 1)),
    "get_uint8_dtype": lambda b: (
        parse_backend(b)
        if ImageCompressTransformation.get_uint8_dtype(b) == parse_backend(b).dtype_from_name("uint8")
        else None
    ),
}


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("taker", TAKES_A_BACKEND)
def test_a_backend_is_taken_by_name(taker: str, name: str) -> None:
    assert TAKES_A_BACKEND[taker](name) is parse_backend(name)  # type: ignore[arg-type]


def public_callables() -> dict[str, Any]:
    """Functions and methods behind the names that the packages export."""
    found = {}
    for package in (unienv, unienv_interface, unienv_data):
        for module in [
            package.__name__,
            *(m.name for m in pkgutil.iter_modules(package.__path__, package.__name__ + ".")),
        ]:
            if module.rpartition(".")[2].startswith("_"):
                continue
            names = getattr(importlib.import_module(module), "__all__", ())
            for name in names:
                thing = getattr(importlib.import_module(module), name)
                methods = vars(thing) if inspect.isclass(thing) else {"": thing}
                for key, method in methods.items():
                    function = getattr(method, "__func__", method)
                    if inspect.isfunction(function) and (not key.startswith("_") or key == "__init__"):
                        found[f"{function.__module__}.{function.__qualname__}"] = function
    return found


def test_every_public_parameter_of_that_name_takes_one() -> None:
    # A backend's own parts, and helpers of the sampling and stepping paths, are given the backend itself.
    internal = {
        "unienv_interface.backends.base.RandomFunctions.__init__",
        "unienv_interface.space.spaces.array.ArraySpace.__init__",
    }
    refusing = {
        name
        for name, function in public_callables().items()
        if (parameter := inspect.signature(function).parameters.get("backend")) is not None
        and "BackendLike" not in str(parameter.annotation)
        and "Any" not in str(parameter.annotation)
    }
    assert refusing - internal == set()


def test_a_folder_of_lerobot_is_loaded() -> None:
    with unienv.load(LEROBOT, backend="torch") as data:
        episodes = data.episodes
        batch, metadata = data.windows(after=3).sampler(8, seed=0).sample_with_metadata()
    assert episodes is not None
    assert episodes[-1][1] == len(data)
    assert isinstance(batch["action"], torch.Tensor)
    assert metadata["slice_valid_mask"].shape == (8, 4)


def spaces_on(backend: Any) -> list[Any]:
    box = BoxSpace(backend, 0, 1, "float32", shape=(2,))
    return [
        box,
        BinarySpace(backend, (2,)),
        TextSpace(backend, 3),
        DictSpace(backend, {"a": box, "b": {"c": box}}),
        TupleSpace(backend, [box, box]),
        UnionSpace(backend, [box, box]),
        GraphSpace(backend, box, box, is_edge=True),
    ]


@pytest.mark.parametrize(
    ("name", "backend"),
    [("torch", PyTorchComputeBackend), ("pytorch", PyTorchComputeBackend), ("jax", JaxComputeBackend)],
)
def test_spaces_take_backends_by_name(name: Any, backend: Any) -> None:
    assert spaces_on(name) == spaces_on(backend)
    for space in spaces_on("numpy"):
        moved = space.to(name)
        assert moved.backend is backend
        _, value = space.sample(NumpyComputeBackend.random.random_number_generator(0))
        assert space.data_to(value, name) in moved


def test_a_misspelt_name_of_a_package_is_told() -> None:
    import unienv_data

    with pytest.raises(AttributeError, match=r"has no attribute 'ReplayBufer', did you mean 'ReplayBuffer'\?"):
        unienv_data.ReplayBufer  # type: ignore[attr-defined] # noqa: B018


@pytest.mark.parametrize(
    "package",
    """unienv unienv_data unienv_data.datasets unienv_data.replay_buffer unienv_interface unienv_interface.backends
    unienv_interface.env_base unienv_interface.wrapper""".split(),  # noqa: SIM905
)
def test_every_public_name_is_there_and_listed(package: str) -> None:
    import importlib

    module = importlib.import_module(package)
    needing = {"FromEnvPool", "ToSB3VecEnv", "EpisodeWandbVideoWrapper"}
    assert set(module.__all__) <= set(dir(module))
    assert not {"TYPE_CHECKING", "lazy_exports"} & set(dir(module))
    assert [name for name in module.__all__ if name not in needing and getattr(module, name, None) is None] == []


def test_the_version_is_that_of_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "unienv_data.cli", "--version"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{unienv.__version__}\n", "")


def test_windows_is_refused_in_a_sentence() -> None:
    code = "import sys; sys.platform = 'win32'\ntry:\n    import unienv\nexcept ImportError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("which Windows lacks: run it in WSL 2 there\n")


def test_data_over_a_batch_of_ones_own() -> None:
    class Ten(BatchBase):
        is_mutable = False

        def __len__(self) -> int:
            return 10

        def get_at(self, idx: Any) -> Any:
            return np.arange(10, dtype=np.float32)[idx]

    data = unienv.Data(Ten(BoxSpace("numpy", 0, 10, np.float32, shape=())))
    assert data.sampler(4, seed=0).sample().shape == (4,)
    data.close()
    assert len(data) == 10
