"""Every transition of a Minari dataset is what Minari itself gives, at every index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from minari_cases import BOXES, CASES, SCRIPT, boxes, minari, minari_folder, quiet, record, write

from unienv_data.datasets import MinariExperienceReplay
from unienv_interface.backends import NumpyComputeBackend

STEPS = sum(length for length, _ in SCRIPT)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> Iterator[None]:
    with minari_folder(tmp_path / "minari"):
        yield


def replay(dataset_id: str, tmp_path: Path, **options: Any) -> MinariExperienceReplay:
    return MinariExperienceReplay(
        dataset_id, 4, root=tmp_path / "converted", load_from_local_minari=True, progress=False, **options
    )


def assert_same(found: Any, wanted: Any, where: str) -> None:
    """A part of a TensorDict, and the same part of an episode as Minari has it."""
    if isinstance(wanted, dict):
        assert set(found.keys()) == set(wanted), where
        for key, value in wanted.items():
            assert_same(found[key], value, f"{where}/{key}")
    elif isinstance(wanted, tuple):
        assert set(found.keys()) == {str(index) for index in range(len(wanted))}, where
        for index, value in enumerate(wanted):
            assert_same(found[str(index)], value, f"{where}/{index}")
    elif isinstance(wanted, list) or np.asarray(wanted).dtype == object:
        texts = [bytes(row.tolist()).rstrip(b"\0").decode() for row in found]
        assert texts == [text if isinstance(text, str) else text.decode() for text in wanted], where
    else:
        array = np.asarray(wanted)
        assert (found.numpy().dtype, tuple(found.shape)) == (array.dtype, array.shape), where
        np.testing.assert_array_equal(found.numpy(), array, err_msg=where)


def part(values: Any, start: int, stop: int | None) -> Any:
    """Entries [start, stop) of every column."""
    if isinstance(values, dict):
        return {key: part(value, start, stop) for key, value in values.items()}
    if isinstance(values, tuple):
        return tuple(part(value, start, stop) for value in values)
    return values[start:stop]


def assert_equals_source(data: MinariExperienceReplay, dataset: minari.MinariDataset) -> None:
    start = 0
    with quiet():
        episodes = list(dataset.iterate_episodes())
    for episode in episodes:
        found = data[start : start + len(episode)]
        assert_same(found["observation"], part(episode.observations, 0, -1), "observation")
        assert_same(found["next", "observation"], part(episode.observations, 1, None), "next/observation")
        assert_same(found["action"], episode.actions, "action")
        assert_same(found["next", "reward"], episode.rewards[:, None], "reward")
        assert_same(found["next", "terminated"], episode.terminations[:, None], "terminated")
        assert_same(found["next", "truncated"], episode.truncations[:, None], "truncated")
        done = episode.terminations | episode.truncations
        assert_same(found["next", "done"], done[:, None], "done")
        assert_same(found["episode"], np.full(len(episode), episode.id), "episode")
        if episode.infos:
            assert_same(found["info"], part(episode.infos, 0, -1), "info")
            assert_same(found["next", "info"], part(episode.infos, 1, None), "next/info")
        start += len(episode)
    assert start == len(data)
    everything = data[:]
    for index in range(len(data)):
        assert (data[index] == everything[index]).all()
        assert data[index].batch_size == torch.Size([])


@pytest.mark.parametrize("infos", [False, True], ids=["no infos", "infos"])
@pytest.mark.parametrize("case", CASES)
def test_every_transition_is_that_of_minari(case: str, infos: bool, tmp_path: Path) -> None:
    dataset = record(case, "group/some-v0", infos=infos)
    with replay("group/some-v0", tmp_path) as data:
        assert len(data) == STEPS
        assert_equals_source(data, dataset)
        assert ("info" in set(data[0].keys())) == infos
        assert data.verify() == []


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
@pytest.mark.parametrize("case", ["box", "goal", "discrete", "image", "text", "multi"])
def test_arrow_and_parquet(case: str, data_format: str, tmp_path: Path) -> None:
    dataset = record(case, "some-v0", data_format=data_format)
    with replay("some-v0", tmp_path) as data:
        assert_equals_source(data, dataset)


@pytest.mark.parametrize("case", ["goal", "image", "text", "tuple"])
def test_samples_are_the_transitions_at_their_index(case: str, tmp_path: Path) -> None:
    record(case, "some-v0", infos=True)
    with replay("some-v0", tmp_path) as data:
        seen = set()
        for _ in range(40):
            sample = data.sample()
            assert sample.batch_size == torch.Size([4])
            seen.update(sample["index"].tolist())
            assert (sample.exclude("index") == data[sample["index"]]).all()
        assert seen == set(range(STEPS))


def test_the_layout_is_that_of_the_documented_example(tmp_path: Path) -> None:
    episodes = [boxes(5, seed=seed, infos={"success": np.arange(6) > 2}) for seed in range(3)]
    write("door-v1", episodes, *BOXES)
    with replay("door-v1", tmp_path) as data:
        sample = data.sample(32)
    found = {key: (tuple(value.shape), value.dtype) for key, value in sample.items(True, True)}
    assert found == {
        "action": ((32, 2), torch.float32),
        "episode": ((32,), torch.int64),
        "index": ((32,), torch.int64),
        ("info", "success"): ((32,), torch.bool),
        "observation": ((32, 3), torch.float64),
        ("next", "done"): ((32, 1), torch.bool),
        ("next", "info", "success"): ((32,), torch.bool),
        ("next", "observation"): ((32, 3), torch.float64),
        ("next", "reward"): ((32, 1), torch.float64),
        ("next", "terminated"): ((32, 1), torch.bool),
        ("next", "truncated"): ((32, 1), torch.bool),
    }


# -- what is not there everywhere --------------------------------------------------------------------------


def test_infos_that_some_episodes_lack_or_that_begin_with_the_first_step(tmp_path: Path) -> None:
    infos = [
        {"whole": np.arange(4.0), "late": np.arange(1, 4), "some": np.arange(4)},
        {"whole": np.arange(10.0, 13.0), "late": np.arange(11, 13)},
    ]
    write("odd-v0", [boxes(3, infos=infos[0]), boxes(2, infos=infos[1])], *BOXES)
    with replay("odd-v0", tmp_path) as data:
        found = data[:]
    assert found["info", "whole"].tolist() == [0, 1, 2, 10, 11]
    assert found["next", "info", "whole"].tolist() == [1, 2, 3, 11, 12]
    assert found["next", "info", "late"].tolist() == [1, 2, 3, 11, 12]
    assert found["mask", "info", "late"].tolist() == [False, True, True, False, True]
    assert found["info", "late"].tolist() == [0, 1, 2, 0, 11]
    assert found["next", "mask", "info", "late"].all()
    assert found["info", "some"].tolist() == [0, 1, 2, 0, 0]
    assert found["mask", "info", "some"].tolist() == [True, True, True, False, False]
    assert set(found["mask", "info"].keys()) == {"late", "some"}


def test_a_missing_float_is_not_a_number(tmp_path: Path) -> None:
    write("odd-v0", [boxes(2, infos={"x": np.ones(3)}), boxes(2)], *BOXES)
    with replay("odd-v0", tmp_path) as data:
        assert torch.isnan(data["info", "x"]).tolist() == [False, False, True, True]


def test_state_of_older_datasets(tmp_path: Path) -> None:
    import h5py

    folder = write("old-v0", [boxes(3), boxes(2)], *BOXES)
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        for name, rows in (("episode_0", 4), ("episode_1", 3)):
            file[name].create_dataset("state/qpos", data=np.arange(2.0 * rows).reshape(rows, 2))
    with replay("old-v0", tmp_path) as data:
        assert data["state", "qpos"].tolist() == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]]
        assert data["next", "state", "qpos"].tolist() == [[2, 3], [4, 5], [6, 7], [2, 3], [4, 5]]


def test_spaces_that_the_dataset_does_not_declare_are_those_of_its_data(tmp_path: Path) -> None:
    import json

    folder = write("bare-v0", [boxes(3)], *BOXES)
    metadata = json.loads((folder / "metadata.json").read_text())
    del metadata["observation_space"], metadata["action_space"]
    metadata["env_spec"] = '{"id": "os:system", "entry_point": "os:system", "kwargs": {"command": "false"}}'
    (folder / "metadata.json").write_text(json.dumps(metadata))
    with replay("bare-v0", tmp_path) as data:
        np.testing.assert_array_equal(data["observation"].numpy(), boxes(3)["observations"][:-1])


# -- as a batch --------------------------------------------------------------------------------------------


def test_texts_are_strings_and_tuples_tuples_in_a_batch(tmp_path: Path) -> None:
    dataset = record("text", "text-v0")
    with replay("text-v0", tmp_path) as data:
        batch = data.as_batch(NumpyComputeBackend)
        wanted = [text for episode in dataset.iterate_episodes() for text in episode.observations["mission"][:-1]]
        assert batch.get_at(...)["observation"]["mission"].tolist() == wanted
        assert batch.get_column(["observation", "mission"]).get_at(2) == wanted[2]
        assert batch.get_at(3) in batch.single_space
    record("tuple", "tuple-v0")
    with replay("tuple-v0", tmp_path) as data:
        batch = data.as_batch(NumpyComputeBackend)
        assert isinstance(batch.get_at(0)["observation"], tuple)
        assert all(sample in batch.single_space for sample in batch)


@pytest.mark.parametrize("case", CASES)
def test_a_batch_has_the_same_values_and_knows_its_episodes(case: str, tmp_path: Path) -> None:
    record(case, "some-v0", infos=True)
    with replay("some-v0", tmp_path) as data:
        batch = data.as_batch(NumpyComputeBackend)
        ends = np.cumsum([length for length, _ in SCRIPT])
        assert batch.get_segments() == list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))
        first, end, stride = batch.episodes_of(np.array([0, 3, 4, STEPS - 1]))
        assert (first.tolist(), end.tolist()) == ([0, 3, 4, STEPS - 4], [3, 4, 9, STEPS])
        assert stride == 1
        assert not batch.may_grow
        index = np.array([5, 0, 5, STEPS - 1])
        whole = batch.get_at(index)
        for keys in (["action"], ["episode"], ["next", "reward"], ["next", "done"], ["next"], ["info", "count"]):
            wanted = whole
            for key in keys:
                wanted = wanted[key]
            np.testing.assert_equal(batch.get_column_at(keys, index), wanted)
