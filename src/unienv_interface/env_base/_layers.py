"""The base of environments and functional environments: their spaces, and their layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends.base import ComputeBackend
from ..backends.dtypes import name_of
from ..space import Space
from ..space.space_utils import batch_utils


class Layer:
    """The outside of an environment: its backend, and the spaces of its values.

    This is the bottom layer; see `ForwardingLayer` for those above.
    """

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
        """Merge masked reset observations back into a full batched observation; `old_obs` stays as it is."""
        return merge_masked(self.observation_space, self.batch_size, old_obs, newobs_masked, mask)

    def update_context_post_reset(self, old_context: Any, new_context: Any, mask: Any) -> Any:
        """Merge masked reset contexts back into a full batched context; `old_context` stays as it is."""
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
        """Checks if the attribute `name` exists in the environment."""
        return hasattr(self, name)

    def get_wrapper_attr(self, name: str) -> Any:
        """Gets the attribute `name` from the environment."""
        return getattr(self, name)

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        """Sets the attribute `name` on the environment with `value`."""
        setattr(self, name, value)


class ForwardingLayer(Layer):
    """A layer with the attributes of the layer below, except those that were assigned to it."""

    @property
    def _below(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not say which layer it lies on")

    def _own(self, name: str) -> Any:
        """An attribute of this layer if it was assigned, else that of the layer below."""
        own, key = self.__dict__, f"_{name}"
        return own[key] if key in own else getattr(self._below, name)

    @property
    def metadata(self) -> dict[str, Any]:
        return self._own("metadata")

    @metadata.setter
    def metadata(self, value: dict[str, Any]) -> None:
        self._metadata = value

    @property
    def action_space(self) -> Space:
        return self._own("action_space")

    @action_space.setter
    def action_space(self, value: Space) -> None:
        self._action_space = value

    @property
    def observation_space(self) -> Space:
        return self._own("observation_space")

    @observation_space.setter
    def observation_space(self, value: Space) -> None:
        self._observation_space = value

    @property
    def context_space(self) -> Space | None:
        return self._own("context_space")

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
        """Sets the attribute on the outermost layer that has it as its own, or on the bottom one if none has."""
        if hasattr(self, name) and not self._only_shows(name):
            setattr(self, name, value)
        else:
            self._below.set_wrapper_attr(name, value)

    def _only_shows(self, name: str) -> bool:
        """Whether an attribute is one of the layer below, where it has to be set."""
        attribute = getattr(type(self), name, None)
        return isinstance(attribute, property) and attribute.fset is None and self._below.has_wrapper_attr(name)


def merge_masked(space: Space, batch_size: int | None, old: Any, new: Any, mask: Any) -> Any:
    """Batched data with the slots of `mask` replaced by those of `new`, which holds these in order, or every slot."""
    mask = check_mask(mask, batch_size, space.backend)
    rows = batch_utils.batch_size_data(new)
    if rows not in (None, batch_size):
        wanted = int(space.backend.to_numpy(mask).sum())
        if rows != wanted:
            raise ValueError(
                f"{rows} rows for the {wanted} slots of the mask, there must be one for each of these, "
                f"or one for each of all {batch_size} slots"
            )
    return batch_utils.merge_slots(space, old, mask, new)


def check_mask(mask: Any, batch_size: int | None, backend: ComputeBackend) -> Any:
    """A mask as a caller gives it, as an array of the backend; JAX may trace it."""
    if not backend.is_backendarray(mask):
        return backend.from_numpy(parse_mask(mask, batch_size, backend))
    _check_mask_form(backend.dtype_name(mask.dtype), tuple(mask.shape), batch_size)
    return mask


def parse_mask(mask: Any, batch_size: int | None, backend: ComputeBackend) -> np.ndarray:
    """A mask as a caller gives it, an array of the backend or of NumPy, as booleans on the host."""
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
    """Slots as a caller gives them, a list or an array of the backend or of NumPy, as an array of the host's own."""
    slots = backend.to_numpy(index) if backend.is_backendarray(index) else np.asarray(index)
    if slots.ndim != 1 or slots.dtype.kind not in "iu" or not slots.size:
        raise ValueError(f"index {index!r}, it wants a list or an array of environment indices")
    if slots.min() < 0 or slots.max() >= batch_size:
        raise IndexError(f"index {slots.min()} to {slots.max()}, there are {batch_size} environments")
    if len(np.unique(slots)) != len(slots):
        raise ValueError(f"index {index!r} names an environment twice")
    return slots.astype(np.intp)  # a copy: the caller's may change
