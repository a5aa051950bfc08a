"""Imports of packages that are not base dependencies."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, *, extra: str) -> Any:
    """Import an optional package, or raise an ImportError that names the extra to install.

    Call it where the package is used, or in a module that is useless without the package.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise  # a dependency of the package is missing, not the package itself
        raise ImportError(f"{package} is not installed; get it with: pip install 'unienv[{extra}]'") from error
