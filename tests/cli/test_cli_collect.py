"""collect: the same seed gives the same recording, and a recording that was cut goes on."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import BACKEND, live_copy, read_all, same

pytest.importorskip("gymnasium")

from unienv_data import ReplayBuffer, check
from unienv_data.cli import _collect
from unienv_data.cli._collect import Plan, collect, run_seed
from unienv_data.cli._environments import backend_for
from unienv_data.cli._errors import CommandError, UsageError
from unienv_data.cli._policies import zero_action
from unienv_interface.space import BoxSpace, DictSpace, TextSpace

CARTPOLE = "CartPole-v1"


def plan(path: Path, steps: int = 200, **options: Any) -> Plan:
    return Plan(CARTPOLE, steps, path, **{"num_envs": 4, "workers": 0, "seed": 3, **options})


# -- what is recorded --------------------------------------------------------------------------------------


def test_a_recording_is_sound_and_has_all_steps(tmp_path: Path, run_json: Any) -> None:
    found = run_json("collect", CARTPOLE, "--steps", 300, "--num-envs", 3, "--workers", 0, "--out", tmp_path / "r")
    assert set(found) == {
        *("path", "env_id", "samples", "recorded", "episodes", "seconds", "steps_per_second", "stopped_by"),
    }
    assert (found["samples"], found["recorded"], found["stopped_by"]) == (300, 300, None)
    samples, segments = read_all(tmp_path / "r")
    assert segments is not None
    assert len(segments) == found["episodes"]
    assert sum(len(range(start, stop, 3)) for start, stop in segments) == 300
    assert set(samples) == {"obs", "action", "reward", "terminated", "truncated", "next_obs"}
    assert check(tmp_path / "r").findings == []


def test_the_same_seed_gives_the_same_samples_on_any_number_of_workers(tmp_path: Path) -> None:
    for name, workers in (("none", 0), ("two", 2)):
        collect(plan(tmp_path / name, workers=workers))
    collect(plan(tmp_path / "other", seed=4))
    samples, segments = read_all(tmp_path / "none")
    assert same(samples, read_all(tmp_path / "two")[0])
    assert segments == read_all(tmp_path / "two")[1]
    assert not same(samples, read_all(tmp_path / "other")[0])


def test_one_environment(tmp_path: Path) -> None:
    report = collect(plan(tmp_path / "r", 100, num_envs=1))
    _, segments = read_all(tmp_path / "r")
    assert (report.samples, len(segments or ())) == (100, report.episodes)
    assert check(tmp_path / "r").findings == []


def test_steps_are_rounded_up_to_whole_vector_steps(tmp_path: Path) -> None:
    assert collect(plan(tmp_path / "r", 201)).samples == 204


@pytest.mark.parametrize(
    ("storage", "library"), [("hdf5", "h5py"), ("parquet", "pyarrow"), ("npz", "numpy"), ("pt", "torch")]
)
def test_other_storages_hold_the_same(tmp_path: Path, storage: str, library: str) -> None:
    pytest.importorskip(library)
    columns = {"step": True, "episode_id": True}
    report = collect(plan(tmp_path / "r", 80, storage=storage, **columns))
    collect(plan(tmp_path / "packed", 80, **columns))
    assert report.samples == 80
    assert check(tmp_path / "r").findings == []
    if storage == "pt":
        assert collect(plan(tmp_path / "r", 80, storage=storage, resume=True)).samples == 80
    samples, segments = read_all(tmp_path / "packed")
    backend = backend_for(storage)
    with ReplayBuffer.load_from(tmp_path / "r", backend=backend) as buffer:
        found = buffer.get_at(...)
        assert buffer.get_segments() == segments
    for key, values in samples.items():
        assert backend.to_numpy(found[key]).dtype == values.dtype
        assert backend.to_numpy(found[key]).tolist() == values.tolist()


# -- policies ----------------------------------------------------------------------------------------------


def test_a_policy_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    (tmp_path / "my_agent.py").write_text(
        "import numpy as np\n"
        "def act(obs, rng):\n"
        "    return (obs[:, 2] + rng.normal(size=len(obs)) * 1e-3 > 0).astype(np.int64)\n"
    )
    monkeypatch.chdir(tmp_path)
    names: list[tuple[Any, ...]] = [("a",), ("b",)]
    if importlib.util.find_spec("torch") is not None:
        names.append(("c", "--storage", "pt"))
    for name, *options in names:
        how = ("--workers", 0, "--policy", "my_agent:act", *options)
        run("collect", CARTPOLE, "--steps", 200, *how, "--out", name)
    samples, _ = read_all(tmp_path / "a")
    assert np.mean(samples["action"] == (samples["obs"][:, 2] > 0)) > 0.9
    assert same(samples, read_all(tmp_path / "b")[0])


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("best", "it must be 'random', 'zero' or 'module:function'"),
        ("no_such_module:act", "No module named 'no_such_module'"),
        ("math:no_such_function", "has no attribute 'no_such_function'"),
        ("math:pi", "it must be a function"),
    ],
)
def test_a_policy_that_is_none(tmp_path: Path, policy: str, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        collect(plan(tmp_path / "r", policy=policy))
    assert not (tmp_path / "r").exists()


MODULES = {
    "broken_syntax": ("def act(:", "SyntaxError: invalid syntax (broken_syntax.py, line 1)"),
    "broken_lookup": ("X = {}['gone']", "KeyError: 'gone'"),
    "broken_on_purpose": ("raise RuntimeError('not today')", "RuntimeError: not today"),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("is_policy", [True, False], ids=["policy", "environment"])
def test_a_module_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any, name: str, is_policy: bool
) -> None:
    text, words = MODULES[name]
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    what = (CARTPOLE, "--policy", f"{name}:act") if is_policy else (f"{name}:Foo-v0",)
    errors = run("collect", *what, "--workers", 0, "--out", "r", status=1).stderr
    wanted = f"policy '{name}:act'" if is_policy else f"environment '{name}:Foo-v0'"
    assert errors == f"unienv: {wanted}: {words}\n"


def test_an_environment_of_ones_own_is_found_in_the_folder_one_is_in(tmp_path: Path, start: Any) -> None:
    (tmp_path / "my_envs.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Mine-v0', entry_point='gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
    )
    for workers in (0, 1):
        options = ["--steps", 20, "--num-envs", 2, "--workers", workers, "--out", f"r{workers}"]
        process = start(["collect", "my_envs:Mine-v0", *options], cwd=tmp_path)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, (output, errors)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("np.zeros(5, np.int64)", "shape (5,), the space wants (4,)"),
        ("7", "int, the space wants an array"),
        ("np.zeros(4)", "dtype float64, the space wants int64"),
    ],
)
def test_actions_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, words: str, workers: int
) -> None:
    (tmp_path / "odd_agent.py").write_text(f"import numpy as np\ndef act(obs, rng):\n    return {action}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_agent", raising=False)
    with pytest.raises(CommandError, match=re.escape(f"policy 'odd_agent:act': action: {words}")):
        collect(plan(tmp_path / "r", policy="odd_agent:act", workers=workers))


def test_zero_stays_within_bounds() -> None:
    space = DictSpace(
        BACKEND,
        {"a": BoxSpace(BACKEND, [1.0, -3.0], [2.0, -1.0], "float32"), "b": BoxSpace(BACKEND, -1, 1, "int64", shape=())},
    )
    action = zero_action(space)
    assert action["a"].tolist() == [1.0, -1.0]
    assert action["b"] == 0
    assert action in space
    with pytest.raises(CommandError, match="has no zero"):
        zero_action(TextSpace(BACKEND, 3))


# -- going on ----------------------------------------------------------------------------------------------


def test_resume_goes_on_until_there_are_as_many_as_asked_for(tmp_path: Path, run: Any) -> None:
    path = tmp_path / "r"
    collect(plan(path, 100))
    first, segments = read_all(path)
    assert segments is not None
    report = collect(plan(path, 300, resume=True))
    assert (report.samples, report.recorded) == (300, 200)
    samples, all_segments = read_all(path)
    assert same({key: value[:100] for key, value in samples.items()}, first)
    assert all_segments is not None
    assert set(segments) <= set(all_segments)  # the episodes that the end had cut were closed there
    assert check(path).findings == []  # no episode came twice, among others
    again = collect(plan(path, 300, resume=True))
    assert (again.samples, again.recorded) == (300, 0)


def test_resume_after_a_kill_closes_the_episodes_that_were_cut(tmp_path: Path) -> None:
    collect(plan(tmp_path / "r", 100))
    with ReplayBuffer.load_from(tmp_path / "r", backend=BACKEND, read_only=False) as buffer:
        step = {key: value[:4] for key, value in read_all(tmp_path / "r")[0].items()}
        buffer.extend_lanes(step)
        killed = live_copy(buffer, tmp_path / "killed")
    collect(plan(killed, 204, resume=True))
    _, segments = read_all(killed)
    assert segments is not None
    assert {(100 + lane, 101 + lane) for lane in range(4)} <= set(segments)
    assert not [finding for finding in check(killed).findings if finding.kind in ("episodes", "unfinished-episode")]


def test_seeds_of_runs_that_go_on_differ() -> None:
    seeds = [run_seed(7, present) for present in (0, 8, 16)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert run_seed(7, 8) != run_seed(8, 8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"env_id": "Acrobot-v1"}, "was recorded with env-id 'CartPole-v1', not 'Acrobot-v1'"),
        ({"seed": 9}, "was recorded with seed 3, not 9"),
        ({"num_envs": 2}, "was recorded with num-envs 4, not 2"),
        ({"policy": "zero"}, "was recorded with policy 'random', not 'zero'"),
        ({"storage": "npz"}, "was recorded with storage 'packed', not 'npz'"),
    ],
)
def test_resume_with_something_else_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    collect(plan(tmp_path / "r", 40))
    before = read_all(tmp_path / "r")[0]
    with pytest.raises(CommandError, match=words):
        collect(replace(plan(tmp_path / "r", 80, resume=True), **change))
    assert same(before, read_all(tmp_path / "r")[0])


def test_resume_with_another_space_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collect(plan(tmp_path / "r", 40))
    original = _collect.transition_space
    monkeypatch.setattr(_collect, "transition_space", lambda env, **more: original(env, **more, done=True))
    with pytest.raises(CommandError, match=r"does not fit CartPole-v1: done was not there and is bool \(\)"):
        collect(plan(tmp_path / "r", 80, resume=True))


# -- other columns and keywords ----------------------------------------------------------------------------


COLUMNS = {"episode_id": True, "step": True, "timestamp": True}
ODD_ID = "recordings_gym:Odd-v0"


def test_columns_that_are_asked_for(tmp_path: Path, run_json: Any) -> None:
    path = tmp_path / "r"
    options = ("--steps", 200, "--num-envs", 4, "--workers", 0, "--out", path)
    began = time.time()
    run_json("collect", CARTPOLE, *options, "--episode-id", "--step", "--timestamp")
    samples, segments = read_all(path)
    plain = collect(plan(tmp_path / "plain", seed=0))
    without = {key: value for key, value in samples.items() if key not in COLUMNS}
    assert same(without, read_all(Path(plain.path))[0])
    for start, stop in segments or ():
        rows = slice(start, stop, 4)
        assert samples["step"][rows].tolist() == list(range(len(samples["step"][rows])))
        assert len(set(samples["episode_id"][rows].tolist())) == 1
    assert sorted(set(samples["episode_id"].tolist())) == list(range(len(segments or ())))
    assert began <= samples["timestamp"].min() <= samples["timestamp"].max() <= time.time()
    assert check(path).findings == []


def test_keywords_of_the_environment(tmp_path: Path, run: Any) -> None:
    """They reach it: episodes have five steps at most, and steps within them no reward."""
    path = tmp_path / "r"
    kwargs = '{"max_episode_steps": 5, "sutton_barto_reward": true}'
    options = ("--num-envs", 4, "--workers", 1, "--out", path)
    run("collect", CARTPOLE, "--steps", 80, *options, "--env-kwargs", kwargs)
    samples, _ = read_all(path)
    assert samples["truncated"].any()
    assert set(samples["reward"].tolist()) == {0.0}
    run("collect", CARTPOLE, "--steps", 120, *options, "--resume")
    run("collect", CARTPOLE, "--steps", 160, *options, "--resume", "--env-kwargs", kwargs)
    samples, segments = read_all(path)
    assert len(samples["reward"]) == 160
    assert max(len(range(start, stop, 4)) for start, stop in segments or ()) == 5
    refused = run("collect", CARTPOLE, "--steps", 200, *options, "--resume", "--env-kwargs", "{}", status=1).stderr
    assert "was recorded with env-kwargs {'max_episode_steps': 5, 'sutton_barto_reward': True}, not {}" in refused


def test_infos_by_name_and_the_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment counts its steps: obs is [context, steps], an info is there in every third step only."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    path = tmp_path / "r"
    infos = ["odd", "_odd", "steps", "half", "is_even"]
    first = Plan(ODD_ID, 40, path, num_envs=2, workers=0, context=True, step=True, info=infos)
    collect(first)
    collect(Plan(ODD_ID, 80, path, num_envs=2, workers=0, resume=True))
    collect(replace(first, steps=120, resume=True, info=infos[::-1]))
    samples, _ = read_all(path)
    steps, info = samples["step"] + 1, samples["info"]
    assert len(steps) == 120
    assert set(info) == set(infos)
    assert info["steps"].tolist() == steps.tolist()
    assert info["half"].tolist() == ((steps - 1) / 2).tolist()  # though the first of them is an int
    assert info["is_even"].tolist() == (steps % 2 == 0).tolist()
    assert info["_odd"].tolist() == (steps % 3 == 0).tolist()
    assert info["odd"].tolist() == np.where(steps % 3 == 0, [[1], [2]] * steps[None], 0).T.tolist()
    assert samples["next_obs"][:, 0].tolist() == steps.tolist()
    assert len(set(samples["context"].tolist())) > 2
    assert check(path).findings == []


@pytest.mark.parametrize(("text", "words"), [("{", "which is not JSON"), ("[1]", "it must be a JSON object, such as")])
def test_keywords_that_are_none(tmp_path: Path, run: Any, text: str, words: str) -> None:
    assert words in run("collect", CARTPOLE, "--out", tmp_path / "r", "--env-kwargs", text, status=2).stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--env-kwargs", '{"colour": 1}'), "unexpected keyword argument 'colour'"),
        (("--context",), "it must be a dict of 'context' and 'observation'"),
        (("--info", "speed"), "info 'speed': missing in some environments or steps (present: none)"),
        (("--info", "speed", "--info", "_speed"), "info 'speed': missing in 500 random steps, which have none"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_the_environment_does_not_have(
    tmp_path: Path, run: Any, options: tuple[str, ...], words: str, workers: int
) -> None:
    out = ("--out", tmp_path / "r", "--num-envs", 2, "--workers", workers)
    errors = run("collect", CARTPOLE, *out, *options, status=1).stderr
    assert words in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "r").exists()


def test_infos_that_cannot_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    for name, words in (("words", "info 'words' is list of"), ("odd", "if it is optional, add --info _odd")):
        with pytest.raises(CommandError, match=words):
            collect(Plan(ODD_ID, 40, tmp_path / "r", num_envs=2, workers=0, info=[name]))
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("name", COLUMNS)
def test_resume_takes_the_columns_it_finds_and_no_others(tmp_path: Path, name: str) -> None:
    collect(plan(tmp_path / "with", 40, **{name: True}))
    assert collect(plan(tmp_path / "with", 80, resume=True)).samples == 80
    assert name in read_all(tmp_path / "with")[0]
    collect(plan(tmp_path / "without", 40))
    option = name.replace("_", "-")
    with pytest.raises(CommandError, match=f"was recorded with {option} False, not True"):
        collect(plan(tmp_path / "without", 80, resume=True, **{name: True}))
    with pytest.raises(CommandError, match=r"was recorded with info \[\], not \['speed'\]"):
        collect(plan(tmp_path / "without", 80, resume=True, info=["speed"]))


def test_episode_numbers_go_on_after_a_resume(tmp_path: Path) -> None:
    collect(plan(tmp_path / "r", 100, episode_id=True))
    collect(plan(tmp_path / "r", 200, resume=True))
    samples, segments = read_all(tmp_path / "r")
    assert sorted(set(samples["episode_id"].tolist())) == list(range(len(segments or ())))


def test_errors_before_anything_is_made(tmp_path: Path, run: Any) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    for args, words, status in (
        (("NoSuchEnv-v0", "--out", tmp_path / "r"), "NoSuchEnv", 1),
        ((CARTPOLE, "--out", tmp_path / "there"), "it exists already; give another path", 1),
        ((CARTPOLE, "--out", tmp_path / "there" / "file"), "it exists already; give another path", 1),
        ((CARTPOLE, "--out", tmp_path / "r", "--resume"), "there is no recording to continue", 1),
        ((CARTPOLE, "--out", tmp_path / "there", "--resume"), "not made by `unienv collect`", 1),
        ((CARTPOLE, "--out", tmp_path / "r", "--storage", "csv"), "storage is 'csv'", 2),
        ((CARTPOLE, "--out", tmp_path / "r", "--policy", "best"), "policy is 'best'", 2),
        ((CARTPOLE, "--out", tmp_path / "r", "--steps", 0), "'--steps'", 2),
        ((CARTPOLE, "--out", tmp_path / "r", "--num-envs", 0), "'--num-envs'", 2),
    ):
        assert words in run("collect", *args, "--workers", 0, status=status).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    for name in ("steps", "num_envs"):
        with pytest.raises(UsageError, match=f"{name} is 0, it must be at least 1"):
            collect(plan(tmp_path / "r", **{name: 0}))


def test_a_folder_that_is_there_and_empty_is_taken(tmp_path: Path, run: Any) -> None:
    (tmp_path / "r").mkdir()
    assert collect(plan(tmp_path / "r", 40)).samples == 40
    options = (CARTPOLE, "--workers", 0, "--out", tmp_path / "r")
    assert "continue it with --resume, or give another path" in run("collect", *options, status=1).stderr


def test_two_recordings_into_one_folder(tmp_path: Path) -> None:
    collect(plan(tmp_path / "r", 40))
    with (
        ReplayBuffer.load_from(tmp_path / "r", backend=BACKEND, read_only=False),
        pytest.raises(CommandError, match=f"process {os.getpid()} is recording into it; wait for it"),
    ):
        collect(plan(tmp_path / "r", 80, resume=True))


def test_an_error_in_a_worker_is_told_in_a_few_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    with pytest.raises(CommandError) as caught:
        collect(Plan("recordings_gym:Tired-v0", 100, tmp_path / "r", num_envs=3, workers=2))
    told = r"environment \d, step: ValueError: motor on fire; the 12 samples recorded until then are kept"
    assert re.match(told, caught.value.text)  # all of them fail at the same step, and one is the first to say so


def test_an_environment_that_fails_keeps_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tired_agent.py").write_text(
        "calls = []\n"
        "def act(obs, rng):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 10:\n"
        "        raise ZeroDivisionError('tired')\n"
        "    return rng.integers(0, 2, len(obs))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CommandError, match="ZeroDivisionError: tired; the 40 samples recorded until then are kept"):
        collect(plan(tmp_path / "r", policy="tired_agent:act"))
    assert check(tmp_path / "r").findings == []
    assert len(read_all(tmp_path / "r")[0]["action"]) == 40


@pytest.mark.parametrize("workers", [0, 2])
def test_code_that_exits_does_not_end_the_command_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any, workers: int
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    options = ("--num-envs", 3, "--workers", workers, "--json", "--out", tmp_path / "r")
    result = run("collect", "recordings_gym:Leaving-v0", *options, status=1)
    assert result.stdout == ""
    assert "SystemExit: 0; the 6 samples recorded until then are kept" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    (tmp_path / "leaving_agent.py").write_text("import sys\ndef act(obs, rng):\n    sys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CommandError, match="policy 'leaving_agent:act': SystemExit: 0; nothing was recorded"):
        collect(plan(tmp_path / "p", policy="leaving_agent:act", workers=workers))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("error", ["KeyError", "StopIteration", "AssertionError", "SystemExit"])
def test_an_environment_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, error: str
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    one = Plan(
        "recordings_gym:Unmade-v0", 100, tmp_path / "r", num_envs=3, workers=workers, env_kwargs={"error": error}
    )
    with pytest.raises(CommandError, match=f"^(environment .*)?{error}: '?no such part'?$"):
        collect(one)
    assert not (tmp_path / "r").exists()


def test_an_environment_that_fails_while_infos_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    names = ["late", "_late"]
    with pytest.raises(CommandError, match=r"ValueError: motor on fire$"):
        collect(Plan("recordings_gym:Tired-v0", 100, tmp_path / "r", num_envs=3, workers=0, info=names))
    assert not (tmp_path / "r").exists()


def test_what_environments_print_is_not_in_the_json(tmp_path: Path, start: Any) -> None:
    options = ["--steps", 8, "--num-envs", 2, "--workers", 1, "--json", "--out", tmp_path / "r"]
    process = start(["collect", "recordings_gym:Talking-v0", *options], cwd=Path(__file__).parent)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, json.loads(output)["samples"]) == (0, 8)
    assert errors.splitlines() == ["here I am"] * 2


def test_observations_of_nothing_are_no_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    collect(Plan("recordings_gym:Blind-v0", 400, tmp_path / "r", num_envs=2, workers=0))
    assert check(tmp_path / "r").findings == []


def test_a_recording_that_cannot_say_what_it_is_of_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_collect, "write_json", interrupted)
        with pytest.raises(KeyboardInterrupt):
            collect(plan(tmp_path / "r", 40))
    assert collect(plan(tmp_path / "r", 40)).samples == 40


@pytest.mark.parametrize("calls", [1, 4])
def test_code_that_changes_to_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "r").mkdir(parents=True)
    (elsewhere / "r" / "thesis.txt").write_text("years of work")
    (tmp_path / "roaming_agent.py").write_text(
        "import os\n"
        "calls = []\n"
        "def act(obs, rng):\n"
        f"    os.chdir({str(elsewhere)!r})\n"
        "    calls.append(1)\n"
        f"    if len(calls) == {calls}:\n"
        "        raise ValueError('lost')\n"
        "    return rng.integers(0, 2, len(obs))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "roaming_agent", raising=False)
    with pytest.raises(CommandError, match="ValueError: lost"):
        collect(plan(Path("r"), policy="roaming_agent:act"))
    assert (elsewhere / "r" / "thesis.txt").exists()
    assert ReplayBuffer.get_length_from_path(tmp_path / "r") == (None if calls == 1 else 12)


def test_what_fails_before_its_first_step_is_not_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fractions_agent.py").write_text("def act(obs, rng):\n    return rng.uniform(size=len(obs))\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CommandError, match=r"dtype float64, the space wants int64; nothing was recorded$"):
        collect(plan(tmp_path / "r", policy="fractions_agent:act"))
    assert not (tmp_path / "r").exists()
    collect(plan(tmp_path / "r", 40))
    with pytest.raises(CommandError, match="recorded with policy"):
        collect(plan(tmp_path / "r", policy="fractions_agent:act", resume=True))
    assert len(read_all(tmp_path / "r")[0]["action"]) == 40


# -- being stopped -----------------------------------------------------------------------------------------


def wait_for_samples(path: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (path / "metadata.json").exists() and (ReplayBuffer.get_length_from_path(path) or 0) >= count:
            return
        time.sleep(0.02)
    raise TimeoutError(f"{path} does not get {count} samples")


@pytest.mark.parametrize("to_all", [True, False], ids=["to the group", "to the command"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_in_good_order(
    tmp_path: Path, start: Any, number: signal.Signals, status: int, to_all: bool
) -> None:
    path = tmp_path / "r"
    process = start(["collect", CARTPOLE, "--steps", 10**7, "--num-envs", 4, "--workers", 1, "--out", path])
    wait_for_samples(path, 200)
    if to_all:
        os.killpg(process.pid, number)  # as a terminal or a scheduler does: to the workers too
    else:
        process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == status, (output, errors)
    samples, segments = read_all(path)
    assert f"interrupted; {len(samples['action']):,} samples in {len(segments or ()):,} episodes are kept" in errors
    assert "Traceback" not in errors
    assert check(path).findings == []
    collect(Plan(CARTPOLE, len(samples["action"]) + 40, path, num_envs=4, workers=0, seed=0, resume=True))
    assert same({key: value[: len(samples["action"])] for key, value in read_all(path)[0].items()}, samples)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_it_at_once(tmp_path: Path, start: Any, number: signal.Signals, status: int) -> None:
    (tmp_path / "stuck_agent.py").write_text(
        "import pathlib, time\n"
        "calls = []\n"
        "def act(obs, rng):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 10:\n"
        f"        pathlib.Path({str(tmp_path / 'stuck')!r}).touch()\n"
        "        time.sleep(600)\n"
        "    return rng.integers(0, 2, len(obs))\n"
    )
    options = ["--num-envs", 4, "--workers", 0, "--policy", "stuck_agent:act", "--out", tmp_path / "r"]
    process = start(["collect", CARTPOLE, *options], cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "stuck").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)  # it goes on until it can be gone on with
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (status, "")
    assert errors.startswith("unienv: interrupted; the 40 samples recorded until then are kept")
    assert check(tmp_path / "r").findings == []


def test_a_kill_loses_nothing_that_was_seen(tmp_path: Path, start: Any) -> None:
    path = tmp_path / "r"
    process = start(["collect", CARTPOLE, "--steps", 10**7, "--num-envs", 4, "--workers", 0, "--out", path])
    wait_for_samples(path, 200)
    process.kill()
    process.communicate(timeout=60)
    assert ReplayBuffer.get_length_from_path(path) >= 200
    assert {finding.kind for finding in check(path).findings} <= {"unfinished-episode"}
    assert collect(Plan(CARTPOLE, 240, path, num_envs=4, workers=0, seed=0, resume=True)).samples >= 200
    assert check(path).findings == []


KILLED_AT_ITS_BEGINNING = """
import os, sys
from pathlib import Path
from unienv_data.cli import _collect
from unienv_data.replay_buffer import _folder
setattr({place}, lambda *args, **kwargs: os.kill(os.getpid(), 9))
_collect.collect(_collect.Plan("CartPole-v1", 40, Path(sys.argv[1]), num_envs=2, workers=0))
"""


@pytest.mark.parametrize("place", ["_folder, 'write_description'", "_collect, '_write_origin'", "_collect, '_record'"])
def test_one_that_was_killed_before_its_first_step_can_be_gone_on_with(tmp_path: Path, place: str) -> None:
    path, code = tmp_path / "r", KILLED_AT_ITS_BEGINNING.format(place=place)
    done = subprocess.run([sys.executable, "-c", code, path], timeout=60, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (-9, b"")
    again = Plan(CARTPOLE, 40, path, num_envs=2, workers=0)
    if (path / "metadata.json").exists():
        with pytest.raises(CommandError, match="it exists already; continue it with --resume"):
            collect(again)
        assert collect(replace(again, resume=True)).samples == 40
        assert collect(replace(again, steps=60, resume=True)).samples == 60
    else:
        with pytest.raises(CommandError, match="the folder is empty, record into it without --resume"):
            collect(replace(again, resume=True))
        assert collect(again).samples == 40
    assert check(path).findings == []
