"""The PPO recipe: its environment keeps the contract and moves as Gymnasium's, and its short form learns."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unienv_interface.env_base import FuncEnvBasedEnv
from unienv_interface.testing import check_env

for library in ("jax", "typer", "PIL", "gymnasium"):
    pytest.importorskip(library)


@pytest.fixture(scope="module")
def recipe() -> Any:
    path = Path(__file__).parent.parent / "examples" / "ppo_jax.py"
    spec = importlib.util.spec_from_file_location("ppo_jax", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_cart_pole_keeps_the_contract(recipe: Any) -> None:
    check_env(FuncEnvBasedEnv(recipe.CartPole(3)))


def test_the_cart_pole_moves_as_that_of_gymnasium(recipe: Any) -> None:
    import gymnasium

    theirs: Any = gymnasium.make("CartPole-v1").unwrapped
    env = recipe.CartPole(1)
    state, _, obs, _ = env.initial(seed=0)
    theirs.reset(seed=0)
    theirs.state = np.asarray(obs[0], np.float64)
    for action in np.random.default_rng(0).integers(0, 2, 200):
        state, obs, reward, terminated, _, _ = env.step(state, np.full(1, action, np.int32))
        their_obs, their_reward, their_terminated, _, _ = theirs.step(int(action))
        np.testing.assert_allclose(obs[0], their_obs, rtol=1e-3, atol=1e-4)
        assert (float(reward[0]), bool(terminated[0])) == (their_reward, their_terminated)
        if their_terminated:
            break
    assert their_terminated
    theirs.close()


def test_the_short_form_learns(recipe: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    curve = tmp_path / "curve.png"
    score = recipe.main(envs=128, steps=32, iterations=15, seed=0, curve=curve)
    assert score > 80  # an untrained policy gets about 10 to 40
    with Image.open(curve) as image:
        assert image.format == "PNG"
    out, err = capsys.readouterr()
    assert f"61,440 steps, evaluation {score:.0f}, learning curve in {curve}" in out
    assert "15/15" in err
