"""A Minari dataset as an experience replay: what is set, saved, split and transformed, with TorchRL's parts too."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from minari_cases import BOXES, SCRIPT, boxes, minari_folder, record, write
from tensordict import TensorDict

from unienv_data import CombinedBatch, SliceStackedBatch, StorageCorruptedError
from unienv_data.datasets import ExperienceReplay, MinariExperienceReplay, TensorDictStorage
from unienv_data.samplers import (
    MultiprocessingSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    StepSampler,
)
from unienv_interface.backends import NumpyComputeBackend

STEPS = sum(length for length, _ in SCRIPT)
LENGTHS = [length for length, _ in SCRIPT]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the dataset goal-v0, and its copy."""
    path = tmp_path_factory.mktemp("goal")
    with minari_folder(path / "minari"):
        record("goal", "goal-v0", infos=True)
        replay(path).close()
    return path


def replay(folder: Path, dataset_id: str = "goal-v0", **options: Any) -> MinariExperienceReplay:
    with minari_folder(folder / "minari"):
        options = {"batch_size": 4, "load_from_local_minari": True, "progress": False, **options}
        return MinariExperienceReplay(dataset_id, root=folder / "converted", **options)


@pytest.fixture
def data(folder: Path) -> Iterator[MinariExperienceReplay]:
    with replay(folder) as made:
        yield made


# -- what is set stays here --------------------------------------------------------------------------------


def test_entries_are_set_in_this_replay_and_nowhere_else(folder: Path, data: MinariExperienceReplay) -> None:
    before = data[:].clone()
    data.set_(("next", "reward"), 1.0)
    data.set_at_(("observation", "observation"), torch.zeros(2, 4), [0, STEPS - 1])
    assert (data["next", "reward"] == 1).all()
    assert not data[0]["observation", "observation"].any()
    assert torch.equal(data[:]["next", "observation", "observation"], before["next", "observation", "observation"])
    sample = data.sample(50)
    assert (sample["next", "reward"] == 1).all()
    data.update_({"action": torch.ones(STEPS, 2)})
    assert (data.sample()["action"] == 1).all()
    data.write_all(before)
    assert (data[:] == before).all()
    with replay(folder) as other:
        assert (other[:] == before).all()


def test_saved_as_a_reference_with_what_was_set(folder: Path, tmp_path: Path) -> None:
    with replay(folder, sampler=RandomSampler(seed=1), prefetch=2) as data:
        data.set_(("next", "reward"), 2.0)
        data.sample()
        data.dumps(tmp_path / "saved")
        wanted = [data.sample() for _ in range(5)]
    with replay(folder, sampler=RandomSampler(seed=9), prefetch=2) as data:
        data.loads(tmp_path / "saved")
        for batch in wanted:
            assert (data.sample() == batch).all()
    with minari_folder(tmp_path / "minari"):
        write("goal-v0", [boxes(3)], *BOXES)
    with replay(tmp_path) as other, pytest.raises(ValueError, match="another space"):
        other.loads(tmp_path / "saved")


def test_nothing_is_added_to_a_dataset(data: MinariExperienceReplay) -> None:
    for write_to in (data.extend, data.add):
        with pytest.raises(PermissionError, match="copy that can be written to"):
            write_to(data[:2])
    with pytest.raises(PermissionError, match="delete"):
        data.empty()
    assert (len(data), data.write_count, data.initialized) == (STEPS, 0, True)


def test_a_copy_can_be_written_to(data: MinariExperienceReplay, tmp_path: Path) -> None:
    copy = ExperienceReplay(storage=TensorDictStorage(2 * STEPS))
    copy.extend(data[:])
    copy.extend(data[:3])
    assert (copy[:STEPS] == data[:]).all()
    on_disk = ExperienceReplay(storage=data.preprocess(lambda td: td, dest=tmp_path / "copy"))
    assert (on_disk[:] == data[:]).all()
    on_disk.set_(("next", "reward"), 0)


# -- trajectories ------------------------------------------------------------------------------------------


def test_trajectories_are_padded_and_masked_in_order(folder: Path, data: MinariExperienceReplay) -> None:
    sampler = SamplerWithoutReplacement(shuffle=False)
    with replay(folder, split_trajs=True, batch_size=len(SCRIPT), sampler=sampler) as split:
        assert len(split) == len(SCRIPT)
        (batch,) = split
        assert batch.batch_size == torch.Size([len(SCRIPT), max(LENGTHS)])
        assert batch["mask"].sum(1).tolist() == LENGTHS
        assert batch["traj_ids"].tolist() == [[n] * length + [0] * (5 - length) for n, length in enumerate(LENGTHS)]
        steps = batch[batch["mask"]].exclude("mask", "index", "traj_ids")
        assert (steps == data[:]).all()
        padding = batch[~batch["mask"]].exclude("index")
        assert not any(value.any() for value in padding.values(True, True))
        assert (split[2] == batch[2].exclude("index")).all()
        assert torch.equal(split["traj_ids"], batch["traj_ids"])
        split.set_at_(("next", "reward"), 5.0, 1)
        assert split[:]["next", "reward"].sum() - batch["next", "reward"].sum() == 5 - data["next", "reward"][3]
        split.write_all(batch)
        assert (split[:] == batch.exclude("index")).all()
        for key in ("mask", "traj_ids"):
            with pytest.raises(RuntimeError, match=f"{key} identifies the steps of a trajectory: it cannot be set"):
                split.set_(key, 1)
        split.set_("weight", batch["action"][..., 0])
        assert torch.equal(split["weight"], batch["action"][..., 0])
        assert split.data_path == folder / "converted" / "goal-v0_split"
        assert split.data_path_root == data.data_path == folder / "converted" / "goal-v0"


def test_trajectories_keep_the_masks_of_the_dataset(tmp_path: Path) -> None:
    infos = [{"late": np.arange(1, 4)}, {}, {"late": np.arange(10, 13)}]
    episodes = [boxes(steps, seed=steps, infos=info) for steps, info in zip((3, 4, 2), infos, strict=True)]
    with minari_folder(tmp_path / "minari"):
        write("odd-v0", episodes, *BOXES)
    with replay(tmp_path, "odd-v0", split_trajs=True) as split, replay(tmp_path, "odd-v0") as data:
        batch = split[:]
        valid = batch["mask", "valid"]
        assert valid.sum(1).tolist() == [3, 4, 2]
        late = [[False, True, True, False], [False] * 4, [True, True, False, False]]
        assert batch["mask", "info", "late"].tolist() == late
        assert torch.equal(batch["mask", "info", "late"][valid], data["mask", "info", "late"])
        assert torch.equal(batch["next", "mask", "info", "late"][valid], data["next", "mask", "info", "late"])
        assert torch.equal(split["mask", "valid"], valid)
        assert set(split["mask"].keys(True, True)) == {"valid", ("info", "late")}


def test_a_trajectory_also_ends_where_a_step_says_so(tmp_path: Path) -> None:
    episode = boxes(6)
    episode["terminations"] = np.array([False, True, False, False, False, False])
    with minari_folder(tmp_path / "minari"):
        write("ends-v0", [episode, boxes(2)], *BOXES)
    with replay(tmp_path, "ends-v0", split_trajs=True) as split:
        assert split[:]["mask"].sum(1).tolist() == [2, 4, 2]


# -- what the dataset says -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["box", "goal", "discrete", "image", "text", "tuple", "multi", "integers"])
def test_the_spaces_of_the_metadata_know_what_is_in_them(case: str, tmp_path: Path) -> None:
    with minari_folder(tmp_path / "minari"):
        record(case, "some-v0")
    with replay(tmp_path, "some-v0") as data, replay(tmp_path, "some-v0", split_trajs=True) as split:
        for part in ("observation", "action"):
            space = data.metadata[f"{part}_space"]
            for sample in (data[0], data.sample(), split[:]):
                assert space.is_in(sample[part])
            assert space == data.as_batch().single_space.spaces[part] or case in ("text", "tuple")
            assert not space.is_in(torch.full((4, 7), 1e9))
            assert not space.is_in(TensorDict({"other": torch.zeros(3)}, [3]))
        assert data.metadata["total_steps"] == STEPS


def test_the_spaces_of_the_metadata_keep_their_bounds(data: MinariExperienceReplay) -> None:
    space = data.metadata["action_space"]
    assert space.is_in(torch.ones(3, 2))
    assert not space.is_in(torch.full((3, 2), 1.5))
    assert not space.is_in(torch.ones(3, 2, dtype=torch.float64))
    observation = {key: torch.zeros(5, size, dtype=torch.float64) for key, size in (("observation", 4),)}
    assert not data.metadata["observation_space"].is_in(observation)


# -- other processes ---------------------------------------------------------------------------------------


def same(batch: Any) -> Any:
    return batch


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*os.fork.* was called:RuntimeWarning")  # JAX, which the child does not use
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader_work_on_the_replay_itself(folder: Path, start: str) -> None:
    with replay(folder, transform=lambda td: td.set("twice", td["action"] * 2), prefetch=2) as data:
        data.set_(("next", "reward"), 3.0)
        data.set_("value", torch.arange(STEPS))
        data.sample()
        workers = 2 if start == "fork" else 1
        loader = torch.utils.data.DataLoader(
            data, batch_size=5, num_workers=workers, collate_fn=same, multiprocessing_context=start
        )
        batches = list(loader)
        assert [len(batch) for batch in batches] == [5, 5, 5, 1]
        assert (torch.cat(batches) == data[:]).all()


def test_a_pickled_dataset_is_opened_again_and_goes_on(folder: Path) -> None:
    with replay(folder, sampler=RandomSampler(seed=3), prefetch=2) as data:
        data.set_("value", torch.arange(STEPS))
        data.sample()
        content = pickle.dumps(data)
        assert len(content) < 12_000
        with pickle.loads(content) as copy:
            assert (copy.dataset_id, copy.data_path, len(copy)) == ("goal-v0", data.data_path, STEPS)
            for _ in range(5):
                assert (copy.sample() == data.sample()).all()
            copy.set_("value", 0)
            assert data["value"].tolist() == list(range(STEPS))


def test_a_pickled_dataset_that_was_converted_again_is_an_error(tmp_path: Path) -> None:
    with minari_folder(tmp_path / "minari"):
        path = write("some-v0", [boxes(3)], *BOXES)
    with replay(tmp_path, "some-v0") as data:
        content = pickle.dumps(data)
        assert len(pickle.loads(content)) == 3
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
        path.parent.rmdir()
        with minari_folder(tmp_path / "minari"):
            write("some-v0", [boxes(3, seed=1)], *BOXES)
        replay(tmp_path, "some-v0").close()
        with pytest.raises(StorageCorruptedError, match="was converted again meanwhile"):
            pickle.loads(content)


def test_the_state_of_a_dataset_is_a_reference_with_what_was_set(folder: Path, tmp_path: Path) -> None:
    with replay(folder, sampler=RandomSampler(seed=1), prefetch=2) as data:
        data.set_("value", torch.arange(STEPS))
        data.sample()
        torch.save(data.state_dict(), tmp_path / "state.pt")
        wanted = [data.sample() for _ in range(4)]
    state = torch.load(tmp_path / "state.pt", weights_only=False)
    with replay(folder, sampler=RandomSampler(seed=9), prefetch=2) as data:
        data.load_state_dict(state)
        for batch in wanted:
            assert (data.sample() == batch).all()
    with minari_folder(tmp_path / "minari"):
        write("goal-v0", [boxes(3)], *BOXES)
    with replay(tmp_path, prefetch=2) as other, pytest.raises(ValueError, match="another space"):
        other.load_state_dict(state)


def test_a_group_of_entries(data: MinariExperienceReplay) -> None:
    after = data["next"]
    assert after.batch_size == torch.Size([STEPS])
    assert (after == data[:]["next"]).all()
    assert (data["next", "observation"] == after["observation"]).all()


# -- entries that are set, and hooks -----------------------------------------------------------------------


def test_hooks_of_a_dataset(folder: Path, tmp_path: Path, data: MinariExperienceReplay) -> None:
    """A dump that passed hooks has the samples, not a reference; it loads into a replay of the dataset."""
    data.set_("value", torch.arange(STEPS))
    wanted = data[:]
    data.register_save_hook(lambda td: td.exclude("info", ("next", "info")))
    data.dumps(tmp_path / "saved")
    infos = {"info": wanted["info"], "next": {"info": wanted["next", "info"]}}
    with replay(folder) as other:
        with pytest.raises(ValueError, match=r"info/\w+.* is missing.*register_load_hook"):
            other.loads(tmp_path / "saved")
        assert "value" not in other[0].keys()  # noqa: SIM118 - of a TensorDict
        other.register_load_hook(lambda td: td.update(infos))
        other.loads(tmp_path / "saved")
        assert (other[:] == wanted).all()
    free = ExperienceReplay(storage=STEPS, writer=None)
    free.extend(wanted)
    free.dumps(tmp_path / "free")
    with replay(folder) as other, pytest.raises(ValueError, match="saved with a RoundRobinWriter"):
        other.loads(tmp_path / "free")


def test_hooks_see_trajectories(folder: Path, tmp_path: Path) -> None:
    with replay(folder, split_trajs=True) as split:
        wanted = split[:]
        split.register_save_hook(lambda td: td)
        split.dumps(tmp_path / "saved")
        split.set_(("next", "reward"), 0.0)
        split.loads(tmp_path / "saved")
        assert (split[:] == wanted).all()


# -- as a batch --------------------------------------------------------------------------------------------


def test_a_batch_goes_to_other_processes(data: MinariExperienceReplay) -> None:
    batch = data.as_batch(NumpyComputeBackend)
    received = pickle.loads(pickle.dumps(batch))
    np.testing.assert_equal(received.get_at(...), batch.get_at(...))
    assert len(pickle.dumps(batch)) < 1000


def test_windows_combinations_and_columns_of_a_batch(data: MinariExperienceReplay) -> None:
    batch = data.as_batch(NumpyComputeBackend)
    whole = batch.get_at(...)
    stacked = SliceStackedBatch(batch, [-1, 0, 1])
    windows, metadata = stacked.get_at_with_metadata(...)
    valid = metadata["slice_valid_mask"]
    episodes = whole["episode"]
    wanted = [[i > 0 and episodes[i - 1] == episodes[i] for i in range(STEPS)]]
    wanted += [[True] * STEPS, [i + 1 < STEPS and episodes[i + 1] == episodes[i] for i in range(STEPS)]]
    assert np.asarray(valid).T.tolist() == wanted
    np.testing.assert_array_equal(windows["action"][:, 1], whole["action"])
    both = CombinedBatch([batch, batch.get_slice([0, 1])])
    assert both.get_at([STEPS, STEPS + 1])["episode"].tolist() == episodes[:2].tolist()
    goals = batch.get_column(["next", "observation", "achieved_goal"])
    np.testing.assert_array_equal(goals.get_at(...), whole["next"]["observation"]["achieved_goal"])


def test_workers_read_a_batch(data: MinariExperienceReplay) -> None:
    batch = data.as_batch(NumpyComputeBackend)
    wanted = StepSampler(batch, 8, seed=0)
    context = multiprocessing.get_context("spawn")
    with MultiprocessingSampler(StepSampler(batch, 8, seed=0), n_workers=1, ctx=context) as sampler:
        for _ in range(3):
            np.testing.assert_equal(sampler.sample(), wanted.sample())


def test_slices_stay_in_their_episode(folder: Path) -> None:
    sampler = SliceSampler(slice_len=3, seed=0)
    with replay(folder, sampler=sampler, batch_size=30) as data:
        episodes = data.sample()["episode"].reshape(10, 3)
        assert (episodes == episodes[:, :1]).all()
        assert set(episodes[:, 0].tolist()) == {0, 2, 5}


# -- TorchRL's parts ---------------------------------------------------------------------------------------

torchrl: Any
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchrl.data as torchrl
        from torchrl.envs import CatTensors, Compose
except ImportError:  # an optional library, and not a dependency of ours
    torchrl = None


class Tree:
    """For a TorchRL whose compiled trees do not fit the PyTorch that is installed: the same in plain NumPy."""

    reduce: Any

    def __init__(self, size: int) -> None:
        self.values = np.full(size, 0.0 if self.reduce is np.sum else np.inf)

    def __getitem__(self, index: Any) -> Any:
        found = self.values[np.asarray(index)]
        return torch.from_numpy(found) if found.ndim else float(found)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.values[np.asarray(index)] = np.asarray(value)

    def query(self, start: int, stop: int) -> float:
        return float(self.reduce(self.values[start:stop]))

    def scan_lower_bound(self, mass: Any) -> torch.Tensor:
        return torch.from_numpy(np.searchsorted(self.values.cumsum(), np.asarray(mass)))


class SumTree(Tree):
    reduce = staticmethod(np.sum)


class MinTree(Tree):
    reduce = staticmethod(np.min)


@pytest.fixture
def prioritized(monkeypatch: pytest.MonkeyPatch) -> Any:
    """TorchRL's PrioritizedSampler."""
    module: Any = pytest.importorskip("torchrl.data.replay_buffers.samplers.prioritized", reason="an older TorchRL")
    for name in ("Fp32", "Fp64"):
        for kind, stand_in in (("Sum", SumTree), ("Min", MinTree)):
            if getattr(module, f"{kind}SegmentTree{name}") is None:
                monkeypatch.setattr(module, f"{kind}SegmentTree{name}", stand_in)
    return module.PrioritizedSampler


with_torchrl = pytest.mark.skipif(torchrl is None, reason="torchrl is not installed")
with_quiet_torchrl = pytest.mark.filterwarnings("ignore")


@with_torchrl
@with_quiet_torchrl
def test_random_sampler_of_torchrl(folder: Path) -> None:
    with replay(folder, sampler=torchrl.RandomSampler()) as data:
        indices = [data.sample()["index"] for _ in range(50)]
        assert set(torch.cat(indices).tolist()) == set(range(STEPS))


@with_torchrl
@with_quiet_torchrl
def test_epochs_of_torchrl(folder: Path) -> None:
    with replay(folder, sampler=torchrl.SamplerWithoutReplacement()) as data:
        for _ in range(2):
            assert sorted(torch.cat([batch["index"] for batch in data]).tolist()) == list(range(STEPS))


@with_torchrl
@with_quiet_torchrl
def test_prioritized_sampler_of_torchrl(folder: Path, tmp_path: Path, prioritized: Any) -> None:
    def make() -> Any:
        return prioritized(STEPS, 1.0, 1.0)

    with replay(folder, sampler=make()) as data, replay(folder, sampler=make()) as other:
        assert "priority_weight" in set(data.sample().keys())
        priority = torch.full((STEPS,), 1e-9)
        priority[3] = 1.0
        data.update_priority(torch.arange(STEPS), priority)
        assert data.sample(20)["index"].unique().tolist() == [3]
        data.dumps(tmp_path / "saved")
        other.loads(tmp_path / "saved")
        assert other.sample(20)["index"].unique().tolist() == [3]


@with_torchrl
@with_quiet_torchrl
def test_slice_sampler_of_torchrl(folder: Path) -> None:
    with replay(folder, sampler=torchrl.SliceSampler(slice_len=3, traj_key="episode"), batch_size=30) as data:
        sample = data.sample()
        episodes, index = sample["episode"].reshape(10, 3), sample["index"].reshape(10, 3)
        assert (episodes == episodes[:, :1]).all()
        assert (index.diff() == 1).all()
        assert sample["next", "truncated"].reshape(10, 3)[:, -1].all()


@with_torchrl
@with_quiet_torchrl
def test_a_ring_with_samplers_of_torchrl(prioritized: Any) -> None:
    rb = ExperienceReplay(storage=8, sampler=prioritized(8, 1.0, 1.0), batch_size=4)
    for start in range(0, 20, 5):
        x = torch.arange(start, start + 5)
        rb.extend(TensorDict({"x": x, "td_error": torch.where(x == 17, 1.0, 1e-9)}, [5]))
    sample = rb.sample(20)
    assert sample["x"].unique().tolist() == [17]
    sample["td_error"] = torch.full((20,), 1e-9)
    rb.update_tensordict_priority(sample)
    assert len(rb.sample(200)["x"].unique()) > 3


@with_torchrl
@with_quiet_torchrl
def test_transforms_of_torchrl_and_the_documented_preprocessing(data: MinariExperienceReplay, tmp_path: Path) -> None:
    parts = [("observation", key) for key in ("observation", "achieved_goal", "desired_goal")]
    cat = Compose(
        CatTensors(in_keys=parts, out_key="obs"),
        CatTensors(in_keys=[("next", *key) for key in parts], out_key=("next", "obs")),
    )
    wanted = torch.cat([data[key] for key in cat[0].in_keys], -1)
    data.append_transform(cat)
    sample = data.sample()
    assert torch.equal(sample["obs"], wanted[sample["index"]])

    def func(td: Any) -> Any:
        keys = [("next", key) for key in ("done", "observation", "reward", "terminated", "truncated")]
        return cat(td.select("action", "episode", *keys, "observation"))

    rb = ExperienceReplay(storage=data.preprocess(func, dest=tmp_path / "new"), batch_size=3)
    assert rb["obs"].shape == (STEPS, 8)
    assert torch.equal(rb["next", "obs"][:2], rb["obs"][1:3])
    assert rb.sample()["next", "obs"].shape == (3, 8)


# -- without the libraries ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("library", "extra"), [("torch", "torch"), ("minari", "minari")])
def test_a_missing_library_names_the_extra(library: str, extra: str) -> None:
    script = f"""
import sys
sys.modules[{library!r}] = None
import unienv_data.datasets
try:
    unienv_data.datasets.MinariExperienceReplay
except ImportError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert f"unienv[{extra}]" in result.stdout
