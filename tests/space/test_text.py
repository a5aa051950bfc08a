"""TextSpace."""

from __future__ import annotations

import string
from typing import Any

import numpy as np
import pytest
from catalogue import SPACES, backend_cases, samples
from hypothesis import given
from hypothesis import strategies as st

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import describe_mismatch
from unienv_interface.space.spaces import TextSpace
from unienv_interface.space.spaces.text import alphanumeric

np_backend = NumpyComputeBackend
every_backend = pytest.mark.parametrize("backend", backend_cases())


def test_members_have_the_length_and_the_characters() -> None:
    space = TextSpace(np_backend, 3, min_length=1, charset="ab")
    assert all(text in space for text in ("a", "ba", "aaa"))
    assert all(text not in space for text in ("", "aaaa", "c", "A", b"a", ["a"], None, 1))
    assert np.str_("ab") in space


def test_without_a_charset_any_character_is_accepted_and_samples_are_alphanumeric() -> None:
    space = TextSpace(np_backend, 3)
    assert all(text in space for text in ("", "äß", "漢🙂\0", "\ud800"))
    assert alphanumeric == frozenset(string.ascii_letters + string.digits)
    assert set("".join(samples(space, 300))) <= alphanumeric


@every_backend
def test_samples_reach_every_length_and_character(backend: ComputeBackend) -> None:
    space = TextSpace(backend, 3, min_length=1, charset="äb🙂")
    texts = samples(space, 100)
    assert {len(text) for text in texts} == {1, 2, 3}
    assert set("".join(texts)) == set("äb🙂")


def test_characters_are_drawn_with_replacement() -> None:
    assert samples(TextSpace(np_backend, 9, min_length=9, charset="x"), 1) == ["x" * 9]


@pytest.mark.parametrize("charset", ["ba", ["b", "a"], {"a", "b"}, frozenset("ab"), iter("aab")])
def test_a_charset_may_be_any_collection(charset: Any) -> None:
    space = TextSpace(np_backend, 3, charset=charset)
    assert space == TextSpace(np_backend, 3, charset="ab")
    assert space.charset == frozenset("ab")
    assert space.charset_list == ("a", "b")
    assert space.charset_index == {"a": 0, "b": 1}
    assert space.character_index("b") == 1


def test_characters_without_an_index() -> None:
    with pytest.raises(ValueError, match="character 'c' is not in the charset"):
        TextSpace(np_backend, 3, charset="ab").character_index("c")
    space = TextSpace(np_backend, 3)
    assert (space.charset, space.charset_list, space.charset_index) == (None, None, None)
    with pytest.raises(ValueError, match="the space has no charset, so its characters have no index"):
        space.character_index("a")


def test_create_empty_is_the_empty_string() -> None:
    assert TextSpace(np_backend, 5, min_length=2).create_empty() == ""


@every_backend
def test_subspaces(backend: ComputeBackend) -> None:
    space = TextSpace(backend, 5, min_length=1, charset="abc")
    assert TextSpace(backend, 4, min_length=2, charset="ab").is_subspace(space)
    assert not TextSpace(backend, 6, min_length=1, charset="abc").is_subspaceeq(space)
    assert not TextSpace(backend, 5, min_length=0, charset="abc").is_subspaceeq(space)
    assert not TextSpace(backend, 5, min_length=1, charset="abd").is_subspaceeq(space)
    anything = TextSpace(backend, 5)
    assert space.is_subspace(anything)
    assert anything.is_subspaceeq(TextSpace(backend, 6))
    assert not anything.is_subspaceeq(TextSpace(backend, 5, charset=map(chr, range(0x1000))))


@given(st.text(max_size=6), st.sets(st.characters(), max_size=5), st.integers(0, 3), st.integers(0, 3))
def test_contains_is_its_definition(text: str, charset: set[str], least: int, more: int) -> None:
    if not charset:
        least = 0
    space = TextSpace(np_backend, least + more, min_length=least, charset=charset)
    assert (text in space) is (least <= len(text) <= least + more and set(text) <= charset)
    assert all(drawn in space for drawn in samples(space, 3))


def test_mismatches_in_words() -> None:
    space = TextSpace(np_backend, 3, min_length=1, charset="ab")
    assert describe_mismatch(space, b"a", "task") == "task: bytes, the space wants a string"
    assert describe_mismatch(space, "", "task") == "task: 0 characters, the space wants 1 to 3"
    assert describe_mismatch(space, "ac", "task") == "task: character 'c' is not in the charset"


DEFAULTS: dict[str, Any] = {"backend": np_backend, "max_length": 3}
LENGTHS = "a text wants 0 <= min_length <= max_length"
CONSTRUCTOR_ERRORS: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "negative": (ValueError, f"lengths from -1 to 3, {LENGTHS}", {"min_length": -1}),
    "crossed": (ValueError, f"lengths from 4 to 3, {LENGTHS}", {"min_length": 4}),
    "float": (TypeError, "max_length is 3.5, it wants an integer", {"max_length": 3.5}),
    "none": (TypeError, "max_length is None, it wants an integer", {"max_length": None}),
    "words": (ValueError, "charset holds 'ab', it wants single characters", {"charset": ["ab"]}),
    "nothing": (ValueError, "charset holds '', it wants single characters", {"charset": [""]}),
    "numbers": (ValueError, "charset holds 1, it wants single characters", {"charset": [1]}),
    "empty": (ValueError, "charset is empty, but min_length is 2", {"charset": "", "min_length": 2}),
}


@pytest.mark.parametrize("case", CONSTRUCTOR_ERRORS)
def test_constructor_errors(case: str) -> None:
    kind, text, changes = CONSTRUCTOR_ERRORS[case]
    with pytest.raises(kind) as error:
        TextSpace(**DEFAULTS | changes)
    assert str(error.value) == text


def test_the_text_of_a_text() -> None:
    assert str(TextSpace(np_backend, 3, min_length=1, charset="\0b")) == "Text(1..3, '\\x00b', backend=numpy)"
    assert str(TextSpace(np_backend, 3)) == "Text(0..3, any, backend=numpy)"
    assert repr(SPACES["text_nul"](np_backend)) == (
        "TextSpace(max_length=4, min_length=0, charset='\\x00\\na', backend=numpy)"
    )
    large = TextSpace(np_backend, 3, charset=map(chr, range(0x4E00, 0x9000)))
    assert "... (16896 characters)" in repr(large)
    assert len(repr(large)) < 200
