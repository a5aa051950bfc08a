"""The typer app of the `unienv` commands, and their exit status after errors."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ParamSpec

import typer

from ..checking.reading import in_one_line
from ._errors import KNOWN_ERRORS, Stopped, UsageError, complain

P = ParamSpec("P")
INTERRUPTED, WRONG_USAGE = 130, 2


@dataclass
class Settings:
    """The options of all commands."""

    traceback: bool = False


settings = Settings()

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    """Print the version and exit."""
    if wanted:
        from unienv import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=show_version)
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the traceback of an error.")] = False,
) -> None:
    """Record environments; describe, check, repair and convert recordings.

    A recording is a folder with a ReplayBuffer in it. For a demonstration: unienv demo
    """
    settings.traceback = traceback


def command(*, failure: int = 1) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Register a function as a command. Known errors are printed in one line; the exit status is then `failure`."""

    def register(function: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except (typer.Exit, BrokenPipeError):
                raise  # an exit status, or a closed pipe, after which typer exits silently
            except KNOWN_ERRORS as error:
                if settings.traceback:
                    for line in traceback.format_exc().splitlines():
                        complain(line)
                complain(f"unienv: {in_one_line(error)}")
                raise typer.Exit(WRONG_USAGE if isinstance(error, UsageError) else failure) from None
            except KeyboardInterrupt as error:
                complain("; ".join(["unienv: interrupted", *map(str, error.args)]))
                raise typer.Exit(128 + error.signal if isinstance(error, Stopped) else INTERRUPTED) from None

        return app.command(help=_reflowed(function.__doc__ or ""))(run)

    return register


def _reflowed(text: str) -> str:
    """Join the lines of each paragraph; the terminal wraps them."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


from . import _commands  # noqa: E402, F401 - registers the commands
