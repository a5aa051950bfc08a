"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .words import did_you_mean

# Names of the module itself that are not listed.
_ITS_OWN = {"TYPE_CHECKING", "annotations", "lazy_exports"}


def lazy_exports(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A module's `__getattr__` and `__dir__` for public names of its submodules, imported when one is asked for.

    So that importing a package costs what is used of it, and no more. Type checkers must not see either, or they
    would take every name for one that is there: put the assignment in the `else` of `if TYPE_CHECKING:`.
    """
    home = {name: module for module, names in modules.items() for name in names}

    def names_there() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home} - _ITS_OWN)

    def load(name: str) -> Any:
        if name not in home:
            near = "" if name.startswith("_") else did_you_mean(name, names_there())
            raise AttributeError(f"module {package!r} has no attribute {name!r}{near}")
        return getattr(importlib.import_module(home[name], package), name)

    return load, names_there
