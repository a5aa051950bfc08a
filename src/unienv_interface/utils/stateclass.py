"""States of functional environments: frozen dataclasses that JAX can take apart and put together again."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from typing_extensions import Self, dataclass_transform

__all__ = ["StateClass", "field", "stateclass"]

AnyClass = TypeVar("AnyClass", bound=type)

# Classes that JAX has not been told of. It is told when a state is made and JAX is there, so that nobody who does
# without JAX has to import it.
_unknown_to_jax: list[type] = []


def field(pytree_node: bool = True, *, metadata: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
    """A field of a `stateclass`.

    Parameters
    ----------
    pytree_node
        Whether the field holds arrays. Otherwise JAX takes it for a setting: static under `jit`, not mapped.
    metadata, **kwargs
        As for `dataclasses.field`.

    Returns
    -------
    dataclasses.Field
        The field.
    """
    return dataclasses.field(metadata={**(metadata or {}), "pytree_node": pytree_node}, **kwargs)


@overload
def stateclass(clz: AnyClass, /, **kwargs: Any) -> AnyClass: ...
@overload
def stateclass(clz: None = None, /, **kwargs: Any) -> Callable[[AnyClass], AnyClass]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field, dataclasses.field))
def stateclass(clz: Any = None, /, **kwargs: Any) -> Any:
    """Make a class a frozen dataclass that JAX knows as a pytree.

    Parameters
    ----------
    clz
        The class; None when used as a decorator with arguments.
    **kwargs
        As for `dataclasses.dataclass`.

    Returns
    -------
    class
        The class; without `clz` a decorator.
    """
    if clz is None:
        return lambda decorated: stateclass(decorated, **kwargs)
    made = dataclasses.dataclass(**{"frozen": True, **kwargs})(clz)
    made.__new__ = staticmethod(_new_state)  # type: ignore[assignment]
    if "replace" not in made.__dict__:
        made.replace = StateClass.replace
    _unknown_to_jax.append(made)
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(field, dataclasses.field))
class StateClass:
    """A class whose subclasses are `stateclass`es without saying so.

    Parameters
    ----------
    *args, **kwargs
        The fields, by position or by name.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes the fields, by position or by name."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__()
        stateclass(cls, **kwargs)

    def replace(self, **overrides: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **overrides)  # type: ignore[type-var]


def _new_state(cls: type, *args: Any, **kwargs: Any) -> Any:
    if _unknown_to_jax and sys.modules.get("jax") is not None:
        _register_with_jax()
    return object.__new__(cls)


def _register_with_jax() -> None:
    from jax.tree_util import register_dataclass

    while _unknown_to_jax:
        made = _unknown_to_jax.pop()
        fields = dataclasses.fields(made)
        register_dataclass(
            made,
            data_fields=[item.name for item in fields if item.metadata.get("pytree_node", True)],
            meta_fields=[item.name for item in fields if not item.metadata.get("pytree_node", True)],
        )
