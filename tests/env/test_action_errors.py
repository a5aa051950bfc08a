"""What is no action is refused with an error that begins with "action", whichever layer meets it first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from catalogue import BACKENDS
from envs import CountEnv, DictEnv

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.env_base import ActionWrapper, Env
from unienv_interface.transformations import CropTransformation
from unienv_interface.wrapper import (
    ActionRescaleWrapper,
    BatchifyWrapper,
    ClipActionWrapper,
    FlattenActionWrapper,
    FromGymnasiumEnv,
    ToBackendWrapper,
    ToGymnasiumEnv,
    ToGymnasiumVectorEnv,
    TransformWrapper,
)

NUMPY = NumpyComputeBackend
LAYERS: dict[str, Callable[[], Any]] = {
    "rescale": lambda: ActionRescaleWrapper(CountEnv(NUMPY)),
    "transform": lambda: TransformWrapper(
        CountEnv(NUMPY), None, None, CropTransformation(-1.0, 1.0), CountEnv(NUMPY).action_space
    ),
    "flatten": lambda: FlattenActionWrapper(DictEnv(NUMPY)),
    "batchify": lambda: BatchifyWrapper(CountEnv(NUMPY)),
    "clip": lambda: ClipActionWrapper(CountEnv(NUMPY)),
    "to_backend": lambda: ToBackendWrapper(CountEnv(NUMPY), BACKENDS[-1]),
    "from_gymnasium": lambda: FromGymnasiumEnv(gymnasium.make("Pendulum-v1")),
    "from_gymnasium_discrete": lambda: FromGymnasiumEnv(gymnasium.make("CartPole-v1")),
    "to_gymnasium": lambda: ToGymnasiumEnv(CountEnv(NUMPY)),
    "to_gymnasium_batch": lambda: ToGymnasiumVectorEnv(CountEnv(NUMPY, 2)),
}


ACTIONS = {"text": "left", "none": None, "shape": np.zeros(5, np.float32)}
TAKES_ANY_SHAPE = ("transform", "to_backend")  # and leaves the rest to the environment


@pytest.mark.parametrize(
    ("layer", "kind"),
    [(layer, kind) for layer in LAYERS for kind in ACTIONS if kind != "shape" or layer not in TAKES_ANY_SHAPE],
)
def test_the_error_says_action(layer: str, kind: str) -> None:
    env = LAYERS[layer]()
    env.reset(seed=0)
    with pytest.raises((ValueError, TypeError), match=r"^action: "):
        env.step(ACTIONS[kind])


def test_an_error_of_the_mapping_itself_stays() -> None:
    class Broken(ActionWrapper):
        def map_action(self, action: Any) -> Any:
            raise RuntimeError("the motor is off")

    env: Env = Broken(CountEnv(NUMPY))
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match="the motor is off"):
        env.step(env.sample_action())
