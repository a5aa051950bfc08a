"""Modules of the user's: policies, and environments that register themselves."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from ._errors import THEIR_ERRORS, CommandError, with_its_type


def import_module(name: str, what: str) -> ModuleType:
    """A module, from the folder that the command runs in or any that is installed; `what` names it in errors."""
    if "" not in sys.path:
        sys.path.insert(0, "")  # as with `python -m`
    try:
        return importlib.import_module(name)
    except THEIR_ERRORS as error:  # whatever a module does when it is imported
        raise CommandError(f"{what}: {with_its_type(error)}") from error
