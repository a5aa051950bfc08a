"""DictSpace: order of keys, item access, nesting, membership and what its constructor refuses."""

from __future__ import annotations

import copy
import types
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS, SPACES, assert_same, backend_cases, sample, samples

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import describe_mismatch
from unienv_interface.space.spaces import BinarySpace, BoxSpace, DictSpace, Space, TextSpace, TupleSpace

np_backend = NumpyComputeBackend
every_backend = pytest.mark.parametrize("backend", backend_cases())


def box(backend: ComputeBackend = np_backend, high: float = 1) -> BoxSpace:
    return BoxSpace(backend, 0, high, "float32", shape=(3,))


# -- order and item access ---------------------------------------------------------------------------------


def test_keys_of_a_mapping_are_sorted_and_those_of_pairs_stay_in_order() -> None:
    children = {key: box() for key in ("b", "a", "C", "ä", "")}
    assert list(DictSpace(np_backend, children)) == ["", "C", "a", "b", "ä"]
    assert list(DictSpace(np_backend, list(children.items()))) == ["b", "a", "C", "ä", ""]
    assert list(DictSpace(np_backend, types.MappingProxyType(children)).keys()) == ["", "C", "a", "b", "ä"]
    assert list(DictSpace(np_backend, ((key, child) for key, child in children.items()))) == list(children)  # type: ignore[arg-type]


@every_backend
def test_the_order_of_the_keys_changes_neither_equality_nor_samples(backend: ComputeBackend) -> None:
    pairs: list[tuple[str, Space]] = [("z", box(backend)), ("a", BinarySpace(backend, (3,)))]
    ordered, reverse = DictSpace(backend, pairs), DictSpace(backend, pairs[::-1])
    assert ordered == reverse
    assert hash(ordered) == hash(reverse)
    assert_same(ordered, sample(ordered), sample(reverse))
    assert list(sample(ordered)) == ["z", "a"]
    assert list(ordered.create_empty()) == ["z", "a"]
    assert list(ordered.to(np_backend)) == ["z", "a"]


@every_backend
def test_nested_mappings_become_spaces(backend: ComputeBackend) -> None:
    space = DictSpace(backend, {"obs": {"b": box(backend), "a": {"c": box(backend)}}, "x": {}})
    assert isinstance(space["obs"]["a"], DictSpace)
    assert list(space["obs"]) == ["a", "b"]
    assert space["x"] == DictSpace(backend)
    space["more"] = {"y": {"z": box(backend)}}
    assert space["more"]["y"]["z"] == box(backend)


def test_items_can_be_read_set_and_deleted() -> None:
    space = DictSpace(np_backend, {"a": box()})
    space["b"] = BinarySpace(np_backend, (2,))
    assert len(space) == 2
    assert "b" in space.keys()  # noqa: SIM118 -- `"b" in space` asks whether it is a value
    assert [*space.values()] == [box(), BinarySpace(np_backend, (2,))]
    assert dict(space.items()) == space.spaces
    assert sample(space) in space
    del space["a"]
    assert space == DictSpace(np_backend, {"b": BinarySpace(np_backend, (2,))})
    space["b"] = box(high=5)
    assert space["b"] == box(high=5)


def test_a_missing_key_says_which_there_are() -> None:
    space = DictSpace(np_backend, {"b": box(), "a": box()})
    for act in (lambda: space["c"], lambda: space.__delitem__("c")):
        with pytest.raises(KeyError) as error:
            act()
        assert error.value.args == ("no key 'c', the space has ['a', 'b']",)


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
def test_changing_a_copy_leaves_the_original(copier: Any) -> None:
    space = SPACES["dict_nested"](np_backend)
    copied = copier(space)
    copied["new"] = box()
    del copied["reward"]
    assert space == SPACES["dict_nested"](np_backend)
    assert copied != space
    if copier is copy.copy:
        assert copied["obs"] is space["obs"]


# -- devices -----------------------------------------------------------------------------------------------


@every_backend
def test_a_device_reaches_all_children_and_later_ones(backend: ComputeBackend) -> None:
    device = backend.device(backend.zeros((1,)))
    space = DictSpace(backend, {"a": box(backend), "b": {"c": TextSpace(backend, 3)}}, device=device)
    assert space["b"]["c"].device is not None
    for changed in (space, copy.copy(space), space.to(device=device), DictSpace(backend).to(device=device)):
        changed["later"] = {"d": box(backend)}
        assert backend.same_device(changed["later"]["d"].device, device)
        assert backend.same_device(changed.device, device)


@every_backend
def test_the_device_is_the_one_the_children_agree_on(backend: ComputeBackend) -> None:
    device = backend.device(backend.zeros((1,)))
    there, nowhere = box(backend).to(device=device), box(backend)
    assert backend.same_device(DictSpace(backend, {"a": there, "b": {"c": there}}).device, device)
    assert DictSpace(backend).device is None
    if backend is not np_backend:  # which has but one device
        assert DictSpace(backend, {"a": there, "b": nowhere}).device is None
        assert DictSpace(backend, {"a": {"b": there}, "c": {"d": nowhere}}).device is None


@pytest.mark.parametrize("name", ["dict_empty", "dict_of_empty", "tuple_empty"])
@every_backend
def test_spaces_without_leaves_move_too(backend: ComputeBackend, name: str) -> None:
    assert SPACES[name](np_backend).to(backend) == SPACES[name](backend)


def test_devices_written_in_two_ways_agree() -> None:
    torch = pytest.importorskip("torch")
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    backend: ComputeBackend = PyTorchComputeBackend

    spaces = {name: box(backend).to(device=device) for name, device in (("a", "cpu"), ("b", torch.device("cpu", 0)))}
    assert backend.same_device(DictSpace(backend, spaces).device, "cpu")


# -- membership and subspaces ------------------------------------------------------------------------------


def test_members_have_exactly_the_keys() -> None:
    space = DictSpace(np_backend, {"a": box(), "b": box()})
    value = sample(space)
    assert value in space
    assert types.MappingProxyType(value) in space
    assert dict(reversed(value.items())) in space
    assert {"a": value["a"]} not in space
    assert value | {"c": value["a"]} not in space
    assert list(value.items()) not in space
    assert value | {"a": value["a"] - 5} not in space


MISMATCHES: dict[str, tuple[Any, str]] = {
    "no_dict": (3, "obs: int, the space wants a dict with the keys ['pose', 'rgb']"),
    "missing": ({"rgb": 0}, "obs: key 'pose' is missing, the space wants ['pose', 'rgb']"),
    "surplus": (
        {"rgb": 0, "pose": {}, "x": 0},
        "obs: key 'x' is not in the space, which has ['pose', 'rgb']",
    ),
    "dtype": (
        {"rgb": np.zeros(3), "pose": {"x": np.zeros(3, bool)}},
        "obs/rgb: dtype float64, the space wants uint8",
    ),
    "deep": (
        {"rgb": np.zeros(3, np.uint8), "pose": {"x": np.zeros(4, bool)}},
        "obs/pose/x: shape (4,), the space wants (3,)",
    ),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_mismatches_in_words(case: str) -> None:
    value, text = MISMATCHES[case]
    space = DictSpace(
        np_backend, {"rgb": SPACES["box_uint8"](np_backend), "pose": {"x": BinarySpace(np_backend, (3,))}}
    )
    assert describe_mismatch(space, value, "obs") == text


@every_backend
def test_subspaces(backend: ComputeBackend) -> None:
    small, large = box(backend), box(backend, high=2)
    space = DictSpace(backend, {"a": large, "b": {"c": large}})
    assert DictSpace(backend, {"a": small, "b": {"c": large}}).is_subspace(space)
    assert DictSpace(backend, {"a": large, "b": {"c": small}}).is_subspace(space)
    assert DictSpace(backend, {"a": large}).is_subspace(space)  # the larger one may have more keys
    assert DictSpace(backend, {"a": small}).is_subspace(space)
    assert DictSpace(backend).is_subspace(space)
    assert not space.is_subspaceeq(DictSpace(backend, {"a": large}))
    assert not DictSpace(backend, {"d": large}).is_subspaceeq(space)
    assert not DictSpace(backend, {"a": large, "b": large}).is_subspaceeq(space)
    assert not DictSpace(backend, {"a": box(backend, high=3)}).is_subspaceeq(space)
    assert not space.is_subspaceeq(TupleSpace(backend, [large]))


def test_samples_of_a_subspace_are_members_key_by_key() -> None:
    small, large = DictSpace(np_backend, {"a": box()}), DictSpace(np_backend, {"a": box(high=2), "b": box()})
    assert small.is_subspace(large)
    assert all(child in large[key] for value in samples(small, 5) for key, child in value.items())


# -- errors and text ---------------------------------------------------------------------------------------

OTHER_BACKENDS = [backend for backend in BACKENDS if backend is not np_backend]

CONSTRUCTOR_ERRORS: dict[str, tuple[type[Exception], str, Any]] = {
    "child": (TypeError, "a: int, the children of a DictSpace are spaces", {"a": 3}),
    "nested_child": (TypeError, "obs/rgb: str, the children of a DictSpace are spaces", {"obs": {"rgb": "box"}}),
    "list_child": (TypeError, "a: list, the children of a DictSpace are spaces", {"a": [box()]}),
    "key": (TypeError, "key 3 is int, the keys of a DictSpace are strings", {3: box()}),
    "nested_key": (TypeError, "obs: key None is NoneType, the keys of a DictSpace are strings", {"obs": {None: 3}}),
    "twice": (ValueError, "key 'a' is given twice", [("a", box()), ("a", box())]),
}


@pytest.mark.parametrize("case", CONSTRUCTOR_ERRORS)
def test_constructor_errors(case: str) -> None:
    kind, text, spaces = CONSTRUCTOR_ERRORS[case]
    with pytest.raises(kind) as error:
        DictSpace(np_backend, spaces)
    assert str(error.value) == text


def test_a_refused_item_leaves_the_space_unchanged() -> None:
    space = DictSpace(np_backend, {"a": box()})
    for key, child in (("b", 3), (4, box()), ("a", {"x": None})):
        with pytest.raises(TypeError):
            space[key] = child  # type: ignore[index]
    assert space == DictSpace(np_backend, {"a": box()})


@pytest.mark.parametrize("other", OTHER_BACKENDS, ids=str)
def test_children_of_another_backend_are_refused(other: ComputeBackend) -> None:
    with pytest.raises(ValueError) as error:
        DictSpace(np_backend, {"obs": {"x": box(other)}})
    assert str(error.value) == f"obs/x: backend {other}, the DictSpace wants numpy"


def test_the_text_of_a_dict() -> None:
    space = DictSpace(np_backend, {"a": BinarySpace(np_backend, (2,)), "b": {}})
    assert repr(space) == "DictSpace({'a': BinarySpace(shape=(2,)), 'b': DictSpace({})}, backend=numpy)"
    assert str(space) == "Dict({'a': Binary((2,)), 'b': Dict({})}, backend=numpy)"
