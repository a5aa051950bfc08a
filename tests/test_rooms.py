"""The packages form rooms: each imports only rooms before it, and no room imports private modules of another."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).parents[1] / "src"

# As in CONTRIBUTING.md, which a test below compares. A package's own `__init__` stands after its rooms.
ROOMS = {
    "unienv_interface": [
        "utils",
        "backends",
        "space",
        "transformations",
        "env_base",
        "wrapper",
        "func_wrapper",
        "world",
        "testing",
    ],
    "unienv_data": [
        "base",
        "transformations",
        "storages",
        "batches",
        "samplers",
        "replay_buffer",
        "on_policy",
        "datasets",
        "integrations",
        "checking",
        "cli",
        "testing",
    ],
    "unienv": [],
}
ORDER = [name for package, rooms in ROOMS.items() for name in (*(f"{package}.{room}" for room in rooms), package)]

# Imports of a later room, with the reason.
ALLOWED = {
    ("unienv_interface.utils.array_serialization", "unienv_interface.backends"): "documented path, re-exports",
    ("unienv_interface.utils.framestack_queue", "unienv_interface.space"): "documented path, re-exports",
    ("unienv_interface.utils.seed_util", "unienv_interface.backends"): "documented path, re-exports",
    ("unienv_data.cli", "unienv"): "the version, which stands there, without the extra",
    ("unienv_data.cli.app", "unienv"): "the version, which stands there",
    ("unienv_data.base.common", "unienv_data.batches"): "documented methods of every batch that make views of it",
    ("unienv_data.datasets.experience_replay", "unienv_data.integrations"): "the documented `as_remote`",
    ("unienv_data.storages.hdf5", "unienv_data.replay_buffer"): "the documented `load_replay_buffer_from_raw_hdf5`",
    ("unienv_data.storages.parquet", "unienv_data.replay_buffer"): "the documented loader of raw Parquet files",
}


class Import(NamedTuple):
    importer: str  # "package.module"
    target: str  # "package.module", or "package.module.name" of something in it
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def imports_of(name: str, source: str, *, is_package: bool) -> Iterator[Import]:
    """Everything of this project that a module imports, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".")
            above = parts[: len(parts) - node.level + is_package] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            targets = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (Import(name, target, node.lineno) for target in targets if target.split(".")[0] in ROOMS)


def modules() -> Mapping[str, Path]:
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def all_imports() -> list[Import]:
    return [
        found
        for name, path in modules().items()
        for found in imports_of(name, path.read_text(encoding="utf-8"), is_package=path.stem == "__init__")
    ]


def room_of(name: str) -> str:
    package, *rest = name.split(".")
    return f"{package}.{rest[0]}" if rest and rest[0] in ROOMS[package] else package


def is_upward(found: Import) -> bool:
    """Whether a module imports a room that comes after its own."""
    return ORDER.index(room_of(found.target)) > ORDER.index(room_of(found.importer))


def private_part(found: Import) -> str | None:
    """The private module or name that is imported although it belongs to a package the importer is not in."""
    parts = found.target.split(".")
    for depth, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            owner = ".".join(parts[:depth])
            if owner not in home_of(found.importer):
                return ".".join(parts[: depth + 1])
    return None


def home_of(importer: str) -> set[str]:
    """The packages a module lies in and the modules beside it, whose private parts it may use."""
    parts = importer.split(".")
    packages = {".".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
    home = importer if importer in PACKAGES else ".".join(parts[:-1])
    return packages | {name for name in MODULES if name.rpartition(".")[0] == home and name not in PACKAGES}


MODULES = modules()
PACKAGES = {name for name, path in MODULES.items() if path.stem == "__init__"}


def test_a_room_imports_only_rooms_before_it() -> None:
    upward = [found for found in all_imports() if is_upward(found)]
    assert [str(found) for found in upward if (found.importer, room_of(found.target)) not in ALLOWED] == []
    assert {(found.importer, room_of(found.target)) for found in upward} == set(ALLOWED), "an exception is not needed"


def test_no_room_imports_what_is_private_to_another() -> None:
    assert [str(found) for found in all_imports() if private_part(found) is not None] == []


def test_contributing_lists_the_rooms_in_this_order() -> None:
    text = (SRC.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed: dict[str, list[str]] = {}
    for line in text.split("## Which package may import which")[1].split("```")[1].splitlines():
        name = line.split("/ ")[0].strip().rstrip("/")
        if line.startswith("src/"):
            listed[name.removeprefix("src/")] = []
        elif line.startswith("  "):
            listed[list(listed)[-1]].append(name)
    assert listed == ROOMS


@pytest.mark.parametrize(
    ("importer", "source", "target", "upward", "private"),
    [
        ("unienv_interface.space.space", "from ..backends import base", "unienv_interface.backends.base", False, None),
        ("unienv_interface.utils.lazy", "from .. import space", "unienv_interface.space", True, None),
        ("unienv_interface.utils.lazy", "def f():\n  import unienv_data.base", "unienv_data.base", True, None),
        ("unienv_interface.space", "from . import _bounds", "unienv_interface.space._bounds", False, None),
        (
            "unienv_data.base.common",
            "if TYPE_CHECKING:\n  from unienv_interface.space._bounds import f",
            "unienv_interface.space._bounds.f",
            False,
            "unienv_interface.space._bounds",
        ),
        (
            "unienv_data.base.common",
            "from unienv_interface.space.space import _f",
            "unienv_interface.space.space._f",
            False,
            "unienv_interface.space.space._f",
        ),
        (
            "unienv_interface.space.space",
            "from .spaces._composite import CompositeSpace",
            "unienv_interface.space.spaces._composite.CompositeSpace",
            False,
            "unienv_interface.space.spaces._composite",
        ),
        (
            "unienv_interface.space.spaces.box",
            "from .._bounds import Bounds",
            "unienv_interface.space._bounds.Bounds",
            False,
            None,
        ),
    ],
)
def test_imports_are_judged(importer: str, source: str, target: str, upward: bool, private: str | None) -> None:
    (found,) = imports_of(importer, source, is_package=importer in PACKAGES)
    assert found.target == target
    assert is_upward(found) == upward
    assert private_part(found) == private
