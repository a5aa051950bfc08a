"""The recipes in their short form: each trains a little, draws its curve, and says how it does.

Whether they learn is for `make learn`: here they hardly have the time to.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
for library in ("torch", "typer", "PIL", "gymnasium"):
    pytest.importorskip(library)

# What each is run with, and what it has to reach at least.
SHORT: dict[str, tuple[dict[str, Any], float]] = {
    "behaviour_cloning": ({"steps": 1500, "epochs": 3}, 60),
    "dqn": ({"steps": 1280, "n_step": 3, "per": True}, 8),
    "her": ({"episodes": 8}, -0.1),
    "ppo": ({"steps": 3072}, 25),
    "sac": ({"steps": 540}, -1900),
}


def learn() -> Any:
    """The module behind `make learn`."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("learn")
    finally:
        sys.path.pop(0)


def load(name: str) -> Any:
    """A recipe that evaluates on few episodes."""
    recipe = learn().load_recipe(name)
    evaluate = recipe.evaluate
    recipe.evaluate = lambda policy, episodes, seed: evaluate(policy, min(episodes, 3), seed)
    return recipe


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", SHORT)
def test_the_short_form_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    curve, (options, least) = tmp_path / "curve.png", SHORT[name]
    score = load(name).main(**options, seed=0, curve=curve)
    assert score > least
    with Image.open(curve) as image:
        assert (image.format, image.size) == ("PNG", (680, 440))
    out, err = capsys.readouterr()
    assert f"learning curve in {curve}" in out
    assert "100%" in err  # the progress bar


@pytest.mark.parametrize(("name", "options"), [("dqn", {"steps": 1152}), ("her", {"episodes": 4})])
def test_the_same_on_the_buffer_of_stable_baselines3(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    recipe = load(name)
    learn().put_on_sb3(recipe)
    assert recipe.main(**options, seed=0, curve=tmp_path / "curve.png") > SHORT[name][1]


def test_the_advantages_of_stable_baselines3_are_those_of_ppo() -> None:
    pytest.importorskip("stable_baselines3")
    import torch

    ours, theirs = load("ppo"), load("ppo")
    learn().put_on_sb3(theirs)
    random = torch.Generator().manual_seed(0)
    reward, value, after = (torch.randn(50, 4, generator=random) for _ in range(3))
    ended = torch.rand(50, 4, generator=random) < 0.2
    terminated = ended & (torch.rand(50, 4, generator=random) < 0.5)
    after[:-1] = torch.where(ended[:-1], after[:-1], value[1:])  # within an episode, the next step's own value
    given = (reward, value, terminated, ended & ~terminated, after, ours.GAMMA, ours.LAMBDA)
    for one, other in zip(ours.gae(*given), theirs.gae(*given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_curves_side_by_side_have_names(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("ours", "theirs"):
        Image.new("RGB", (680, 440), "white").save(tmp_path / f"{name}.png")
    learn().side_by_side(tmp_path / "ours.png", tmp_path / "theirs.png", tmp_path / "both.png")
    with Image.open(tmp_path / "both.png") as both:
        assert both.size == (1360, 440)
        for left in (0, 680):
            assert both.crop((left, 0, left + 680, 40)).convert("L").getextrema()[0] < 128
        assert both.crop((0, 40, 1360, 440)).getextrema() == ((255, 255),) * 3


def test_every_recipe_is_run_by_make_learn_and_short() -> None:
    files = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"demo", "imitation"}
    assert files == set(learn().RECIPES)
    for name in learn().RECIPES:
        assert len((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 200
    assert {*SHORT, "ppo_jax"} == files


def test_imitation_goes_from_video_to_lerobot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("av")
    pytest.importorskip("pyarrow")
    folders = ["--folder", str(tmp_path / "reach"), "--lerobot", str(tmp_path / "out")]
    learn().load_recipe("imitation").main(
        [*folders, "--demonstrations", "3", "--updates", "2", "--episodes", "1", "--batch", "8"]
    )
    assert ", 0 findings" in capsys.readouterr().out
    recorded, exported = ({file.read_bytes() for file in (tmp_path / name).rglob("*.mp4")} for name in ("reach", "out"))
    assert len(recorded) == 6
    assert exported == recorded
