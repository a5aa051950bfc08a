"""The documented path of `unienv_interface.backends.array_serialization`."""

from ..backends.array_serialization import deserialize_scalar_or_array_value, serialize_scalar_or_array_value

__all__ = ["deserialize_scalar_or_array_value", "serialize_scalar_or_array_value"]
