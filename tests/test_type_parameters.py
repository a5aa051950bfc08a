"""The documented classes take their type parameters, which are found where the classes are documented."""

from __future__ import annotations

import importlib
import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unienv_data import ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.framestack_queue import SpaceDataQueueState
from unienv_interface.space.spaces import BoxSpace

# "module:class" and the names of its type parameters, in their order
DOCUMENTED: dict[str, list[str]] = json.loads(Path(__file__).with_name("type_parameters.json").read_text())
# classes whose module is not there yet
LACKING = {"unienv_interface.world"}


def documented_class(label: str) -> tuple[types.ModuleType, Any]:
    home, _, name = label.partition(":")
    try:
        module = importlib.import_module(home)
    except ImportError:
        if any(home == lacking or home.startswith(f"{lacking}.") for lacking in LACKING):
            pytest.skip(f"{home} does not exist yet")
        raise
    return module, getattr(module, name)


@pytest.mark.parametrize("label", DOCUMENTED)
def test_a_class_takes_its_documented_parameters(label: str) -> None:
    module, cls = documented_class(label)
    names = DOCUMENTED[label]
    assert [parameter.__name__ for parameter in cls.__parameters__] == names
    variables = tuple(getattr(module, name) for name in names)
    assert variables == cls.__parameters__  # what the module exports is what the class is declared with
    for arguments in (variables, (Any,) * len(names)):
        made = types.new_class("Mine", (cls[arguments],))
        assert made.__mro__[1] is cls
    with pytest.raises(TypeError):
        cls[(Any,) * (len(names) + 1)]


def test_an_instance_of_a_parametrised_subclass_is_like_any_other() -> None:
    class Mine(ReplayBuffer[np.ndarray, np.ndarray, None, np.dtype, np.random.Generator]):
        pass

    class Plain(ReplayBuffer):
        pass

    storage = ReplayBuffer.create(BoxSpace(NumpyComputeBackend, -1, 1, np.float32, shape=(2,)), capacity=4).storage
    mine, plain = Mine(storage, "storage"), Plain(storage, "storage")
    assert mine.__dict__.keys() == plain.__dict__.keys()
    mine.extend(np.zeros((3, 2), np.float32))
    assert len(mine) == 3


def test_a_parametrised_state_can_still_be_made_and_replaced() -> None:
    state = SpaceDataQueueState[int](3)
    assert (state.data, state.replace(data=4).data) == (3, 4)
