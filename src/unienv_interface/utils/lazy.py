"""Public names of a package that are imported on first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .words import did_you_mean

# Names that `dir(package)` leaves out.
_NOT_LISTED = {"TYPE_CHECKING", "annotations", "lazy_exports"}


def lazy_exports(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a package's `__getattr__` and `__dir__`, which import the public names of its submodules on first use.

    Type checkers must not see the two functions, or they would accept every name: assign them in the `else` of
    `if TYPE_CHECKING:`.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of} - _NOT_LISTED)

    def load(name: str) -> Any:
        if name not in module_of:
            near = "" if name.startswith("_") else did_you_mean(name, list_names())
            raise AttributeError(f"module {package!r} has no attribute {name!r}{near}")
        return getattr(importlib.import_module(module_of[name], package), name)

    return load, list_names
