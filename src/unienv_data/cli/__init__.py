"""The `unienv` command: record environments; describe, check, repair and convert recordings.

A command calls a plain function that returns a data class, and prints the result as JSON (`--json`) or as tables.
Only `app` and the modules that print import typer and rich.
"""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process; the entry point of `unienv`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process has closed the stream
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process lives
    try:
        from .app import app
    except KeyboardInterrupt:
        print("unienv: interrupted", file=sys.stderr)
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        if sys.argv[1:] == ["--version"]:  # bug reports need it
            from unienv import __version__

            print(__version__)
            return
        print(f"unienv: {error.name} is not installed; get it with: pip install 'unienv[cli]'", file=sys.stderr)
        sys.exit(1)
    app(prog_name="unienv")
