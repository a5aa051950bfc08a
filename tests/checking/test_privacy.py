"""No module of checking and of the command uses what is private to a buffer or to a storage."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import unienv_data

ROOT = Path(unienv_data.__file__).parent


def private_names(module: Path) -> Iterator[str]:
    """What a module imports from private modules of other rooms, and private attributes of other objects it uses."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level > 1:
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from (name for name in names if name.startswith("_"))
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            yield from [] if is_own else [node.attr]


def test_no_module_uses_private_names_of_others() -> None:
    modules = [module for room in ("checking", "cli") for module in sorted((ROOT / room).glob("*.py"))]
    assert {module.name: list(private_names(module)) for module in modules if any(private_names(module))} == {}
