"""Goals reached later: against Stable-Baselines3's strategies, inside episodes, lanes and windows, and seeded."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS
from transitions import Step, recorded, recorded_lanes

from unienv_data import (
    BatchBase,
    HindsightBatch,
    MultiprocessingSampler,
    NStepBatch,
    ReplayBuffer,
    SliceStackedBatch,
    StepSampler,
)
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BinarySpace, BoxSpace, DictSpace

NUMPY = NumpyComputeBackend
STRATEGIES = ["future", "final", "episode"]


def goal_space(backend: Any = NUMPY) -> DictSpace:
    place, flag = BoxSpace(backend, -np.inf, np.inf, "float32", shape=(2,)), BinarySpace(backend, ())
    reward = BoxSpace(backend, -np.inf, np.inf, "float32", shape=())
    obs = DictSpace(backend, {"observation": place, "achieved_goal": place, "desired_goal": place})
    return DictSpace(backend, {"obs": obs, "next_obs": obs, "reward": reward, "terminated": flag, "truncated": flag})


def goal_rows(held: list[Step], backend: Any = NUMPY) -> dict[str, Any]:
    """What is achieved is the number of the observation, and the goal that of its episode, below zero."""

    def column(values: list[float]) -> Any:
        return backend.from_numpy(np.repeat(np.array(values, np.float32)[:, None], 2, axis=1))

    before, after = column([step.obs for step in held]), column([step.obs + 1 for step in held])
    goal = column([-1.0 - hash(step.episode) % 1000 for step in held])
    return {
        "obs": {"observation": before, "achieved_goal": before, "desired_goal": goal},
        "next_obs": {"observation": after, "achieved_goal": after, "desired_goal": goal},
        "reward": backend.from_numpy(np.full(len(held), -7, np.float32)),
        "terminated": backend.from_numpy(np.array([step.terminated for step in held])),
        "truncated": backend.from_numpy(np.array([step.truncated for step in held])),
    }


def with_goals(source: ReplayBuffer, held: list[Step], **options: Any) -> ReplayBuffer:
    """A buffer with the episodes of another, of samples with goals."""
    backend = source.backend
    buffer = ReplayBuffer.create(goal_space(backend), keep_episodes=True, lanes=source.lanes, **options)
    if source.lanes > 1:
        for first in range(0, len(held), source.lanes):
            steps, following = (held[start : start + source.lanes] for start in (first, first + source.lanes))
            ended = [now.episode != then.episode for now, then in zip(steps, following, strict=False)]
            buffer.extend_lanes(goal_rows(steps, backend), ended or None)
        return buffer
    for name in dict.fromkeys(step.episode for step in held):
        buffer.extend(goal_rows([step for step in held if step.episode == name], backend))
    return buffer


def distance(achieved: Any, goal: Any) -> Any:
    return abs(achieved - goal)[..., 0]


def sources(kind: str, backend: Any = NUMPY) -> tuple[ReplayBuffer, list[Step]]:
    if kind == "lanes":
        made, held = recorded_lanes(backend, 3, 12, 24)
    else:
        made, held = recorded(backend, [(5, "truncated"), (1, "terminated"), (9, "cut")], 4, 17)
    return with_goals(made, held), held


# The choice of goals is the same on every backend.
CASES = [(strategy, kind, NUMPY) for strategy in STRATEGIES for kind in ("ring", "lanes")]


@pytest.mark.parametrize(
    ("strategy", "kind", "backend"), [*CASES, *(("future", "ring", backend) for backend in BACKENDS[1:])]
)
def test_goals_are_those_that_the_strategy_allows(strategy: Any, kind: str, backend: Any) -> None:
    buffer, held = sources(kind, backend)
    view = HindsightBatch(buffer, strategy, 3, reward=distance, seed=1)
    order = np.random.default_rng(0).integers(0, len(held), 600)
    batch, metadata = view.get_at_with_metadata(order)
    assert batch in view._batched_space(600)
    plain = buffer.get_at(order)
    to_numpy = backend.to_numpy
    relabelled = to_numpy(metadata["relabelled"])
    assert relabelled.mean() == pytest.approx(0.75, abs=0.07)
    reached: dict[int, set[float]] = {}
    for row, place in enumerate(order.tolist()):
        goal, reward = float(batch["obs"]["desired_goal"][row, 0]), float(batch["reward"][row])
        assert goal == float(batch["next_obs"]["desired_goal"][row, 1])
        if not relabelled[row]:
            assert (goal, reward) == (float(plain["obs"]["desired_goal"][row, 0]), -7)
            continue
        assert reward == abs(held[place].obs + 1 - goal)
        reached.setdefault(place, set()).add(goal)
    for place, goals in reached.items():
        same = [step.obs + 1 for step in held if step.episode == held[place].episode]
        later = [obs for obs in same if obs > held[place].obs]
        allowed = {"future": later, "final": later[-1:], "episode": same}[strategy]
        assert goals <= set(allowed)
        if len(allowed) <= 3:
            assert goals == set(allowed)  # with some 25 draws of each
    for unchanged in ("terminated", "truncated"):
        np.testing.assert_array_equal(to_numpy(batch[unchanged]), to_numpy(plain[unchanged]))
    np.testing.assert_array_equal(to_numpy(batch["obs"]["achieved_goal"]), to_numpy(plain["obs"]["achieved_goal"]))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_distribution_is_that_of_stable_baselines3(strategy: Any) -> None:
    her = pytest.importorskip("stable_baselines3.her.her_replay_buffer")
    spaces = pytest.importorskip("gymnasium").spaces
    place = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    obs = spaces.Dict({"observation": place, "achieved_goal": place, "desired_goal": place})

    class Env:
        def env_method(self, name: str, achieved: Any, goal: Any, info: Any, indices: Any) -> list[Any]:
            return [distance(achieved, goal)]

    made, held = recorded(NUMPY, [(4, "truncated"), (3, "terminated"), (6, "truncated")], 0, None)
    buffer = with_goals(made, held)
    view = HindsightBatch(buffer, strategy, 4, reward=distance, seed=0)
    theirs = her.HerReplayBuffer(
        200, obs, place, env=Env(), device="cpu", goal_selection_strategy=strategy, copy_info_dict=False
    )
    rows = goal_rows(held)
    for row, step in enumerate(held):
        before, after = ({key: value[None, row] for key, value in rows[name].items()} for name in ("obs", "next_obs"))
        done = np.array([step.terminated or step.truncated])
        theirs.add(before, after, np.zeros((1, 2)), np.array([-7.0]), done, [{"TimeLimit.truncated": step.truncated}])
    np.random.seed(0)
    count = 40_000
    sampled = theirs.sample(count)
    mine = view.get_at(np.random.default_rng(0).integers(0, len(held), count))

    def shares(achieved: Any, goal: Any, reward: Any) -> dict[tuple[int, ...], float]:
        columns = np.stack([np.asarray(achieved)[:, 0], np.asarray(goal)[:, 0], np.asarray(reward).reshape(-1)], axis=1)
        kinds, counts = np.unique(columns.astype(int), axis=0, return_counts=True)
        return {tuple(kind): share for kind, share in zip(kinds.tolist(), (counts / count).tolist(), strict=True)}

    their = sampled.next_observations
    expected = shares(their["achieved_goal"], their["desired_goal"], sampled.rewards)
    found = shares(mine["next_obs"]["achieved_goal"], mine["next_obs"]["desired_goal"], mine["reward"])
    assert found.keys() == expected.keys()
    assert max(abs(found[kind] - expected[kind]) for kind in expected) < 0.006


def test_the_same_seeds_give_the_same_batches_with_any_number_of_workers() -> None:
    buffer, _ = sources("ring")

    def goals(seed: int, workers: int | None) -> list[Any]:
        sampler: Any = StepSampler(HindsightBatch(buffer, reward=distance, seed=seed), 8, seed=3)
        if workers is not None:
            sampler = MultiprocessingSampler(sampler, n_workers=workers, n_buffers=2)
        with sampler:
            return [sampler.sample()["obs"]["desired_goal"].tolist() for _ in range(6)]

    first = goals(0, None)
    assert goals(0, 0) == goals(0, 1) == first
    assert goals(1, None) != first
    view = HindsightBatch(buffer, reward=distance)
    assert HindsightBatch(buffer, reward=distance).seed != view.seed
    index = np.arange(10)
    assert (view.get_at(index)["reward"] == view.get_at(index)["reward"]).all()
    assert (view.get_at(index)["reward"] != view.get_at(index[::-1])["reward"][::-1]).any()


@pytest.mark.parametrize("kind", ["ring", "lanes"])
def test_windows_have_one_goal_each(kind: str) -> None:
    buffer, held = sources(kind)
    view = HindsightBatch(buffer, reward=distance, seed=0)
    windows, metadata = SliceStackedBatch(view, [-1, 0, 1]).get_at_with_metadata(...)
    goals = windows["obs"]["desired_goal"]
    assert (goals == goals[:, :1]).all()
    assert metadata["relabelled"].shape == (len(held),)
    chosen = metadata["relabelled"]
    expected = np.where(chosen[:, None], distance(windows["next_obs"]["achieved_goal"], goals), -7)
    np.testing.assert_array_equal(windows["reward"], expected)
    steps = NStepBatch(view, 2, 0.5)
    batch = steps.get_at(...)
    pairs = SliceStackedBatch(view, [0, 1]).get_at_with_metadata(...)
    alone = pairs[1]["slice_valid_mask"][:, 1]
    rewards = pairs[0]["reward"]
    np.testing.assert_allclose(batch["reward"], rewards[:, 0] + np.where(alone, 0.5 * rewards[:, 1], 0))
    np.testing.assert_array_equal(batch["obs"]["desired_goal"], pairs[0]["obs"]["desired_goal"][:, 0])


def test_one_sample_and_extremes_of_k() -> None:
    buffer, _ = sources("ring")
    never, always = (HindsightBatch(buffer, k=k, reward=distance, seed=0) for k in (0, 1e12))
    np.testing.assert_array_equal(never.get_at(...)["reward"], buffer.get_at(...)["reward"])
    assert always.get_at_with_metadata(...)[1]["relabelled"].all()
    data, metadata = always.get_at_with_metadata(3)
    assert data in always.single_space
    assert metadata in always.single_metadata_space


def test_rewards_of_other_kinds() -> None:
    buffer, _ = sources("ring", BACKENDS[1])
    view = HindsightBatch(
        buffer, k=1e12, seed=0, reward=lambda achieved, goal: np.asarray(achieved)[:, 0] > np.asarray(goal)[:, 0]
    )
    assert set(view.get_at(...)["reward"].tolist()) <= {0.0, 1.0}
    wrong = HindsightBatch(buffer, reward=lambda achieved, goal: achieved)
    with pytest.raises(ValueError, match=r"array of shape \(5, 2\), wanted \(5,\): one reward for each of the 5"):
        wrong.get_at([0, 1, 2, 3, 4])


def test_goals_stay_inside_episodes_while_a_ring_is_overwritten() -> None:
    """The ring moves on between the look at the episodes and each read."""
    made, held = recorded(NUMPY, [(5, "truncated")] * 4, 0, 20)
    buffer = with_goals(made, held, capacity=20)

    class Moving(BatchBase):
        """Has another episode in it after each look."""

        is_mutable, is_segment_aware = False, True

        def __len__(self) -> int:
            return len(buffer)

        def get_at(self, idx: Any) -> Any:
            self.move()
            return buffer.get_at(idx)

        def get_column_at(self, nested_keys: Any, idx: Any) -> Any:
            self.move()
            return buffer.get_column_at(nested_keys, idx)

        def episodes_of(self, positions: Any) -> Any:
            return buffer.episodes_of(positions)

        @property
        def sample_numbers(self) -> range:
            return buffer.sample_numbers

        def move(self) -> None:
            nonlocal last
            last += 1
            first = last * 1000
            buffer.extend(goal_rows([Step(first + place, last, 0.0) for place in range(3)]))

    last = 9
    view = HindsightBatch(Moving(buffer.single_space), "episode", 1e12, reward=distance, seed=0)
    kept = 0
    for _ in range(20):
        batch, metadata = view.get_at_with_metadata(np.arange(20))
        chosen = metadata["relabelled"]
        kept += int(chosen.sum())
        reached, goal = (batch["next_obs"][key][chosen, 0] for key in ("achieved_goal", "desired_goal"))
        assert (reached // 1000 == goal // 1000).all()
        assert (batch["obs"]["desired_goal"][~chosen] < 0).all()
    assert kept == 0  # an episode of three has moved on by six


def test_goals_beside_a_writer() -> None:
    space = goal_space()
    buffer = ReplayBuffer.create(space, capacity=600, keep_episodes=True)
    for name in range(20):
        buffer.extend(goal_rows([Step(1000 * name + place, name, 0.0) for place in range(30)]))
    stop = threading.Event()

    def write() -> None:
        name = 20
        while not stop.is_set() and name < 4000:
            buffer.extend(goal_rows([Step(1000 * name + place, name, 0.0) for place in range(30)]))
            name += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        view = HindsightBatch(buffer, "future", 1e12, reward=distance, seed=0)
        sampler = StepSampler(view, 64, seed=0)
        for _ in range(150):
            batch, metadata = sampler.sample_with_metadata()
            chosen = metadata["relabelled"]
            reached, goal = (batch["next_obs"][key][chosen, 0] for key in ("achieved_goal", "desired_goal"))
            assert (reached // 1000 == goal // 1000).all()
            assert (goal >= reached).all()
    finally:
        stop.set()
        writer.join()


def test_what_it_refuses() -> None:
    buffer, _ = sources("ring")
    with pytest.raises(ValueError, match="strategy is 'last', wanted one of future, final, episode"):
        HindsightBatch(buffer, "last", reward=distance)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k is -1, it must be a number that is not negative"):
        HindsightBatch(buffer, k=-1, reward=distance)
    with pytest.raises(KeyError, match=r"there is no field 'target'.*desired_goal"):
        HindsightBatch(buffer, reward=distance, goal="target")
    with pytest.raises(ValueError, match="make the NStepBatch over the HindsightBatch"):
        HindsightBatch(NStepBatch(buffer, 2, 0.9), reward=distance)
    with pytest.raises(ValueError, match=r"HindsightBatch stays inside episodes.*keep_episodes=True"):
        HindsightBatch(ReplayBuffer.create(buffer.single_space, keep_episodes=False), reward=distance)
    number = BoxSpace(NUMPY, 0, 1, "float32", shape=())
    spaces = {**goal_space().spaces, "obs": {"desired_goal": number}}
    other = ReplayBuffer.create(DictSpace(NUMPY, spaces), keep_episodes=True)
    with pytest.raises(ValueError, match=r"obs/desired_goal: .*it can be no goal"):
        HindsightBatch(other, reward=distance)
