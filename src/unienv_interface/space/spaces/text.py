"""`TextSpace`: strings of bounded length."""

from __future__ import annotations

import functools
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...backends.base import BDeviceType, BDtypeType, BRNGType
from ...backends.serialization import BackendLike, parse_backend
from ..mismatch import at_path, describe_mismatch
from ..space import BoundedManner, Space, parse_integer

alphanumeric = frozenset(string.ascii_letters + string.digits)
_SHOWN_CHARACTERS = 64


class TextSpace(Space[str, BDeviceType, BDtypeType, BRNGType]):
    """Strings of bounded length.

    Parameters
    ----------
    backend
        The backend, to combine the space with others; texts are Python strings.
    max_length, min_length
        Limits of the number of characters, both inclusive.
    charset
        The characters that a text may have; None for any. Samples are then alphanumeric.
    device
        The device, to combine the space with others.

    Raises
    ------
    ValueError
        `min_length` is negative or above `max_length`, or `charset` holds no single characters.
    TypeError
        A length is no integer.

    Examples
    --------
    >>> space = TextSpace("numpy", max_length=8)
    >>> space.contains("grasp"), space.contains("a long sentence")
    (True, False)
    """

    def __init__(
        self,
        backend: BackendLike,
        max_length: int,
        *,
        min_length: int = 0,
        charset: Iterable[str] | None = None,
        device: Any = None,
    ) -> None:
        super().__init__(backend, device=device)
        self.min_length = parse_integer(min_length, "min_length")
        self.max_length = parse_integer(max_length, "max_length")
        if not 0 <= min_length <= max_length:
            raise ValueError(f"lengths from {min_length} to {max_length}, a text wants 0 <= min_length <= max_length")
        self._charset = None if charset is None else frozenset(charset)
        if self._charset is not None:
            invalid = [char for char in self._charset if not isinstance(char, str) or len(char) != 1]
            if invalid:
                raise ValueError(f"charset holds {invalid[0]!r}, it wants single characters")
            if not self._charset and min_length > 0:
                raise ValueError(f"charset is empty, but min_length is {min_length}")

    @property
    def charset(self) -> frozenset[str] | None:
        """The characters that a text may have; None for any."""
        return self._charset

    @functools.cached_property
    def charset_list(self) -> Sequence[str] | None:
        """The characters in order, or None without a charset."""
        return None if self._charset is None else tuple(sorted(self._charset))

    @functools.cached_property
    def charset_index(self) -> Mapping[str, int] | None:
        """The position of each character in `charset_list`, or None without a charset."""
        return None if self.charset_list is None else {char: i for i, char in enumerate(self.charset_list)}

    def character_index(self, char: str) -> int:
        """The position of a character in `charset_list`.

        Raises
        ------
        ValueError
            The space has no charset, or the character is not in it.
        """
        if self.charset_index is None:
            raise ValueError("the space has no charset, so its characters have no index")
        try:
            return self.charset_index[char]
        except KeyError:
            raise ValueError(f"character {char!r} is not in the charset") from None

    def to(self, backend: BackendLike | None = None, device: Any = None) -> TextSpace:
        backend = None if backend is None else parse_backend(backend)
        if self._is_on(backend, device):
            return self
        return TextSpace(
            backend or self.backend, self.max_length, min_length=self.min_length, charset=self._charset, device=device
        )

    def data_to(self, data: str, backend: BackendLike | None = None, device: Any = None) -> str:
        return data

    def sample(self, rng: BRNGType, **kwargs: Any) -> tuple[BRNGType, str]:
        characters = self.charset_list if self.charset_list is not None else sorted(alphanumeric)
        if not characters:
            return rng, ""
        draw = self.backend.random.random_discrete_uniform
        rng, length = draw((), self.min_length, self.max_length + 1, rng=rng)
        # always max_length draws, so that JAX compiles a single shape
        rng, indices = draw((self.max_length,), 0, len(characters), rng=rng)
        picked: np.ndarray = self.backend.to_numpy(indices)[: int(length)]
        return rng, "".join(characters[i] for i in picked)

    def create_empty(self) -> str:
        return ""

    def is_bounded(self, manner: BoundedManner = "both") -> bool:
        return True

    def contains(self, x: Any) -> bool:
        return describe_mismatch(self, x) is None

    def is_subspaceeq(self, other: Any) -> bool:
        if not isinstance(other, TextSpace) or self.backend is not other.backend:
            return False
        lengths_fit = other.min_length <= self.min_length and self.max_length <= other.max_length
        if other.charset is None or self.charset is None:
            return lengths_fit and other.charset is None
        return lengths_fit and self.charset <= other.charset

    def _key(self) -> tuple[Any, ...]:
        return (self.min_length, self.max_length, self._charset)

    def get_repr(
        self,
        abbreviate: bool = False,
        include_backend: bool = True,
        include_device: bool = True,
        include_dtype: bool = True,
    ) -> str:
        suffix = self._backend_repr(include_backend, include_device)
        charset = "any" if self.charset_list is None else repr("".join(self.charset_list[:_SHOWN_CHARACTERS]))
        if self.charset_list is not None and len(self.charset_list) > _SHOWN_CHARACTERS:
            charset += f"... ({len(self.charset_list)} characters)"
        if abbreviate:
            return f"Text({self.min_length}..{self.max_length}, {charset}{suffix})"
        return f"TextSpace(max_length={self.max_length}, min_length={self.min_length}, charset={charset}{suffix})"


@describe_mismatch.register
def _(space: TextSpace, x: Any, path: str = "") -> str | None:
    if not isinstance(x, str):
        return at_path(path, f"{type(x).__name__}, the space wants a string")
    if not space.min_length <= len(x) <= space.max_length:
        return at_path(path, f"{len(x)} characters, the space wants {space.min_length} to {space.max_length}")
    if space.charset is not None:
        foreign = [char for char in x if char not in space.charset]
        if foreign:
            return at_path(path, f"character {foreign[0]!r} is not in the charset")
    return None
