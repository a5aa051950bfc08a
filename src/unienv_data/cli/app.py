"""The commands of `unienv`. What they do is in the other modules; here is what they are called with."""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ParamSpec

import typer

from ._errors import KNOWN_ERRORS, UsageError, in_one_line
from ._stopping import Stopped

P = ParamSpec("P")
INTERRUPTED, WRONG_USAGE = 130, 2


@dataclass
class Settings:
    """What holds for all commands."""

    traceback: bool = False


settings = Settings()

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def start(
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where in the code an error came from.")] = False,
) -> None:
    """Record environments, and look at, check, repair and convert what was recorded.

    A recording is a folder that a ReplayBuffer lies in. To see all of it at work: unienv demo
    """
    settings.traceback = traceback


def command(*, failure: int = 1) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Make a function a command: errors that are the user's business are one line, and end it with this status."""

    def register(function: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except (typer.Exit, BrokenPipeError):
                raise  # with its status; or whoever read the output has gone, and typer ends quietly
            except KNOWN_ERRORS as error:
                if settings.traceback:
                    traceback.print_exc()
                print(f"unienv: {in_one_line(error)}", file=sys.stderr)
                raise typer.Exit(WRONG_USAGE if isinstance(error, UsageError) else failure) from None
            except KeyboardInterrupt as error:
                print("; ".join(["unienv: interrupted", *map(str, error.args)]), file=sys.stderr)
                raise typer.Exit(128 + error.signal if isinstance(error, Stopped) else INTERRUPTED) from None

        return app.command(help=_reflowed(function.__doc__ or ""))(run)

    return register


def _reflowed(text: str) -> str:
    """Paragraphs of one line each, to be broken where the terminal ends."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


from . import _commands_look, _commands_make  # noqa: E402, F401 - these register the commands
