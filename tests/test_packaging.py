"""What is released: extras, links, the sdist's lists, and workflows that call nothing but make targets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import unienv

ROOT = Path(__file__).parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
FOR_WORK = {"all", "dev", "docs", "bench"}


def extras() -> dict[str, str]:
    """The text of each extra."""
    section = PROJECT.split("[project.optional-dependencies]")[1].split("\n[tool")[0]
    return dict(re.findall(r"^(\w+) = \[(.*?)\](?:  #[^\n]*)?$", section, re.MULTILINE | re.DOTALL))


def test_all_brings_every_extra_of_users() -> None:
    (named,) = re.findall(r"unienv\[(.*)\]", extras()["all"])
    assert set(named.split(",")) == set(extras()) - FOR_WORK


def test_every_extra_is_explained() -> None:
    for page in ("README.md", "docs/installation.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
        named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
        assert set(extras()) - (FOR_WORK - {"all"}) <= named, page


def test_every_extra_that_the_code_names_is_there() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    named = {name for source in sources for name in re.findall(r'extra="(\w+)"', source)}
    assert named <= set(extras())


def test_links_of_the_readme_are_absolute() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\((.*?)\)", text)
    assert [target for target in targets if not target.startswith("https://")] == []
    ours = [target.split("/blob/main/")[1] for target in targets if "/blob/main/" in target]
    assert [path for path in ours if not (ROOT / path).exists()] == []


def test_workflows_run_make_targets_that_are_there() -> None:
    known = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = path.read_text(encoding="utf-8")
        commands = re.findall(r"run: (.*)", text)
        assert commands
        targets = set(re.findall(r"target: ([\w-]+)", text))
        for command in commands:
            found = re.fullmatch(r"(?:tools/leaves_nothing\.sh )?make (\S+|\$\{\{ matrix\.target \}\})", command)
            assert found is not None, command
            targets |= {found[1]} - {"${{ matrix.target }}"}
        assert targets <= known, path


def test_the_version_is_the_same_everywhere() -> None:
    assert f"version: {unienv.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## [{unienv.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_what_the_sdist_includes_is_there() -> None:
    lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()]
    named = [name for line in lines if line and line[0] in ("graft", "include") for name in line[1:]]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_lowest_versions_are_those_of_the_project() -> None:
    command = [sys.executable, ROOT / "tools" / "lowest.py", "cli", "minari"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lowest = dict(line.split("==") for line in done.stdout.splitlines())
    assert lowest.items() >= {"numpy": "2.0", "typer": "0.16", "torch": "2.6", "pillow": "10.3"}.items()
    assert "jax" not in lowest
