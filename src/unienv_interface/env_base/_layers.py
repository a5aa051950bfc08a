"""The base classes of environments, functional environments and their wrappers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends.base import ComputeBackend
from ..backends.dtypes import name_of
from ..space import Space
from ..space.space_utils import batch_utils


class Layer:
    """The spaces, backend and attributes of an environment without layers below; see `ForwardingLayer` for wrappers."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - replaced as a whole, never changed
    backend: ComputeBackend
    device: Any = None
    batch_size: int | None = None
    action_space: Space
    observation_space: Space
    context_space: Space | None = None
    #: Whether a recorder is among the layers, which keeps every step, also one that the caller never sees.
    keeps_steps: bool = False

    def update_observation_post_reset(self, old_obs: Any, newobs_masked: Any, mask: Any) -> Any:
        """Merge the observations of a masked reset into the batched observation `old_obs`; returns a new value."""
        return merge_masked(self.observation_space, self.batch_size, old_obs, newobs_masked, mask)

    def update_context_post_reset(self, old_context: Any, new_context: Any, mask: Any) -> Any:
        """Merge the contexts of a masked reset into the batched context `old_context`; returns a new value."""
        if self.context_space is None:
            return None
        return merge_masked(self.context_space, self.batch_size, old_context, new_context, mask)

    @property
    def unwrapped(self) -> Any:
        """The environment under all wrappers."""
        return self

    @property
    def prev_wrapper_layer(self) -> Any:
        """The environment one layer down, or None at the bottom."""
        return None

    def has_wrapper_attr(self, name: str) -> bool:
        """Whether the environment or a layer has the attribute `name`."""
        return hasattr(self, name)

    def get_wrapper_attr(self, name: str) -> Any:
        """Get the attribute `name` of the outermost layer that has it."""
        return getattr(self, name)

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        """Set the attribute `name` on the outermost layer that has it, or on the bottom layer."""
        setattr(self, name, value)


class ForwardingLayer(Layer):
    """A layer that forwards its attributes to the layer below, unless they were assigned here."""

    @property
    def _below(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must override `_below` to return the layer below")

    def _attribute(self, name: str) -> Any:
        """The attribute assigned to this layer, else the attribute of the layer below."""
        assigned, key = self.__dict__, f"_{name}"
        return assigned[key] if key in assigned else getattr(self._below, name)

    @property
    def metadata(self) -> dict[str, Any]:
        return self._attribute("metadata")

    @metadata.setter
    def metadata(self, value: dict[str, Any]) -> None:
        self._metadata = value

    @property
    def action_space(self) -> Space:
        return self._attribute("action_space")

    @action_space.setter
    def action_space(self, value: Space) -> None:
        self._action_space = value

    @property
    def observation_space(self) -> Space:
        return self._attribute("observation_space")

    @observation_space.setter
    def observation_space(self, value: Space) -> None:
        self._observation_space = value

    @property
    def context_space(self) -> Space | None:
        return self._attribute("context_space")

    @context_space.setter
    def context_space(self, value: Space | None) -> None:
        self._context_space = value

    @property
    def backend(self) -> ComputeBackend:  # type: ignore[override]
        return self._below.backend

    @property
    def device(self) -> Any:
        return self._below.device

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        return self._below.batch_size

    @property
    def keeps_steps(self) -> bool:  # type: ignore[override]
        return self._below.keeps_steps

    @property
    def unwrapped(self) -> Any:
        return self._below.unwrapped

    @property
    def prev_wrapper_layer(self) -> Any:
        return self._below

    def has_wrapper_attr(self, name: str) -> bool:
        return hasattr(self, name) or self._below.has_wrapper_attr(name)

    def get_wrapper_attr(self, name: str) -> Any:
        if hasattr(self, name):
            return getattr(self, name)
        try:
            return self._below.get_wrapper_attr(name)
        except AttributeError:
            raise AttributeError(f"neither {type(self).__name__} nor a layer below it has {name!r}") from None

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        """Set the attribute on the outermost layer that has it and can set it, or on the bottom layer."""
        if hasattr(self, name) and not self._is_read_only(name):
            setattr(self, name, value)
        else:
            self._below.set_wrapper_attr(name, value)

    def _is_read_only(self, name: str) -> bool:
        """Whether an attribute is a property without a setter that forwards to the layer below."""
        attribute = getattr(type(self), name, None)
        return isinstance(attribute, property) and attribute.fset is None and self._below.has_wrapper_attr(name)


def merge_masked(space: Space, batch_size: int | None, old: Any, new: Any, mask: Any) -> Any:
    """Replace the slots of `mask` in batched data; `new` holds the rows of these slots, in order, or of every slot."""
    mask = check_mask(mask, batch_size, space.backend)
    rows = batch_utils.batch_size_data(new)
    if rows not in (None, batch_size):
        selected = int(space.backend.to_numpy(mask).sum())
        if rows != selected:
            raise ValueError(
                f"{rows} rows for the {selected} slots of the mask: give one row for each slot of the mask, "
                f"or one for each of all {batch_size} slots"
            )
    return batch_utils.merge_slots(space, old, mask, new)


def check_mask(mask: Any, batch_size: int | None, backend: ComputeBackend) -> Any:
    """Check a mask and return it as an array of the backend; it may be traced by JAX."""
    if not backend.is_backendarray(mask):
        return backend.from_numpy(parse_mask(mask, batch_size, backend))
    _check_mask_form(backend.dtype_name(mask.dtype), tuple(mask.shape), batch_size)
    return mask


def parse_mask(mask: Any, batch_size: int | None, backend: ComputeBackend) -> np.ndarray:
    """Check a mask, an array of the backend or of NumPy, and return it as a NumPy array."""
    if type(mask) is np.ndarray:
        slots = mask
    else:
        slots = backend.to_numpy(mask) if backend.is_backendarray(mask) else np.asarray(mask)
    _check_mask_form(name_of(slots.dtype), slots.shape, batch_size)
    return slots


def _check_mask_form(dtype: str, shape: tuple[int, ...], batch_size: int | None) -> None:
    if batch_size is None:
        raise ValueError("the environment is not batched, so a mask has nothing to select")
    if dtype != "bool" or shape != (batch_size,):
        raise ValueError(
            f"the mask has dtype {dtype} and shape {shape}, it must be one boolean per slot: shape ({batch_size},)"
        )


def parse_index(index: Any, batch_size: int, backend: ComputeBackend) -> np.ndarray:
    """Check indices, a list or an array of the backend or of NumPy, and return them as a new NumPy array."""
    slots = backend.to_numpy(index) if backend.is_backendarray(index) else np.asarray(index)
    if slots.ndim != 1 or slots.dtype.kind not in "iu" or not slots.size:
        raise ValueError(f"index {index!r} is not a list or an array of environment indices")
    if slots.min() < 0 or slots.max() >= batch_size:
        raise IndexError(
            f"indices {slots.min()} to {slots.max()} are out of range: there are {batch_size} environments"
        )
    if len(np.unique(slots)) != len(slots):
        raise ValueError(f"index {index!r} names an environment twice")
    return slots.astype(np.intp)  # a copy: the caller may change `index`
