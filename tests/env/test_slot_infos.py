"""Infos of some slots, of several groups together, and of each slot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS
from hypothesis import given
from hypothesis import strategies as st

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base.stacking import stack_infos
from unienv_interface.wrapper.slot_infos import InfoPart, merge_infos, rows_of_infos, split_infos

NUMPY = NumpyComputeBackend
on_backends = pytest.mark.parametrize("backend", BACKENDS, ids=str)

VALUES = {
    "number": st.integers(-5, 5),
    "real": st.floats(-5, 5, width=32),
    "flag": st.booleans(),
    "text": st.sampled_from(["a", "b"]),
    "vector": st.lists(st.integers(0, 9), min_size=2, max_size=2).map(lambda items: np.array(items, np.int32)),
    "inner": st.fixed_dictionaries({"x": st.integers(0, 3)}, optional={"y": st.booleans()}),
}
INFOS = st.lists(st.fixed_dictionaries({}, optional=VALUES), min_size=1, max_size=5)


def plain(value: Any) -> Any:
    """Numbers and arrays as Python's own, so that equal ones are equal."""
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


@given(infos=INFOS, seed=st.integers(0, 9))
def test_each_slot_gets_its_own_back(infos: list[dict[str, Any]], seed: int) -> None:
    slots = np.random.default_rng(seed).random(len(infos)) < 0.5
    whole = stack_infos(infos, NUMPY)
    assert [plain(info) for info in split_infos(whole, len(infos), NUMPY)] == [plain(info) for info in infos]
    some = rows_of_infos(whole, slots)
    chosen = [info for info, is_chosen in zip(infos, slots, strict=True) if is_chosen]
    assert [plain(info) for info in split_infos(some, len(chosen), NUMPY)] == [plain(info) for info in chosen]


@given(infos=INFOS, seed=st.integers(0, 9))
def test_groups_of_slots_make_the_whole(infos: list[dict[str, Any]], seed: int) -> None:
    slots = np.random.default_rng(seed).random(len(infos)) < 0.5
    groups = [
        InfoPart(mask, stack_infos([info for info, here in zip(infos, mask, strict=True) if here], NUMPY))
        for mask in (slots, ~slots)
    ]
    merged = merge_infos(groups, NUMPY)
    assert [plain(info) for info in split_infos(merged, len(infos), NUMPY)] == [plain(info) for info in infos]


@on_backends
def test_arrays_stay_arrays_of_the_backend(backend: ComputeBackend) -> None:
    first = {"a": backend.from_numpy(np.array([1, 2], np.int32)), "b": np.array([[1.0], [2.0]])}
    second = {"a": backend.from_numpy(np.array([7], np.int32)), "c": ["x"]}
    parts = [InfoPart(np.array([True, False, True]), first), InfoPart(np.array([False, True, False]), second)]
    merged = merge_infos(parts, backend)
    assert backend.is_backendarray(merged["a"])
    assert backend.to_host(merged["a"]).tolist() == [1, 7, 2]
    assert merged["b"].tolist() == [[1.0], [0.0], [2.0]]
    assert merged["c"] == [None, "x", None]
    assert backend.to_host(merged["_b"]).tolist() == [True, False, True]
    assert backend.to_host(merged["_c"]).tolist() == [False, True, False]
    assert "_a" not in merged


def test_what_is_not_of_the_slots_is_the_same_for_all() -> None:
    info = {"version": "1.0", "of_all": np.zeros((7, 2)), "_private": 3}
    assert rows_of_infos(info, np.array([True, False]))["version"] == "1.0"
    split = split_infos(info, 2, NUMPY)
    assert split[0]["version"] == split[1]["version"] == "1.0"
    assert split[1]["_private"] == 3
    masks = np.array([True, False]), np.array([False, True])
    merged = merge_infos([InfoPart(mask, info) for mask in masks], NUMPY)
    assert merged["of_all"].shape == (7, 2)


def test_numbers_of_different_kinds_take_the_wider_one() -> None:
    masks = np.array([True, False]), np.array([False, True])
    values = np.array([1], np.int64), np.array([0.5])
    merged = merge_infos([InfoPart(mask, {"a": value}) for mask, value in zip(masks, values, strict=True)], NUMPY)
    assert merged["a"].tolist() == [1.0, 0.5]


def test_objects_have_none_where_there_is_nothing() -> None:
    mask = np.array([True, False])
    merged = merge_infos([InfoPart(mask, {"a": np.array(["x"], object)}), InfoPart(~mask, {})], NUMPY)
    assert merged["a"] == ["x", None]
