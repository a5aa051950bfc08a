"""What offline RL asks of a dataset, each figure compared with one computed from what Minari itself gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from minari_cases import BOXES, boxes, minari, minari_folder, quiet, write

from unienv_data.datasets import EpisodeSummary, MinariExperienceReplay
from unienv_data.samplers import SamplerWithoutReplacement, SliceSampler
from unienv_interface.backends import NumpyComputeBackend

LENGTHS = [4, 1, 6, 3, 5, 2]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> Iterator[None]:
    with minari_folder(tmp_path / "minari"):
        yield


def episodes() -> list[dict[str, Any]]:
    """Episodes of which some are truncated, and one has a terminated step in its middle."""
    made = [boxes(steps, seed=seed) for seed, steps in enumerate(LENGTHS)]
    made[2]["terminations"] = np.array([False, True, False, False, False, False])
    made[3] |= {"terminations": np.zeros(3, bool), "truncations": np.array([False, False, True])}
    return made


def replay(tmp_path: Path, dataset_id: str = "some-v0", **options: Any) -> MinariExperienceReplay:
    options = {"load_from_local_minari": True, "progress": False, **options}
    return MinariExperienceReplay(dataset_id, 4, root=tmp_path / "converted", **options)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[MinariExperienceReplay]:
    write("some-v0", episodes(), *BOXES)
    with replay(tmp_path) as made:
        yield made


def recorded() -> list[Any]:
    with quiet():
        return list(minari.load_dataset("some-v0").iterate_episodes())


def trajectories() -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """The pieces of episodes up to a step that ends one: episode, rewards, terminations, next observations."""
    found = []
    for episode in recorded():
        begin = 0
        for step in range(len(episode)):
            if step == len(episode) - 1 or episode.terminations[step] or episode.truncations[step]:
                part = slice(begin, step + 1)
                after = episode.observations[begin + 1 : step + 2]
                found.append((episode.id, episode.rewards[part], episode.terminations[part], after))
                begin = step + 1
    return found


# -- returns -----------------------------------------------------------------------------------------------


def test_returns_of_episodes(data: MinariExperienceReplay) -> None:
    wanted = [episode.rewards.sum() for episode in recorded()]
    np.testing.assert_allclose(data.episode_returns(), wanted)
    first = data.episodes()[0]
    assert first == EpisodeSummary(0, 0, 4, pytest.approx(wanted[0]), True, False)
    assert [episode.stop - episode.start for episode in data.episodes()] == LENGTHS
    assert data.episodes()[3][4:] == (False, True)
    data.set_(("next", "reward"), 1.0)
    assert data.episode_returns().tolist() == LENGTHS


def test_normalised_scores_are_those_of_minari(data: MinariExperienceReplay, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="reference scores are None and None"):
        data.normalized_score(1.0)
    with quiet():
        dataset = minari.load_dataset("some-v0")
        dataset.storage.update_metadata({"ref_min_score": -3.0, "ref_max_score": 7.5})
        returns = np.array([episode.rewards.sum() for episode in recorded()])
        wanted = minari.get_normalized_score(minari.load_dataset("some-v0"), returns)
    with replay(tmp_path) as changed:
        np.testing.assert_allclose(changed.normalized_score(changed.episode_returns()), wanted)
        assert changed.normalized_score(7.5) == 1


# -- columns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discount", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("split_trajs", [False, True])
def test_return_to_go(discount: float, split_trajs: bool, data: MinariExperienceReplay, tmp_path: Path) -> None:
    wanted: list[float] = []
    for _, rewards, _, _ in trajectories():
        wanted += [sum(discount**ahead * r for ahead, r in enumerate(rewards[step:])) for step in range(len(rewards))]
    with replay(tmp_path, split_trajs=split_trajs) as made:
        assert made.add_return_to_go(discount) is made
        found = made["return_to_go"]
        if split_trajs:
            found = found[made["mask"]]
        np.testing.assert_allclose(found[:, 0], wanted)
        made.add_return_to_go(discount, key=("extra", "return"))
        assert ("extra", "return") in made.sample().keys(True)
        made.set_(("next", "reward"), 0.0)
        made.add_return_to_go(discount)
        assert not made["return_to_go"].any()
    with pytest.raises(ValueError, match=r"episode: values of torch\.float64"):
        data.add_return_to_go(key="episode")
    with pytest.raises(ValueError, match="next cannot be added: next is a group"):
        data.add_return_to_go(key="next")
    for wrong in (-0.1, 1.1):
        with pytest.raises(ValueError, match="discount is"):
            data.add_return_to_go(wrong)


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_n_step_columns(n: int, data: MinariExperienceReplay) -> None:
    data.add_n_step(n, 0.9)
    found, start = data[:], 0
    for _, rewards, terminations, after in trajectories():
        for step in range(len(rewards)):
            taken = rewards[step : step + n]
            last = step + len(taken) - 1
            sample = found["n_step"][start + step]
            np.testing.assert_allclose(sample["reward"][0], sum(0.9**k * r for k, r in enumerate(taken)))
            assert sample["steps"] == len(taken)
            assert sample["terminated"][0] == terminations[last]
            wanted = 0 if terminations[last] else 0.9 ** len(taken)
            np.testing.assert_allclose(sample["discount"][0], wanted)
            np.testing.assert_array_equal(sample["observation"], after[last])
        start += len(rewards)
    assert start == len(data)
    assert found["n_step", "truncated"].sum() == min(n, 3)
    data.add_n_step(2, 0.5, key="short", observations=False)
    assert set(data["short"].keys()) == {"reward", "terminated", "truncated", "discount", "steps"}
    with pytest.raises(ValueError, match="n is 0"):
        data.add_n_step(0, 0.9)


# -- choosing episodes -------------------------------------------------------------------------------------


def steps_of(ids: list[int]) -> list[int]:
    ends = np.cumsum(LENGTHS)
    return [step for number in ids for step in range(ends[number] - LENGTHS[number], ends[number])]


@pytest.mark.parametrize("chosen", [[2, 4], [5, 0], [3], [False, True, True, False, False, True]], ids=str)
def test_chosen_episodes_have_their_samples(chosen: Any, data: MinariExperienceReplay) -> None:
    data.set_("value", torch.arange(len(data)))
    ids = np.flatnonzero(chosen).tolist() if isinstance(chosen[0], bool) else chosen
    part = data.select_episodes(chosen, sampler=SamplerWithoutReplacement())
    wanted = data[steps_of(ids)]
    assert (part[:] == wanted).all()
    for key in wanted.keys(True, True):
        assert torch.equal(part[key], wanted[key])
    assert (part[len(part) - 1] == wanted[-1]).all()
    assert part.batch_size == 4
    assert sorted(torch.cat([batch["value"] for batch in part]).tolist()) == sorted(steps_of(ids))
    assert part["episode"].unique_consecutive().tolist() == ids
    lengths = [LENGTHS[number] for number in ids]
    batch = part.as_batch(NumpyComputeBackend)
    assert [stop - start for start, stop in batch.get_segments()] == lengths
    again = part.select_episodes([0])
    assert len(again) == lengths[0]
    part.set_("value", 0)
    assert data["value"].tolist() == list(range(len(data)))


def test_slices_of_chosen_episodes_stay_in_them(data: MinariExperienceReplay) -> None:
    part = data.select_episodes([4, 2], sampler=SliceSampler(slice_len=3, seed=0))
    drawn = part.sample(30)["episode"].reshape(10, 3)
    assert (drawn == drawn[:, :1]).all()
    assert set(drawn.flatten().tolist()) == {2, 4}


def test_chosen_episodes_are_split_saved_and_pickled(data: MinariExperienceReplay, tmp_path: Path) -> None:
    import pickle

    with replay(tmp_path, split_trajs=True) as split:
        part = split.select_episodes([3, 2])
        assert part[:]["mask"].sum(1).tolist() == [3, 2, 4]
    part = data.select_episodes([1, 4])
    part.set_("value", 3.0)
    turned = data.select_episodes([5, 4, 3, 2, 1, 0])
    for replay_of_some in (part, turned):
        assert (pickle.loads(pickle.dumps(replay_of_some))[:] == replay_of_some[:]).all()
    with pytest.raises(ValueError, match="belongs to another dataset"):
        data.load_state_dict(turned.state_dict())
    part.dumps(tmp_path / "saved")
    same = data.select_episodes([1, 4])
    same.loads(tmp_path / "saved")
    assert (same[:] == part[:]).all()
    with pytest.raises(ValueError, match="belongs to another dataset"):
        data.select_episodes([3, 0]).loads(tmp_path / "saved")


def test_episodes_are_split_at_random_without_overlap(data: MinariExperienceReplay) -> None:
    for seed in range(5):
        parts = data.split_episodes([0.5, 0.34, 0.16], seed=seed)
        numbers = [part["episode"].unique().tolist() for part in parts]
        assert [len(part) for part in numbers] == [3, 2, 1]
        assert sorted(number for part in numbers for number in part) == list(range(6))
        again = data.split_episodes([0.5, 0.34, 0.16], seed=seed)
        assert [part["episode"].unique().tolist() for part in again] == numbers
    for fractions, message in (([0.5, 0.4], "the sum 1"), ([], "the sum 1"), ([1.5, -0.5], "positive")):
        with pytest.raises(ValueError, match=message):
            data.split_episodes(fractions)
    with pytest.raises(TypeError, match=r"fractions is a dict, wanted a list of numbers"):
        data.split_episodes({"train": 0.9, "test": 0.1})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="6 episodes are too few"):
        data.split_episodes([0.99, 0.01])


def test_episodes_are_filtered_by_return_and_by_a_function(data: MinariExperienceReplay) -> None:
    returns = np.array([episode.rewards.sum() for episode in recorded()])
    median = float(np.sort(returns)[3])
    high = data.filter_by_return(median)
    assert high["episode"].unique().tolist() == np.flatnonzero(returns >= median - 1e-9).tolist()
    low = data.filter_by_return(maximum=median - 1e-9)
    assert len(low) + len(high) == len(data)
    best = data.filter_by_return(top=0.3)  # two of six
    assert best["episode"].unique().tolist() == np.sort(np.argsort(-returns)[:2]).tolist()
    long = data.filter_episodes(lambda episode: episode.stop - episode.start > 3 and episode.terminated)
    assert long["episode"].unique().tolist() == [0, 4]
    with pytest.raises(ValueError, match="no episodes are left"):
        data.filter_by_return(1e9)
    with pytest.raises(ValueError, match="top is 0"):
        data.filter_by_return(top=0)


# -- statistics --------------------------------------------------------------------------------------------


def test_statistics_are_those_of_all_steps(data: MinariExperienceReplay, monkeypatch: pytest.MonkeyPatch) -> None:
    from unienv_data.datasets import offline

    monkeypatch.setattr(offline, "COPY_BYTES", 7 * 24)  # several pieces
    steps = recorded()
    values = {
        "observation": np.concatenate([episode.observations[:-1] for episode in steps]),
        "action": np.concatenate([episode.actions for episode in steps]),
    }
    found = data.statistics()
    assert set(found.keys()) == {"observation", "action", "next"}
    for key, wanted in values.items():
        for name, of in (("mean", np.mean), ("std", np.std), ("min", np.min), ("max", np.max)):
            np.testing.assert_allclose(found[key, name], of(wanted.astype(np.float64), 0), rtol=1e-12, err_msg=name)
        assert (found[key, "count"] == len(data)).all()
    only = data.statistics([("next", "reward")])
    assert set(only.keys(True, True)) == {("next", "reward", n) for n in ("mean", "std", "min", "max", "count")}
    with pytest.raises(KeyError, match=r"no numbers under \('speed',\)"):
        data.statistics(["speed"])


def test_missing_values_do_not_count(tmp_path: Path) -> None:
    infos = [{"x": np.array([1.0, 2.0, 6.0])}, {}]
    parts = [boxes(2, infos=infos[0]), boxes(3, infos=infos[1])]
    write("odd-v0", parts, *BOXES)
    with replay(tmp_path, "odd-v0") as data:
        found = data.statistics([("info", "x")])["info", "x"]
        assert (found["mean"], found["std"], found["count"]) == (1.5, 0.5, 2)
        gone = data.select_episodes([1]).statistics([("info", "x")])["info", "x"]
        assert gone["count"] == 0
        assert gone["mean"].isnan()


# -- the environment ---------------------------------------------------------------------------------------


def test_the_environment_is_recovered(tmp_path: Path) -> None:
    import gymnasium

    with quiet():
        env = minari.DataCollector(gymnasium.make("CartPole-v1", max_episode_steps=7))
        env.reset(seed=0)
        for _ in range(7):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                break
        dataset = env.create_dataset("cartpole-v0", eval_env="Acrobot-v1")
        env.close()
        env._tmp_dir.cleanup()
        wanted = dataset.recover_environment()
    with replay(tmp_path, "cartpole-v0") as data:
        made = data.recover_environment()
        assert made.spec == wanted.spec
        assert made.spec.max_episode_steps == 7
        assert made.observation_space == wanted.observation_space
        assert data.recover_environment(eval_env=True).spec.id == "Acrobot-v1"
        rendering = data.recover_environment(render_mode="rgb_array")
        assert rendering.render_mode == "rgb_array"
        for opened in (made, wanted, rendering):
            opened.close()


def test_an_environment_that_is_not_named_or_not_there_says_so(data: MinariExperienceReplay, tmp_path: Path) -> None:
    import json

    with pytest.raises(ValueError, match="names no environment"):
        data.recover_environment()
    path = tmp_path / "minari" / "some-v0" / "data" / "metadata.json"
    from gymnasium.envs.registration import EnvSpec

    spec = EnvSpec("Missing-v0", entry_point="no_such_package:Env").to_json()
    content = {**json.loads(path.read_text()), "env_spec": spec, "requirements": ["no-such-package>=2"]}
    path.write_text(json.dumps(content))
    with (
        replay(tmp_path) as changed,
        pytest.raises(RuntimeError, match=r"'Missing-v0' cannot be made.*requires: no-such"),
    ):
        changed.recover_environment()
