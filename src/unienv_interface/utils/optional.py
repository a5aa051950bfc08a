"""Imports of packages that are not base dependencies."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, *, extra: str) -> Any:
    """Import an optional package, or raise an ImportError that names the extra which brings it.

    Call it inside the module that carries the package's name, or at the point of use; never at import of a
    module that works without it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise  # the package is there, one of its own dependencies is not: say that instead
        raise ImportError(f"{package} is not installed; get it with: pip install 'unienv[{extra}]'") from error
