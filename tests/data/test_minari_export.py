"""A recording goes to Minari and comes back equal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from minari_cases import CASES, minari, minari_folder, quiet, record

from unienv_data import ReplayBuffer
from unienv_data.datasets import MinariExperienceReplay, export_minari
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.backends.base import ComputeBackend
from unienv_interface.backends.pytorch import PyTorchComputeBackend
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace
from unienv_interface.space.spaces import TextSpace, TupleSpace

NUMPY, PYTORCH = NumpyComputeBackend, PyTorchComputeBackend


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> Iterator[None]:
    with minari_folder(tmp_path / "minari"), quiet():
        yield


def replay(dataset_id: str, tmp_path: Path) -> MinariExperienceReplay:
    options: Any = {"load_from_local_minari": True, "progress": False}
    return MinariExperienceReplay(dataset_id, 4, root=tmp_path / "converted", **options)


def transition_space(backend: ComputeBackend, **further: Any) -> DictSpace:
    observation = DictSpace(
        backend,
        {
            "x": BoxSpace(backend, -9, 9, "float32", shape=(3,)),
            "image": BoxSpace(backend, 0, 255, "uint8", shape=(40, 32, 3)),
            "both": TupleSpace(backend, [BoxSpace(backend, 0, 4, "int64", shape=()), BinarySpace(backend, (2,))]),
            "word": TextSpace(backend, 5, charset="abc"),
        },
    )
    children = {
        "obs": observation,
        "action": BoxSpace(backend, -1, 1, "float64", shape=(2,)),
        "next_obs": observation,
        "reward": BoxSpace(backend, -np.inf, np.inf, "float32", shape=()),
        "terminated": BinarySpace(backend, ()),
        "truncated": BinarySpace(backend, ()),
        **further,
    }
    return DictSpace(backend, {key: child for key, child in children.items() if child is not None})


def recorded(space: DictSpace, lengths: list[int], **options: Any) -> ReplayBuffer:
    """A buffer with episodes of these lengths, in which observations follow each other."""
    buffer = ReplayBuffer.create(space, maintain_segment_metadata=True, **options)
    rng = space.backend.random.random_number_generator(0)
    for length in lengths:
        rng, obs = space.spaces["obs"].sample(rng)
        for _ in range(length):
            rng, sample = space.sample(rng)
            buffer.append({**sample, "obs": obs})
            obs = sample["next_obs"]
        buffer.mark_segment_end()
    return buffer


def as_host(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_host(child) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(as_host(child) for child in value)
    return value.numpy() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("backend", [NUMPY, PYTORCH], ids=["numpy", "pytorch"])
def test_a_recording_comes_back_equal(backend: ComputeBackend, tmp_path: Path) -> None:
    info = DictSpace(backend, {"speed": BoxSpace(backend, 0, 1, "float32", shape=(2,))})
    with recorded(transition_space(backend, info=info), [3, 1, 4]) as buffer:
        dataset = export_minari(buffer, "lab/robot/run-v0", author="somebody", progress=False)
        wanted = as_host(buffer.get_at(...))
    assert (dataset.total_episodes, dataset.total_steps) == (3, 8)
    assert [len(episode) for episode in minari.load_dataset("lab/robot/run-v0").iterate_episodes()] == [3, 1, 4]
    with replay("lab/robot/run-v0", tmp_path) as data:
        found = data.as_batch(NUMPY).get_at(...)
        assert data.metadata["author"] == ["somebody"]
    np.testing.assert_equal(found["observation"], wanted["obs"])
    np.testing.assert_equal(found["next"]["observation"], wanted["next_obs"])
    np.testing.assert_equal(found["action"], wanted["action"])
    np.testing.assert_equal(found["next"]["reward"][:, 0], wanted["reward"])
    np.testing.assert_equal(found["next"]["info"], wanted["info"])
    for flag in ("terminated", "truncated"):
        np.testing.assert_equal(found["next"][flag][:, 0], wanted[flag])
    assert found["episode"].tolist() == [0, 0, 0, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("has_infos", [False, True])
def test_columns_that_minari_has_no_place_for_are_kept_among_the_infos(has_infos: bool, tmp_path: Path) -> None:
    info = DictSpace(NUMPY, {"speed": BoxSpace(NUMPY, 0, 1, "float32", shape=(2,))}) if has_infos else None
    context = DictSpace(NUMPY, {"task": TextSpace(NUMPY, 9), "goal": BoxSpace(NUMPY, 0, 1, "float32", shape=(2,))})
    extras = DictSpace(NUMPY, {"logp": BoxSpace(NUMPY, -9, 9, "float32", shape=())})
    space = transition_space(NUMPY, info=info, context=context, extras=extras, done=BinarySpace(NUMPY, ()))
    with recorded(space, [3, 2]) as buffer:
        export_minari(buffer, "some-v0", progress=False)
        wanted = buffer.get_at(...)
    infos = [episode.infos for episode in minari.load_dataset("some-v0").iterate_episodes()]
    texts = [text.decode() for episode in infos for text in episode["context"]["task"]]  # which Minari reads as bytes
    assert texts == wanted["context"]["task"].tolist()
    with replay("some-v0", tmp_path) as data:
        found = data.as_batch(NUMPY).get_at(...)["next"]["info"]
    for column in ("context", "extras"):
        np.testing.assert_equal(found[column], wanted[column])
    assert set(found) == {"context", "extras"} | ({"speed"} if has_infos else set())


def test_a_column_with_the_name_of_an_info_is_refused(tmp_path: Path) -> None:
    info = DictSpace(NUMPY, {"step": BoxSpace(NUMPY, 0, 1, "float32", shape=())})
    space = transition_space(NUMPY, info=info, step=BoxSpace(NUMPY, 0, 9, "int64", shape=()))
    with recorded(space, [3]) as buffer, pytest.raises(ValueError, match=r"columns \['step'\] have the names of infos"):
        export_minari(buffer, "some-v0", progress=False)


@pytest.mark.parametrize("case", CASES)
def test_a_dataset_goes_to_minari_and_back(case: str, tmp_path: Path) -> None:
    record(case, "one-v0", infos=case != "box")
    with replay("one-v0", tmp_path) as one:
        export_minari(one.as_batch(NUMPY), "two-v0", progress=False)
        with replay("two-v0", tmp_path) as two:
            assert (one[:] == two[:]).all()


def test_interleaved_episodes(tmp_path: Path) -> None:
    space = transition_space(NUMPY)
    with (
        recorded(space, [3, 3]) as apart,
        ReplayBuffer.create(space, maintain_segment_metadata=True, lanes=2) as together,
    ):
        for step in range(3):
            together.extend_lanes(apart.get_at([step, step + 3]), np.full(2, step == 2))
        export_minari(together, "lanes-v0", progress=False)
        wanted = apart.get_at(...)
    with replay("lanes-v0", tmp_path) as data:
        found = data.as_batch(NUMPY).get_at(...)
    assert found["episode"].tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_equal(found["observation"], wanted["obs"])


def test_what_cannot_be_exported_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    space = transition_space(NUMPY)
    unaware = ReplayBuffer.create(space, keep_episodes=False)
    with pytest.raises(ValueError, match="keep_episodes=True"):
        export_minari(unaware, "some-v0")
    without_reward = transition_space(NUMPY, reward=None)
    with recorded(without_reward, [2]) as buffer, pytest.raises(ValueError, match="have no reward"):
        export_minari(buffer, "some-v0")
    with recorded(space, [2, 5]) as buffer:
        sample = buffer.get_at(4)
        sample["obs"]["x"] = sample["obs"]["x"] + 1
        buffer.set_at(4, sample)
        with pytest.raises(
            ValueError, match="episode 1: observation after step 1 differs from the value before the next"
        ):
            export_minari(buffer, "some-v0", progress=False)
    assert not list((tmp_path / "minari").glob("**/*")) if (tmp_path / "minari").exists() else True
    with recorded(space, [2]) as buffer:
        export_minari(buffer, "some-v0", progress=False)
        with pytest.raises(FileExistsError, match="another dataset_id"):
            export_minari(buffer, "some-v0", progress=False)
