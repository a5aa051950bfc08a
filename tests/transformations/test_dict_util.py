import pytest
from hypothesis import given
from hypothesis import strategies as st

from unienv_interface.utils.dict_util import flatten_keys_in_mapping, nested_get, unflatten_keys_in_mapping

keys = st.text("ab. ", max_size=3)
trees = st.dictionaries(keys, st.recursive(st.integers(), lambda inner: st.dictionaries(keys, inner, max_size=3)))


@given(trees)
def test_unflatten_undoes_flatten(tree):
    flat = flatten_keys_in_mapping(tree)
    assert not any(isinstance(value, dict) and value for value in flat.values())
    assert unflatten_keys_in_mapping(flat) == tree


@given(trees)
def test_flatten_with_a_separator_of_two_characters_is_exact_or_refused(tree):
    try:
        flat = flatten_keys_in_mapping(tree, "..")
    except ValueError:
        return
    assert unflatten_keys_in_mapping(flat, "..") == tree


def test_flatten():
    assert flatten_keys_in_mapping({"a": {"b": 1, "c": {"d": 2}}, "e": 3}) == {"a/b": 1, "a/c/d": 2, "e": 3}
    assert flatten_keys_in_mapping({}) == {}
    with pytest.raises(TypeError, match="key 1 is int, only strings can be joined"):
        flatten_keys_in_mapping({"a": {1: 2}})
    with pytest.raises(ValueError, match="nested_separator is ''"):
        flatten_keys_in_mapping({}, "")


def test_unflatten_refuses_what_would_lose_a_value():
    with pytest.raises(ValueError, match="key 'a/b' lies below a key that has a value"):
        unflatten_keys_in_mapping({"a": 1, "a/b": 2})
    with pytest.raises(ValueError, match="key 'a' has a value and other keys below it"):
        unflatten_keys_in_mapping({"a/b": 2, "a": 1})


def test_nested_get():
    data = {"a": {"b": 1}}
    assert nested_get(data, ["a", "b"]) == 1
    assert nested_get(data, []) is data
    with pytest.raises(KeyError, match=r"no key 'a/c': a has the keys \['b'\]"):
        nested_get(data, ["a", "c"])
    with pytest.raises(KeyError, match="no key 'a/b/c': a/b is a int"):
        nested_get(data, ["a", "b", "c"])
