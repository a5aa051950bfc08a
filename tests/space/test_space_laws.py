"""What holds for every space of the catalogue on every backend."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle
import numpy as np
import pytest
from catalogue import (
    SPACES,
    as_host,
    assert_same,
    backend_cases,
    move_cases,
    names_on,
    rng_of,
    same,
    sample,
    samples,
    space_cases,
)
from hostile_objects import hostile_jax_arrays, hostile_objects, hostile_tensors

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import describe_mismatch, validate
from unienv_interface.space.spaces import (
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    CompositeSpace,
    DictSpace,
    DynamicBoxSpace,
    GraphInstance,
    GraphSpace,
    Space,
    TextSpace,
    UnionSpace,
)

every_space = pytest.mark.parametrize("space", space_cases())
every_backend = pytest.mark.parametrize("backend", backend_cases())


def has_many_values(space: Space) -> bool:
    """Whether two draws are all but sure to differ."""
    if isinstance(space, BoxSpace):
        return 0 not in space.shape and bool(np.any(space.bounds.low < space.bounds.high))
    if isinstance(space, TextSpace):
        return space.max_length > 0 and (space.charset is None or len(space.charset) > 1)
    if isinstance(space, CompositeSpace):
        return any(has_many_values(child) for child in space.children)
    if isinstance(space, BatchedSpace):
        return 0 not in space.batch_shape and has_many_values(space.single_space)
    if isinstance(space, BinarySpace):
        return 0 not in space.shape
    return not (isinstance(space, GraphSpace) and 0 in space.batch_shape)


def size_varies(space: Space) -> bool:
    """Whether two values may differ in structure or shape."""
    if isinstance(space, CompositeSpace):
        return any(size_varies(child) for child in space.children)
    if isinstance(space, BatchedSpace):
        return None in space.batch_shape or size_varies(space.single_space)
    return isinstance(space, (DynamicBoxSpace, UnionSpace)) or (
        isinstance(space, GraphSpace) and space != space.replace(max_nodes=space.min_nodes, max_edges=space.min_edges)
    )


def structure(value: Any) -> Any:
    """A value with its arrays replaced by what is known of them before they are filled."""
    if isinstance(value, Mapping):
        return {key: structure(child) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(structure(child) for child in value)
    if isinstance(value, GraphInstance):
        return structure(vars(value))
    if isinstance(value, np.ndarray) and value.dtype == object:
        return (value.shape, [structure(item) for item in value.flat])
    return type(value) if value is None or isinstance(value, str) else (value.dtype, tuple(value.shape))


# -- sampling ----------------------------------------------------------------------------------------------


@every_space
def test_sample_is_member(space: Space) -> None:
    for value in samples(space, 3 if space.backend.simplified_name == "jax" else 25):
        assert describe_mismatch(space, value) is None
        assert value in space
        validate(space, value)


@every_space
def test_the_seed_decides_the_sample(space: Space) -> None:
    assert_same(space, sample(space, seed=7), sample(space, seed=7))
    if has_many_values(space):
        drawn = [sample(space, seed) for seed in range(6)]
        assert any(not same(drawn[0], other) for other in drawn[1:])


@every_space
def test_sample_returns_the_generator_to_go_on_with(space: Space) -> None:
    rng = rng_of(space.backend)
    advanced, _ = space.sample(rng)
    assert isinstance(advanced, space.backend.RNG_TYPE)
    if space.backend.simplified_name != "jax":
        assert advanced is rng
    if has_many_values(space):
        first, *others = samples(space, 6)
        assert any(not same(first, other) for other in others)


@pytest.mark.parametrize("space", space_cases(where=lambda space: not size_varies(space)))
def test_create_empty_is_built_like_a_sample(space: Space) -> None:
    assert structure(space.create_empty()) == structure(sample(space))


@every_space
def test_create_empty_makes_a_new_value_each_time(space: Space) -> None:
    one, other = space.create_empty(), space.create_empty()
    for a, b in itertools.product(numpy_arrays(one, space.backend), numpy_arrays(other, space.backend)):
        assert not np.shares_memory(space.backend.to_raw(a), space.backend.to_raw(b))


# -- equality and the subspace relation --------------------------------------------------------------------


@every_backend
def test_equality_hash_and_subspace_agree_on_all_pairs(backend: ComputeBackend) -> None:
    built = [(name, SPACES[name](backend)) for name in names_on(backend)]
    again = [(name, SPACES[name](backend)) for name in names_on(backend)]
    for (name, space), (other_name, other) in itertools.product(built, again):
        pair = f"{name}, {other_name}"
        assert (space == other) is (other == space), pair
        assert (space != other) is not (space == other), pair
        assert (space == other) is (space.is_subspaceeq(other) and other.is_subspaceeq(space)), pair
        assert space.is_subspace(other) is (space.is_subspaceeq(other) and space != other), pair
        if name == other_name:
            assert space == other, pair
        if space == other:
            assert hash(space) == hash(other), pair


@every_backend
def test_the_subspace_relation_is_transitive(backend: ComputeBackend) -> None:
    spaces = [SPACES[name](backend) for name in names_on(backend)]
    above = {a: [b for b in spaces if a.is_subspaceeq(b)] for a in spaces}
    for a in spaces:
        assert all(a.is_subspaceeq(c) for b in above[a] for c in above[b])


@every_backend
def test_samples_of_a_subspace_are_in_the_superspace(backend: ComputeBackend) -> None:
    spaces = [SPACES[name](backend) for name in names_on(backend)]
    for small, large in itertools.permutations(spaces, 2):
        # a dict may be a subspace of one with more keys, although its values are not values of that
        if small.is_subspace(large) and not isinstance(small, DictSpace):
            assert all(value in large for value in samples(small, 3)), f"{small} in {large}"


@every_space
def test_what_is_no_space_is_neither_equal_nor_larger(space: Space) -> None:
    for other in (None, 0, "space", object(), Space, NumpyComputeBackend):
        assert space != other
        assert space.is_subspaceeq(other) is False
        assert space.is_subspace(other) is False


class UnorderedSpace(TextSpace):
    def is_subspaceeq(self, other: Any) -> bool:
        return Space.is_subspaceeq(self, other)


def test_a_kind_without_the_relation_says_so() -> None:
    space = UnorderedSpace(NumpyComputeBackend, 3)
    for relation in (space.is_subspaceeq, space.is_subspace):
        with pytest.raises(NotImplementedError, match="UnorderedSpace must define is_subspaceeq to be compared"):
            relation(space)


# -- membership --------------------------------------------------------------------------------------------


def check_answer(space: Space, x: Any) -> bool:
    """The answer to `x in space`, which must be a bool however hostile `x` is."""
    answer = space.contains(x)
    assert type(answer) is bool
    finding = describe_mismatch(space, x, "the/path")
    assert (finding is None) is answer
    if finding is not None:
        assert finding.startswith("the/path")
        with pytest.raises(ValueError) as error:
            validate(space, x, "the/path")
        assert str(error.value) == finding
    return answer


@every_space
def test_contains_answers_for_any_object(space: Space) -> None:
    others = hostile_tensors() if space.backend.simplified_name == "pytorch" else {}
    if space.backend.simplified_name == "jax":
        others = hostile_jax_arrays()
    for x in (*hostile_objects().values(), *others.values()):
        check_answer(space, x)


def replaced(value: Any, intruder: Any) -> Iterator[Any]:
    """The value with one of its parts replaced, for every part."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            for changed in (intruder, *replaced(child, intruder)):
                yield {**value, key: changed}
    elif isinstance(value, tuple):
        for position, child in enumerate(value):
            for changed in (intruder, *replaced(child, intruder)):
                yield (*value[:position], changed, *value[position + 1 :])
    elif isinstance(value, GraphInstance):
        for name in vars(value):
            yield GraphInstance(**vars(value) | {name: intruder})
    elif isinstance(value, np.ndarray) and value.dtype == object:
        for place in np.ndindex(value.shape):
            changed = value.copy()
            changed[place] = intruder
            yield changed


@pytest.mark.parametrize("space", space_cases("dict", "tuple", "union", "graph", "batched", "everything"))
def test_contains_answers_for_an_intruder_anywhere_inside(space: Space) -> None:
    value = sample(space)
    for intruder in ("raising_everything", "raising_class", "raising_dict", "objects", "nan_array"):
        for changed in replaced(value, hostile_objects()[intruder]):
            assert check_answer(space, changed) is False


@pytest.mark.parametrize(("space", "backend"), move_cases("box", "binary", "dynamic"))
def test_arrays_of_other_backends_are_no_members(space: Space, backend: ComputeBackend) -> None:
    assert check_answer(space, space.data_to(sample(space), backend)) is False


class EvenText(TextSpace):
    """A kind of its own that says no more than what it contains."""

    def contains(self, x: Any) -> bool:
        return len(x) % 2 == 0


@describe_mismatch.register
def _(space: EvenText, x: Any, path: str = "") -> str | None:
    return describe_mismatch.dispatch(Space)(space, x, path)


def test_a_kind_that_only_has_contains_is_asked_that() -> None:
    space = DictSpace(NumpyComputeBackend, {"a": EvenText(NumpyComputeBackend, 9)})
    assert describe_mismatch(space, {"a": "ab"}) is None
    assert describe_mismatch(space, {"a": "abc"}, "x") == "x/a: str is not a value of Text(0..9, any, backend=numpy)"
    assert describe_mismatch(space, {"a": 5}, "x") == "x/a: a value that cannot be looked at (TypeError)"


# -- other backends and devices ----------------------------------------------------------------------------


@pytest.mark.parametrize(("space", "backend"), move_cases())
def test_to_another_backend_and_back(space: Space, backend: ComputeBackend) -> None:
    there = space.to(backend)
    back = there.to(space.backend)
    assert there.backend is backend
    assert space != there
    assert not space.is_subspaceeq(there)
    if backend.simplified_name != "jax":
        assert back == space
    for value in samples(space, 3):
        moved = space.data_to(value, backend)
        returned = there.data_to(moved, space.backend)
        validate(there, moved)
        validate(back, returned)
        validate(space, returned)
        if back == space:
            assert_equal_numbers(value, moved)
            assert_equal_numbers(value, returned)


def assert_equal_numbers(a: Any, b: Any) -> None:
    """Compare two values whatever their backends and dtypes."""
    for mine, theirs in zip(numpy_arrays(as_host(a)), numpy_arrays(as_host(b)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@every_space
def test_to_returns_the_space_itself_when_nothing_changes(space: Space) -> None:
    assert space.to() is space
    assert space.to(space.backend) is space
    assert space.to(space.backend, space.device) is space


@every_space
def test_to_a_device_changes_nothing_but_the_device(space: Space) -> None:
    device = space.backend.device(space.backend.zeros((1,)))
    there = space.to(device=device)
    assert space.backend.same_device(there.device, device)
    assert there.to(device=device) is there
    assert there == space
    assert hash(there) == hash(space)
    value = there.sample(rng_of(space.backend))[1]
    assert value in space
    assert there.create_empty() is not None
    assert_same(space, there.data_to(value, device=device), value)


@pytest.mark.parametrize(("space", "backend"), move_cases())
def test_moved_data_never_shares_what_must_not_be_written(space: Space, backend: ComputeBackend) -> None:
    value = sample(space)
    sources = list(numpy_arrays(value, space.backend))
    if space.backend is NumpyComputeBackend:
        for source in sources:
            source.flags.writeable = False
    for moved, source in zip(numpy_arrays(space.data_to(value, backend), backend), sources, strict=True):
        memory, source_memory = backend.to_raw(moved), space.backend.to_raw(source)
        if not source_memory.flags.writeable and memory.flags.writeable:
            assert not np.shares_memory(memory, source_memory)
        if backend.simplified_name == "jax" and space.backend.simplified_name == "pytorch":
            assert not np.shares_memory(memory, source_memory)  # a tensor may be written to at any time


def numpy_arrays(value: Any, backend: ComputeBackend = NumpyComputeBackend) -> Iterator[Any]:
    """The arrays of a value, in order."""
    if isinstance(value, Mapping):
        value = tuple(value[key] for key in sorted(value))
    if isinstance(value, GraphInstance):
        value = tuple(vars(value).values())
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = tuple(value.flat)
    if isinstance(value, tuple):
        for child in value:
            yield from numpy_arrays(child, backend)
    elif backend.is_backendarray(value):
        yield value


# -- as text, as copies ------------------------------------------------------------------------------------


def leaf_count(space: Space) -> int:
    if isinstance(space, BatchedSpace):
        return leaf_count(space.single_space)
    if isinstance(space, GraphSpace):
        return 3
    children = space.children if isinstance(space, CompositeSpace) else getattr(space, "spaces", [])
    return 1 + sum(leaf_count(child) for child in children)


@every_space
def test_text_forms_are_short_and_printable(space: Space) -> None:
    for text in (repr(space), str(space)):
        text.encode()  # no surrogate that a terminal would choke on
        assert f"backend={space.backend}" in text
        assert len(text) <= 60 + 160 * leaf_count(space)
        assert not any(mark in text for mark in ("\n", "\0", "array(", "tensor(", "Array("))
    assert repr(space).startswith(type(space).__name__ + "(")
    assert str(space).startswith(type(space).__name__.removesuffix("Space") + "(")
    assert "backend" not in space.get_repr(include_backend=False)


@every_space
def test_copies_and_pickles_are_equal(space: Space) -> None:
    copies = [copy.copy(space), copy.deepcopy(space)]
    copies += [pickle.loads(pickle.dumps(space, protocol)) for protocol in (2, pickle.HIGHEST_PROTOCOL)]
    copies.append(cloudpickle.loads(cloudpickle.dumps(space)))
    for copied in copies:
        assert copied == space
        assert hash(copied) == hash(space)
        assert repr(copied) == repr(space)
        assert copied.backend is space.backend
        assert copied.shape == space.shape
        assert copied.dtype == space.dtype
        assert_same(space, sample(copied), sample(space))


@every_backend
def test_a_space_on_a_device_can_be_pickled_and_copied(backend: ComputeBackend) -> None:
    space = SPACES["dict_nested"](backend).to(device=backend.device(backend.zeros((1,))))
    for copied in (pickle.loads(pickle.dumps(space)), copy.copy(space), copy.deepcopy(space)):
        assert copied == space
        assert backend.same_device(copied.device, space.device)


@every_space
def test_shape_and_device_are_read_only(space: Space) -> None:
    for name in ("shape", "device"):
        with pytest.raises(AttributeError):
            setattr(space, name, None)


@every_space
def test_bounded_on_both_sides_means_below_and_above(space: Space) -> None:
    assert space.is_bounded() is (space.is_bounded("below") and space.is_bounded("above"))
