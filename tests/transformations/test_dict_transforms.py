"""DictTransformation, the two key filters, and flattening."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from transformation_cases import BACKENDS, assert_same, flat, host, named, nested, sample

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace, TupleSpace
from unienv_interface.transformations import (
    CropTransformation,
    DictExcludeKeyTransformation,
    DictIncludeKeyTransformation,
    DictTransformation,
    FlattenDictTransformation,
    IdentityTransformation,
    RescaleTransformation,
    UnflattenDictTransformation,
)
from unienv_interface.transformations.dict_transform import (
    call_conditioned_function_on_chained_dict,
    call_function_on_chained_dict,
    get_chained_value,
    get_mapping_source_space,
)
from unienv_interface.transformations.filter_dict import exclude_chained_key_in_dict, include_chained_key_in_dict
from unienv_interface.transformations.flatten_dict_transform import flatten_nested_mapping, unflatten_mapping

SPACE = nested(NumpyComputeBackend)


# -- DictTransformation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend_name", BACKENDS)
def test_other_keys_pass_through_untouched(backend_name):
    space = nested(named(backend_name))
    data = sample(space)
    result = DictTransformation({"robot/joints": RescaleTransformation()}).transform(space, data)
    assert result["time"] is data["time"]
    assert result["robot"]["gripper"] is data["robot"]["gripper"]
    assert list(result) == list(data)
    assert result["robot"] is not data["robot"]
    expected = RescaleTransformation().transform(space["robot"]["joints"], data["robot"]["joints"])
    assert_same(host(space.backend, result["robot"]["joints"]), host(space.backend, expected))


def test_a_missing_key_is_a_key_error_that_says_what_is_there():
    transformation = DictTransformation({"robot/arm": IdentityTransformation()})
    text = r"no key 'robot/arm': robot has the keys \['gripper', 'joints'\]"
    for call in (
        lambda: transformation.get_target_space_from_source(SPACE),
        lambda: transformation.transform(SPACE, sample(SPACE)),
        lambda: transformation.direction_inverse(SPACE),
    ):
        with pytest.raises(KeyError, match=text):
            call()
    with pytest.raises(KeyError, match="no key 'time/x': time is a ndarray"):
        DictTransformation({"time/x": IdentityTransformation()}).transform(SPACE, sample(SPACE))


def test_missing_keys_can_be_ignored():
    transformation = DictTransformation(
        {"robot/arm": RescaleTransformation(), "time": RescaleTransformation()}, ignore_missing_keys=True
    )
    data = sample(SPACE)
    target = transformation.get_target_space_from_source(SPACE)
    result = transformation.transform(SPACE, data)
    assert result in target
    inverse = transformation.direction_inverse(SPACE)
    assert set(inverse.mapping) == {"time"}
    assert_same(inverse.transform(target, result), data, 1e-5)


def test_has_inverse_if_all_have():
    assert DictTransformation({"a": CropTransformation(0, 1)}).has_inverse
    assert DictTransformation({}).has_inverse
    assert not DictTransformation({"a": DictIncludeKeyTransformation([])}).has_inverse


def test_dict_settings_are_checked():
    with pytest.raises(ValueError, match="'a/b' lies below 'a': put one DictTransformation after the other"):
        DictTransformation({"a/b": IdentityTransformation(), "a": IdentityTransformation()})
    with pytest.raises(TypeError, match="a: int, it must be a DataTransformation"):
        DictTransformation({"a": 3})
    with pytest.raises(ValueError, match="nested_separator is '', it must be a string of at least one character"):
        DictTransformation({}, nested_separator="")
    with pytest.raises(TypeError, match="DictTransformation wants a DictSpace, not Tuple"):
        DictTransformation({}).get_target_space_from_source(TupleSpace(NumpyComputeBackend, []))


def test_errors_carry_the_path():
    with pytest.raises(TypeError, match=r"^touch: RescaleTransformation wants a BoxSpace"):
        DictTransformation({"touch": RescaleTransformation()}).get_target_space_from_source(SPACE)


def test_close_reaches_every_member():
    closed = []

    class Closing(IdentityTransformation):
        def close(self):
            closed.append(self)

    DictTransformation({"a": Closing(), "b": Closing()}).close()
    assert len(closed) == 2


def test_chained_helpers():
    data = {"a": {"b": 1}, "c": 2}
    assert get_chained_value(data, ["a", "b"]) == 1
    assert get_chained_value(data, ["a", "x"], ignore_missing_keys=True) is None
    assert get_chained_value(SPACE, ["robot", "joints"]) is SPACE["robot"]["joints"]
    assert call_function_on_chained_dict(data, ["a", "b"], lambda x: x + 1) == {"a": {"b": 2}, "c": 2}
    assert data == {"a": {"b": 1}, "c": 2}
    assert call_function_on_chained_dict(data, ["x"], str, ignore_missing_keys=True) is data
    both = call_conditioned_function_on_chained_dict({"a": {"b": 10}}, data, ["a", "b"], lambda s, x: s + x)
    assert both == {"a": {"b": 11}, "c": 2}
    assert get_mapping_source_space(SPACE, "robot.joints", ".", False) is SPACE["robot"]["joints"]
    assert get_mapping_source_space(None, "robot.joints", ".", False) is None
    assert get_mapping_source_space(SPACE, "robot.arm", ".", True) is None


# -- filters -----------------------------------------------------------------------------------------------


def test_two_keys_under_one_parent_are_both_kept():
    transformation = DictIncludeKeyTransformation({"robot/joints", "robot/gripper"})
    data = sample(SPACE)
    assert_same(transformation.transform(SPACE, data), {"robot": data["robot"]})
    assert transformation.get_target_space_from_source(SPACE) == DictSpace(
        NumpyComputeBackend, {"robot": SPACE["robot"]}
    )


@pytest.mark.parametrize("keys", list(itertools.permutations(["b/y", "a", "b/x"])))
def test_the_order_of_results_is_that_of_the_source(keys):
    data = {"c": 0, "b": {"z": 1, "y": 2, "x": 3}, "a": 4}
    kept = DictIncludeKeyTransformation(keys).transform(None, data)
    assert [list(kept), list(kept["b"])] == [["b", "a"], ["y", "x"]]
    left = DictExcludeKeyTransformation(keys).transform(None, data)
    assert [list(left), list(left["b"])] == [["c", "b"], ["z"]]


def test_results_do_not_depend_on_the_hash_seed():
    program = (
        "from unienv_interface.transformations import *\n"
        "t = DictIncludeKeyTransformation({f'p/k{i}' for i in range(20)})\n"
        "import json; print(json.dumps([t.transform(None, {'p': {f'k{i}': i for i in range(20)}}), t.serialize()]))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_a_parent_covers_what_lies_below_it():
    data = {"a": {"b": 1, "c": 2}, "d": 3}
    assert DictIncludeKeyTransformation(["a/b", "a"]).transform(None, data) == {"a": {"b": 1, "c": 2}}
    assert DictExcludeKeyTransformation(["a/b", "a"]).transform(None, data) == {"d": 3}


def test_a_dict_that_exclusion_leaves_empty_stays():
    assert DictExcludeKeyTransformation(["a/b"]).transform(None, {"a": {"b": 1}}) == {"a": {}}


@pytest.mark.parametrize("kind", [DictIncludeKeyTransformation, DictExcludeKeyTransformation])
def test_a_missing_key_is_a_value_error_that_says_what_is_there(kind):
    text = r"no key 'robot/arm': robot has the keys \['gripper', 'joints'\]"
    with pytest.raises(ValueError, match=text):
        kind(["robot/arm"]).get_target_space_from_source(SPACE)
    with pytest.raises(ValueError, match=text):
        kind(["robot/arm"]).transform(SPACE, sample(SPACE))
    with pytest.raises(ValueError, match=r"no key 'arm': the dict has the keys \['robot', 'time', 'touch'\]"):
        kind(["arm"]).get_target_space_from_source(SPACE)
    with pytest.raises(ValueError, match="no key 'time/x': time is a BoxSpace"):
        kind(["time/x"]).get_target_space_from_source(SPACE)


def test_filters_can_ignore_missing_keys():
    keys = ["robot/arm", "arm", "time/x", "touch/y", "robot/joints"]
    data = sample(SPACE)
    include = DictIncludeKeyTransformation(keys, ignore_missing_keys=True)
    assert_same(include.transform(SPACE, data), {"robot": {"joints": data["robot"]["joints"]}})
    assert include.transform(SPACE, data) in include.get_target_space_from_source(SPACE)
    exclude = DictExcludeKeyTransformation(keys, ignore_missing_keys=True)
    assert set(exclude.transform(SPACE, data)["robot"]) == {"gripper"}
    assert exclude.transform(SPACE, data) in exclude.get_target_space_from_source(SPACE)


def test_another_separator():
    include = DictIncludeKeyTransformation(["a::b"], nested_separator="::")
    assert include.transform(None, {"a": {"b": 1, "c/d": 2}}) == {"a": {"b": 1}}


def test_keys_are_sets_that_can_be_assigned():
    include = DictIncludeKeyTransformation(["a", "a"])
    assert include.enabled_keys == {"a"}
    include.enabled_keys = ["b"]
    assert include.transform(None, {"a": 1, "b": 2}) == {"b": 2}
    exclude = DictExcludeKeyTransformation(["a"])
    exclude.excluded_keys = {"b"}
    assert exclude.excluded_keys == {"b"}
    assert exclude.transform(None, {"a": 1, "b": 2}) == {"a": 1}
    with pytest.raises(TypeError, match="enabled_keys is the string 'abc', it must be a collection of keys"):
        DictIncludeKeyTransformation("abc")


def test_filter_helpers():
    data = {"a": {"b": 1, "c": 2}, "d": 3}
    assert exclude_chained_key_in_dict(data, ["a", "b"]) == {"a": {"c": 2}, "d": 3}
    only_b = include_chained_key_in_dict(data, ["a", "b"])
    assert only_b == {"a": {"b": 1}}
    assert include_chained_key_in_dict(data, ["a", "c"], target_d=only_b) == {"a": {"b": 1, "c": 2}}
    assert only_b == {"a": {"b": 1}}
    assert data == {"a": {"b": 1, "c": 2}, "d": 3}
    assert include_chained_key_in_dict(data, ["x"], ignore_missing_keys=True) == {}
    assert exclude_chained_key_in_dict(data, ["x"], ignore_missing_keys=True) == data


# -- flattening --------------------------------------------------------------------------------------------


def test_flatten_and_unflatten_spaces_are_inverse():
    target = FlattenDictTransformation().get_target_space_from_source(SPACE)
    assert set(target.keys()) == {"robot/joints", "robot/gripper", "touch", "time"}
    assert UnflattenDictTransformation().get_target_space_from_source(target) == SPACE
    source = flat(NumpyComputeBackend)
    there = UnflattenDictTransformation().get_target_space_from_source(source)
    assert FlattenDictTransformation().get_target_space_from_source(there) == source
    assert isinstance(FlattenDictTransformation().direction_inverse(), UnflattenDictTransformation)
    assert FlattenDictTransformation(".").direction_inverse().direction_inverse().nested_separator == "."


def test_empty_dicts_and_tuples_are_values():
    data = {"a": {}, "b": {"c": {}, "d": (1, {"e": 2})}}
    flattened = flatten_nested_mapping(data, "/")
    assert flattened == {"a": {}, "b/c": {}, "b/d": (1, {"e": 2})}
    assert unflatten_mapping(flattened, "/") == data
    space = DictSpace(NumpyComputeBackend, {"a": {}, "b": {"c": {}}})
    assert unflatten_mapping(flatten_nested_mapping(space, "/"), "/") == space


@pytest.mark.parametrize("data", [{"a/b": 1}, {"a": {"b/c": 1}}, {"a": {"b/": {"c": 1}}}])
def test_a_key_that_contains_the_separator_is_refused(data):
    with pytest.raises(ValueError, match="cannot be joined by '/' and split again"):
        FlattenDictTransformation().transform(None, data)


def test_a_separator_made_by_joining_is_refused():
    with pytest.raises(ValueError, match=r"the keys \['a-', 'b'\] cannot be joined by '--'"):
        FlattenDictTransformation("--").transform(None, {"a-": {"b": 1}})


@pytest.mark.parametrize("data", [{"a": 1, "a/b": 2}, {"a/b": 2, "a": 1}, {"a": {"x": 1}, "a/b": 2}])
def test_a_value_and_a_parent_under_one_key_are_refused(data):
    with pytest.raises(ValueError, match="key 'a"):
        UnflattenDictTransformation().transform(None, data)


def test_flattening_wants_dicts():
    space = BoxSpace(NumpyComputeBackend, 0, 1, np.float32)
    for kind in (FlattenDictTransformation, UnflattenDictTransformation):
        with pytest.raises(TypeError, match=f"{kind.__name__} wants a DictSpace, not Box"):
            kind().get_target_space_from_source(space)
        with pytest.raises(ValueError, match="nested_separator"):
            kind("")
