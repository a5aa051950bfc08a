"""data_stack and stack_infos."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from catalogue import BACKENDS

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base.stacking import stack_infos
from unienv_interface.env_base.vec_env import data_stack

every_backend = pytest.mark.parametrize("backend", BACKENDS, ids=str)


def plain(value: Any) -> Any:
    """Arrays as lists, so that values compare."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(plain(part) for part in value)
    return value.tolist() if hasattr(value, "tolist") else value


@every_backend
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False], "bool"),
        ([1, 2], "int"),
        ([1.5, 2.5], "float"),
        ([1, 2.5], "float"),
        ([np.float32(1.5), np.float32(2.5)], "float32"),
        ([np.bool_(True), np.bool_(False)], "bool"),
        ([np.zeros(2, np.uint8), np.ones(2, np.uint8)], "uint8"),
        ([np.float32(1.5), np.zeros((), np.float32)], "float32"),
    ],
    ids=str,
)
def test_numbers_and_arrays_become_an_array_of_the_backend(
    values: list[Any], dtype: str, backend: ComputeBackend
) -> None:
    stacked = data_stack(values, backend)
    assert backend.is_backendarray(stacked)
    assert plain(stacked) == plain(values)
    default = {"int": backend.default_integer_dtype, "float": backend.default_floating_dtype}.get(dtype)
    assert stacked.dtype == (backend.dtype_from_name(dtype) if default is None else default)


@every_backend
def test_arrays_of_the_backend_become_one_that_is_new(backend: ComputeBackend) -> None:
    parts = [backend.from_numpy(np.full(2, value, np.float32), copy=True) for value in (1, 2)]
    stacked = data_stack(parts, backend)
    assert backend.is_backendarray(stacked)
    assert plain(stacked) == [[1.0, 1.0], [2.0, 2.0]]
    if backend.simplified_name != "jax":
        parts[0][0] = 9
        assert plain(stacked)[0] == [1.0, 1.0]


def test_integers_too_wide_for_the_default_become_wider() -> None:
    for backend in BACKENDS:
        if backend.simplified_name != "jax":
            assert plain(data_stack([1, 2**40], backend)) == [1, 2**40]


def test_what_is_stacked_is_the_callers() -> None:
    part = np.zeros(2)
    stacked = data_stack([part], NumpyComputeBackend)
    part[0] = 1
    assert stacked.tolist() == [[0.0, 0.0]]


@every_backend
@pytest.mark.parametrize(
    "values",
    [
        ["a", "b"],
        [None, None],
        [object(), 1],
        [[1, 2], [3, 4]],
        [np.zeros(2), np.zeros(3)],
        [np.array(["a"]), np.array(["b"])],
        [np.array([None]), np.array([None])],
        [np.datetime64(1, "s"), np.datetime64(2, "s")],
        [True, 1],
        [np.bool_(True), np.float32(1)],
        [np.int64(1), np.uint64(2)],
        [1, 2**70],
        [1, 2**63],
        [1.0, 10**400],
        [{"a": 1}, 2],
        [(1, 2), (1, 2, 3)],
        [1 + 2j, 3.0],
    ],
    ids=lambda values: "-".join(type(value).__name__ for value in values),
)
def test_what_cannot_be_stacked_without_loss_stays_a_list(values: list[Any], backend: ComputeBackend) -> None:
    stacked = data_stack(values, backend)
    assert type(stacked) is list
    assert all(found is given for found, given in zip(stacked, values, strict=True))


@pytest.mark.parametrize("values", [[2**40, 1], [np.int64(2**40)] * 2, [np.array([2**40])] * 2])
def test_numbers_that_the_backend_does_not_hold_stay_a_list(values: list[Any]) -> None:
    (jax,) = [backend for backend in BACKENDS if backend.simplified_name == "jax"] or [None]
    if jax is None:
        pytest.skip("needs JAX")
    assert type(data_stack(values, jax)) is list


def test_a_dtype_that_the_backend_does_not_have_stays_a_list() -> None:
    (torch,) = [backend for backend in BACKENDS if backend.simplified_name == "pytorch"] or [None]
    if torch is None:
        pytest.skip("needs PyTorch")
    assert type(data_stack([np.longdouble(1), np.longdouble(2)], torch)) is list


@every_backend
def test_a_mapping_is_stacked_by_its_values(backend: ComputeBackend) -> None:
    array = backend.from_numpy(np.zeros(2, np.float32), copy=True)
    stacked = data_stack({"a": [1, 2], "b": {"c": [array, array]}, "d": [{"e": 1}, {"e": 2}]}, backend)
    assert plain(stacked) == {"a": [1, 2], "b": {"c": [[0, 0], [0, 0]]}, "d": {"e": [1, 2]}}
    assert all(map(backend.is_backendarray, (stacked["a"], stacked["b"]["c"], stacked["d"]["e"])))


@every_backend
def test_what_holds_no_values_is_returned_as_it_is(backend: ComputeBackend) -> None:
    array = backend.from_numpy(np.zeros(2, np.float32), copy=True)
    for value in (3, 2.5, True, None, "text", b"bytes", np.float32(1), array):
        assert data_stack(value, backend) is value
    assert data_stack({"seconds": 2.5, "name": "a"}, backend) == {"seconds": 2.5, "name": "a"}


def test_nothing_stays_nothing() -> None:
    assert data_stack([], NumpyComputeBackend) == []
    assert stack_infos([], NumpyComputeBackend) == {}
    assert stack_infos([{}, {}], NumpyComputeBackend) == {}


class Pair(NamedTuple):
    left: Any
    right: Any


@every_backend
def test_any_nesting(backend: ComputeBackend) -> None:
    stacked = data_stack(
        ({"a": (i, {"b": np.full(2, i, np.int32)}), "c": Pair(str(i), [i])} for i in range(2)), backend
    )
    assert plain(stacked["a"]) == ([0, 1], {"b": [[0, 0], [1, 1]]})
    assert type(stacked["c"]) is Pair
    assert stacked["c"] == Pair(["0", "1"], [[0], [1]])


# -- infos -------------------------------------------------------------------------------------------------


@every_backend
def test_keys_that_some_lack_get_a_mask(backend: ComputeBackend) -> None:
    merged = stack_infos(
        [{"x": 1.5, "text": "a"}, {"y": np.ones(2, np.float32)}, {"x": 2.5, "inner": {"z": 1}}], backend
    )
    assert plain(merged) == {
        "x": [1.5, 0.0, 2.5],
        "_x": [True, False, True],
        "text": ["a", None, None],
        "_text": [True, False, False],
        "y": [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]],
        "_y": [False, True, False],
        "inner": {"z": [0, 0, 1], "_z": [False, False, True]},
        "_inner": [False, False, True],
    }
    assert all(backend.is_backendarray(merged[key]) for key in ("x", "_x", "_text", "y", "_y", "_inner"))
    assert merged["_x"].dtype == backend.default_boolean_dtype


def test_keys_that_all_have_get_none() -> None:
    merged = stack_infos([{"x": 1, "inner": {"z": 1}}, {"x": 2, "inner": {"z": 2, "w": 0}}], NumpyComputeBackend)
    assert plain(merged) == {"x": [1, 2], "inner": {"z": [1, 2], "w": [0, 0], "_w": [False, True]}}


def test_flags_that_some_lack_are_false() -> None:
    merged = stack_infos([{"ok": True}, {}], NumpyComputeBackend)
    assert plain(merged) == {"ok": [True, False], "_ok": [True, False]}
    assert merged["ok"].dtype == bool
