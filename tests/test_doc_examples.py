"""The docstrings of public classes and functions: their sections, and their examples, which run as they are shown."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import enum
import functools
import importlib
import inspect
import os
import re
import shutil
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import unienv
import unienv_data
from unienv_data import ReplayBuffer, StepSampler, transition_space
from unienv_data.storages.registry import storage_by_name, storage_names
from unienv_interface import Env, FuncEnv
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace, DictSpace, batch_utils

PACKAGES = (
    "unienv",
    "unienv_interface",
    "unienv_interface.backends",
    "unienv_interface.space",
    "unienv_interface.space.space_utils",
    "unienv_interface.transformations",
    "unienv_interface.wrapper",
    "unienv_interface.func_wrapper",
    "unienv_interface.env_base",
    "unienv_interface.testing",
    "unienv_data",
    "unienv_data.storages",
    "unienv_data.batches",
    "unienv_data.samplers",
    "unienv_data.on_policy",
    "unienv_data.datasets",
    "unienv_data.checking",
    "unienv_data.testing",
)


LEROBOT = Path(__file__).parent / "data" / "lerobot_folders" / "v3_pick"
REFERENCE = Path(__file__).parent.parent / "docs" / "reference"


def listed(path: str) -> Iterator[Any]:
    """The thing of a path in the reference, or of a module all that it exports or defines without an underscore."""
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError:
        module_path, _, name = path.rpartition(".")
        yield getattr(importlib.import_module(module_path), name)
    else:
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == path]
        yield from (getattr(module, name) for name in getattr(module, "__all__", own) if name[0] != "_")


@functools.cache
def public() -> dict[str, Any]:
    """Every class and function that a package exports or the reference lists, by name."""
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("unienv"):
                found[name] = value
    for page in sorted(REFERENCE.glob("*.md")):
        for path in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            for value in listed(path):
                if inspect.isclass(value) or inspect.isfunction(value):
                    found.setdefault(value.__name__, value)
    return found


def examples() -> Iterator[doctest.DocTest]:
    """The examples of each docstring, methods included; those that are skipped need what is not here."""
    finder, seen = doctest.DocTestFinder(), set()
    for value in public().values():
        for test in finder.find(value, f"{value.__module__}.{value.__qualname__}", globs={}):
            test.examples = [e for e in test.examples if not e.options.get(doctest.SKIP)]
            if test.examples and test.name not in seen:
                seen.add(test.name)
                yield test


class OutputChecker(doctest.OutputChecker):
    """Compares output where some is shown; an example may leave it out."""

    def check_output(self, want: str, got: str, flags: int) -> bool:
        return not want or super().check_output(want, got, flags)


class Reaching(Env):
    """A goal environment of one dimension."""

    def __init__(self) -> None:
        point = BoxSpace("numpy", -9, 9, np.float32, shape=(1,))
        self.backend, self.action_space = point.backend, point
        keys = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = DictSpace("numpy", dict.fromkeys(keys, point))
        self.rng = np.random.default_rng(0)

    def _observed(self) -> dict[str, np.ndarray]:
        return {key: self.point.copy() for key in self.observation_space.spaces}

    def reset(self, *, mask: Any = None, seed: int | None = None, **kwargs: Any) -> tuple[None, Any, dict[str, Any]]:
        self.point, self.steps = np.zeros(1, np.float32), 0
        return None, self._observed(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.point, self.steps = np.clip(self.point + action, -9, 9), self.steps + 1
        return self._observed(), 0.0, False, self.steps == 20, {}

    def render(self) -> None:
        return None


def camera_space() -> DictSpace:
    numbers, depth = BoxSpace("numpy", -1, 1, np.float32, shape=(3,)), BoxSpace("numpy", 0, 9, np.uint16, shape=(8, 8))
    camera = BoxSpace("numpy", 0, 255, np.uint8, shape=(16, 16, 3))
    return DictSpace("numpy", {"obs": {"state": numbers, "cam": camera, "depth": depth}, "action": numbers})


def camera_buffer() -> ReplayBuffer:
    buffer = ReplayBuffer.create(camera_space(), capacity=1_000)
    for _ in range(4):
        rng = np.random.default_rng(0)
        _, batch = buffer.single_space.sample(rng)
        buffer.extend({
            "obs": {key: np.stack([value] * 25) for key, value in batch["obs"].items()},
            "action": np.stack([batch["action"]] * 25),
        })  # fmt: skip
    return buffer


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of 2,000 steps, to be copied."""
    path = tmp_path_factory.mktemp("recording") / "cartpole"
    unienv.record(unienv.make("CartPole-v1", num_envs=8, seed=0), path, steps=2_000).close()
    return path


def countdown() -> dict[str, Any]:
    """The functional environment of the example of `FuncEnv`, which further examples use."""
    found = dict(public(), np=np, NumpyComputeBackend=NumpyComputeBackend)
    exec(doctest.script_from_examples(FuncEnv.__doc__ or ""), found)
    return {"Countdown": found["Countdown"]}


def names() -> dict[str, Any]:
    """What examples may use without saying so: public names, environments, and a buffer of 8 CartPoles in lanes."""
    envs = unienv.make("CartPole-v1", num_envs=8, seed=0)
    buffer = ReplayBuffer.create(transition_space(envs, episode_id=True), capacity=8_000, lanes=8)
    recorder = unienv_data.ReplayBufferCollectionWrapper(envs, buffer)
    recorder.reset(seed=0)
    for _ in range(200):
        *_, terminated, truncated, _ = recorder.step(recorder.sample_action())
        if (terminated | truncated).any():
            recorder.reset(mask=terminated | truncated)
    env = unienv.make("CartPole-v1", seed=0)
    return {
        **public(),
        **countdown(),
        "np": np,
        "os": os,
        "NumpyComputeBackend": NumpyComputeBackend,
        "batch_utils": batch_utils,
        "gymnasium": gymnasium,
        "unienv": unienv,
        "unienv_data": unienv_data,
        "env": env,
        "envs": unienv.make("CartPole-v1", num_envs=8, seed=0),
        "MyEnv": lambda: unienv.make("CartPole-v1"),
        "act": lambda observation: (observation[..., 2] > 0).astype(np.int64),
        "policy": lambda observation: ((observation[..., 2] > 0).astype(np.int64), {}),
        "learn": lambda batch: None,
        "buffer": buffer,
        "transition": buffer.get_at(0),
        "sampler": StepSampler(buffer, 256, seed=0),
        "value_of": lambda observation: observation[..., 0],
    }


REGISTRIES = (
    "unienv_interface.transformations.iter_transform._leaf_functions",
    "unienv_interface.transformations.serialization_utils._classes",
    "unienv_interface.transformations.serialization_utils._kinds",
    "unienv_interface.space.space_utils.serialization_utils._readers",
    "unienv_data.storages.registry._registered",
)
for storage in storage_names():  # a storage registers itself when it is first imported
    storage_by_name(storage)


@pytest.mark.parametrize("example", list(examples()), ids=lambda example: example.name)
def test_an_example_runs(
    example: doctest.DocTest, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for registry in REGISTRIES:  # what an example registers is not there for other tests
        module, _, attribute = registry.rpartition(".")
        monkeypatch.setattr(registry, dict(getattr(importlib.import_module(module), attribute)))
    for name in ("cartpole", "data"):
        if name in example.docstring:
            shutil.copytree(recording, tmp_path / name)
    if '"pick"' in example.docstring:
        shutil.copytree(LEROBOT, tmp_path / "pick")
    example.globs = names()
    if "Hindsight" in example.name:
        goals = ReplayBuffer.create(transition_space(Reaching()), capacity=1_000)
        with unienv_data.ReplayBufferCollectionWrapper(Reaching(), goals) as recorder:
            for _ in range(5):
                recorder.reset()
                while not recorder.step(recorder.sample_action())[3]:
                    pass
        example.globs["buffer"] = goals
    code = "".join(line.source for line in example.examples)
    if "/cam" in code or "obs/" in code:
        example.globs.update(buffer=camera_buffer(), space=camera_space())
    said: list[str] = []
    runner = doctest.DocTestRunner(OutputChecker(), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    stdout = sys.stdout
    try:
        failed, _ = runner.run(example, out=said.append, clear_globs=False)
    finally:
        sys.stdout = stdout
    assert not failed, "".join(said)


def test_every_public_name_has_an_example() -> None:
    shown = {
        name for name, value in public().items() if "\nExamples\n--------\n>>> " in inspect.cleandoc(value.__doc__)
    }
    assert public().keys() - shown == set()
    assert len(shown) > 230


METHODS = (types.FunctionType, classmethod, staticmethod, property, functools.cached_property)


def test_every_public_method_says_what_it_does() -> None:
    """By a docstring of its own or of the method it overrides; else its page leaves it out."""
    silent, seen = [], 0
    for name, value in public().items():
        own = vars(value) if inspect.isclass(value) else {}
        for member, kept in own.items():
            # the laws of a contract are sentences already
            if member.startswith(("_", "test_")) or not isinstance(kept, METHODS):
                continue
            seen += 1
            found = kept if isinstance(kept, property) else getattr(value, member)
            silent += [f"{name}.{member}"] if not inspect.getdoc(found) else []
    assert silent == []
    assert seen > 500


def named(docstring: str | None, section: str = "Parameters") -> list[str]:
    """The names in a section; a later paragraph without an indent reads as one, as it does on the site."""
    _, _, rest = inspect.cleandoc(docstring or "").partition(f"{section}\n{'-' * len(section)}\n")
    text = re.split(r"\n\n(?=[A-Z]\w+\n-{3,}\n)", rest)[0]
    lines = [line for line in text.splitlines() if line and not line.startswith(" ")]
    return [name.strip().lstrip("*") for line in lines for name in line.partition(" : ")[0].split(",")]


def test_documented_parameters_are_those_of_the_signature() -> None:
    wrong, seen = [], 0
    for name, value in public().items():
        members = [value, *vars(value).values()] if inspect.isclass(value) else [value]
        for member in members:
            function = getattr(member, "__func__", member)
            if not (inspect.isfunction(function) or inspect.isclass(function)) or not function.__doc__:
                continue
            documented = set(named(function.__doc__))
            known = set(inspect.signature(function).parameters) - {"self", "cls"} if documented else set()
            seen += len(documented)
            wrong += [f"{name}, {function.__name__}: {parameter}" for parameter in sorted(documented ^ known)]
    assert wrong == []
    assert seen > 800


#: Classes whose constructor users do not call, and the function that they call instead.
MADE_BY = {
    "ImageStorage": "ImageStorage.create",
    "LeRobotAsUniEnvDataset": "LeRobotAsUniEnvDataset.from_local",
    "PackedStorage": "PackedStorage.create",
    "RemoteClass": "ExperienceReplay.as_remote",
    "RemoteReplay": "ExperienceReplay.as_remote",
    "SharedNextObsStorage": "SharedNextObsStorage.create",
    "VideoStorage": "VideoStorage.create",
}


def is_protocol(value: Any) -> bool:
    return bool(getattr(value, "_is_protocol", False))


def parameters(value: Any) -> set[str]:
    """The names that a user may pass, or read from a result."""
    if is_protocol(value) or (inspect.isclass(value) and issubclass(value, (Exception, enum.Enum))):
        return set()
    if dataclasses.is_dataclass(value):
        return {field.name for field in dataclasses.fields(value)}
    return set(inspect.signature(value).parameters)


def docstrings(value: Any) -> Iterator[str | None]:
    """Those that may name the parameters: of a class also its constructor's, and those of the bases that have it."""
    yield value.__doc__
    for kind in value.__mro__ if inspect.isclass(value) else ():
        yield kind.__doc__
        if vars(kind).keys() & {"__init__", "__new__"}:
            yield kind.__init__.__doc__
            return


def test_every_parameter_is_documented() -> None:
    """In a section "Parameters", or of the fields of a result "Attributes"."""
    missing, seen = [], 0
    for name, value in public().items():
        if name in MADE_BY:
            maker, _, method = MADE_BY[name].partition(".")
            value = getattr(public()[maker], method)
        documented = {
            entry
            for docstring in docstrings(value)
            for section in ("Parameters", "Attributes")
            for entry in named(docstring, section)
        }
        missing += [f"{name}: {parameter}" for parameter in sorted(parameters(value) - documented)]
        seen += len(parameters(value))
    assert missing == []
    assert seen > 700


def test_every_result_of_a_function_is_documented() -> None:
    """In a section "Returns", with its type and a text."""
    missing, seen = [], 0
    for name, value in public().items():
        if inspect.isfunction(value) and inspect.signature(value).return_annotation not in (None, "None"):
            seen += 1
            is_documented = re.search(r"\n\nReturns\n-------\n\S.*\n {4}\S", inspect.cleandoc(value.__doc__ or ""))
            missing += [] if is_documented else [name]
    assert missing == []
    assert seen > 60


def raised_in(function: Any) -> set[str]:
    """The names of the errors that the body of a function raises itself."""
    body = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    calls = [node.exc for node in ast.walk(body) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    return {call.func.id for call in calls if isinstance(call.func, ast.Name) and call.func.id[0].isupper()}


def test_every_error_that_a_function_or_constructor_raises_itself_is_documented() -> None:
    """In a section "Raises"; errors of what these call are not looked for."""
    missing, seen = [], 0
    for name, value in public().items():
        function = vars(value).get("__init__") if inspect.isclass(value) else value
        if not inspect.isfunction(function) or dataclasses.is_dataclass(value) or is_protocol(value):
            continue
        raised = raised_in(function)
        documented = {entry for text in (value.__doc__, function.__doc__) for entry in named(text, "Raises")}
        missing += [f"{name}: {error}" for error in sorted(raised - documented)]
        seen += len(raised)
    assert missing == []
    assert seen > 80
