"""States of functional environments: frozen dataclasses that are JAX pytrees."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from typing_extensions import Self, dataclass_transform

__all__ = ["StateClass", "field", "stateclass"]

AnyClass = TypeVar("AnyClass", bound=type)

# Classes not registered with JAX yet. Making a state registers them if JAX is imported, so JAX stays optional.
_unregistered: list[type] = []


def field(pytree_node: bool = True, *, metadata: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
    """A field of a `stateclass`.

    Parameters
    ----------
    pytree_node
        Whether the field holds arrays. Otherwise it is a static field: constant under `jit`, not mapped.
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
    """Make a class a frozen dataclass and a JAX pytree.

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
    state_class = dataclasses.dataclass(**{"frozen": True, **kwargs})(clz)
    state_class.__new__ = staticmethod(_new_state)  # type: ignore[assignment]
    if "replace" not in state_class.__dict__:
        state_class.replace = StateClass.replace
    _unregistered.append(state_class)
    return state_class


@dataclass_transform(frozen_default=True, field_specifiers=(field, dataclasses.field))
class StateClass:
    """A base class: every subclass becomes a `stateclass`.

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
        """Return a copy with some fields replaced."""
        return dataclasses.replace(self, **overrides)  # type: ignore[type-var]


def _new_state(cls: type, *args: Any, **kwargs: Any) -> Any:
    if _unregistered and sys.modules.get("jax") is not None:
        _register_with_jax()
    return object.__new__(cls)


def _register_with_jax() -> None:
    from jax.tree_util import register_dataclass

    while _unregistered:
        state_class = _unregistered.pop()
        fields = dataclasses.fields(state_class)
        register_dataclass(
            state_class,
            data_fields=[item.name for item in fields if item.metadata.get("pytree_node", True)],
            meta_fields=[item.name for item in fields if not item.metadata.get("pytree_node", True)],
        )
