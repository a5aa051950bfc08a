"""The keywords that a storage's `create` takes, and errors that name them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from unienv_interface.utils.words import did_you_mean

from ..base.storage import SpaceStorage

CreateT = TypeVar("CreateT", bound=Callable[..., Any])
#: Keywords of `ReplayBuffer.create`, which passes on those that it does not know: a misspelt one of these, too.
_OF_THE_BUFFER = ("keep_episodes", "maintain_segment_metadata", "durable", "lanes", "columns")


def checks_options(create: CreateT) -> CreateT:
    """Make `create` of a storage raise a TypeError with all its keywords for an unknown one; below @classmethod."""

    @functools.wraps(create)
    def checked(cls: type[SpaceStorage], *args: Any, **kwargs: Any) -> Any:
        known = option_names(create)
        for name in kwargs:
            if name not in (*known, "single_instance_space"):
                near = did_you_mean(name, (*known, *_OF_THE_BUFFER))
                raise TypeError(f"{cls.__name__}.create takes no keyword {name!r}, it takes {sorted(known)}{near}")
        return create(cls, *args, **kwargs)

    return checked  # type: ignore[return-value]


def option_names(create: Callable[..., Any]) -> list[str]:
    """The keywords that a `create` names, but for the space."""
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [item.name for item in inspect.signature(create).parameters.values() if item.kind in named]
    return [name for name in names if name not in ("cls", "single_instance_space")]


def takes_option(storage_cls: type[SpaceStorage], name: str) -> bool:
    """Whether `create` of a class takes a keyword, as far as can be seen from outside."""
    parameters = inspect.signature(storage_cls.create).parameters.values()
    return name in option_names(storage_cls.create) or any(item.kind is item.VAR_KEYWORD for item in parameters)


def check_inner_options(
    cls: type[SpaceStorage], inner_classes: Iterable[type[SpaceStorage]], options: Mapping[str, Any]
) -> None:
    """A TypeError that names all accepted keywords if `cls` is given one that no storage inside takes."""
    inner = list(dict.fromkeys(inner_classes))
    for name in options:
        if not any(takes_option(part, name) for part in inner):
            theirs = "; ".join(f"{part.__name__} takes {sorted(option_names(part.create))}" for part in inner)
            known = [option for storage in (cls, *inner) for option in option_names(storage.create)]
            raise TypeError(
                f"{cls.__name__}.create takes no keyword {name!r}, it takes {sorted(option_names(cls.create))}, and "
                f"of the storages inside {theirs}{did_you_mean(name, (*known, *_OF_THE_BUFFER))}"
            )
