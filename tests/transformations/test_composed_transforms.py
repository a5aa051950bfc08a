"""Chains, leaves, and the axis of size one."""

import numpy as np
import pytest
from transformation_cases import BACKENDS, assert_same, floats, host, integers, named, nested, numbers, sample

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.space.spaces import (
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    DictSpace,
    DynamicBoxSpace,
    GraphSpace,
    TextSpace,
    TupleSpace,
    UnionSpace,
)
from unienv_interface.transformations import (
    BatchifyTransformation,
    ChainedTransformation,
    CropTransformation,
    DictIncludeKeyTransformation,
    IdentityTransformation,
    IterativeTransformation,
    LeafwiseTransformation,
    RescaleTransformation,
    UnBatchifyTransformation,
)
from unienv_interface.transformations.iter_transform import default_is_leaf_fn, find_leaf_source_space

per_backend = pytest.mark.parametrize("backend_name", BACKENDS)
N = NumpyComputeBackend


class Closing(IdentityTransformation):
    closed = 0

    def close(self):
        self.closed += 1


# -- identity ----------------------------------------------------------------------------------------------


def test_identity_returns_the_very_space_and_data():
    identity, space = IdentityTransformation(), nested(N)
    data = sample(space)
    assert identity.get_target_space_from_source(space) is space
    assert identity.transform(space, data) is data
    assert isinstance(identity.direction_inverse(), IdentityTransformation)


# -- chains ------------------------------------------------------------------------------------------------


def test_a_chain_applies_its_members_in_order():
    space = BoxSpace(N, 0, 10, "float32", shape=(3,))
    data = np.float32([0, 6, 10])
    crop_then_rescale = ChainedTransformation([CropTransformation(0, 5), RescaleTransformation(0, 1)])
    np.testing.assert_allclose(crop_then_rescale.transform(space, data), [0, 1, 1])
    rescale_then_crop = ChainedTransformation([RescaleTransformation(0, 1), CropTransformation(0, 0.5)])
    np.testing.assert_allclose(rescale_then_crop.transform(space, data), [0, 0.5, 0.5])
    assert rescale_then_crop.get_target_space_from_source(space) == BoxSpace(N, 0, 0.5, "float32", shape=(3,))


def test_the_inverse_of_a_chain_reverses_it():
    space = integers(N)
    chain = ChainedTransformation([RescaleTransformation(0, 2), BatchifyTransformation(), RescaleTransformation(-1, 0)])
    inverse = chain.direction_inverse(space)
    target = chain.get_target_space_from_source(space)
    data = sample(space)
    assert [type(member) for member in inverse.transformations] == [
        RescaleTransformation,
        UnBatchifyTransformation,
        RescaleTransformation,
    ]
    np.testing.assert_array_equal(inverse.transform(target, chain.transform(space, data)), data)
    assert inverse.get_target_space_from_source(target) == space


def test_a_chain_has_an_inverse_if_all_members_have():
    assert ChainedTransformation([]).has_inverse
    assert not ChainedTransformation([IdentityTransformation(), DictIncludeKeyTransformation([])]).has_inverse
    assert isinstance(ChainedTransformation([IdentityTransformation()]).direction_inverse(), ChainedTransformation)


def test_an_empty_chain_is_the_identity():
    space = nested(N)
    data = sample(space)
    assert ChainedTransformation([]).get_target_space_from_source(space) == space
    assert ChainedTransformation([]).transform(space, data) is data


def test_a_changed_dict_space_is_another_space():
    space = DictSpace(N, {"a": BoxSpace(N, 0, 1, "float32")})
    chain = ChainedTransformation([IterativeTransformation(RescaleTransformation(0, 1))])
    half = {"a": np.array(0.5, np.float32)}
    assert chain.transform(space, half)["a"] == 0.5
    space["a"] = BoxSpace(N, 0, 10, "float32")
    assert chain.transform(space, half)["a"] == np.float32(0.05)


def test_a_chain_works_out_its_spaces_once(monkeypatch):
    asked = []
    original = DictIncludeKeyTransformation.get_target_space_from_source
    monkeypatch.setattr(
        DictIncludeKeyTransformation,
        "get_target_space_from_source",
        lambda self, space: asked.append(space) or original(self, space),
    )
    space = nested(N)
    chain = ChainedTransformation([DictIncludeKeyTransformation(["time"]), IdentityTransformation()])
    for seed in range(3):
        chain.transform(space, sample(space, seed))
    assert len(asked) == 1


def test_chains_are_checked_and_closed():
    with pytest.raises(TypeError, match="1: str, it must be a DataTransformation"):
        ChainedTransformation([IdentityTransformation(), "rescale"])
    member = Closing()
    ChainedTransformation([member, member]).close()
    assert member.closed == 2


# -- leaves ------------------------------------------------------------------------------------------------


@per_backend
def test_every_leaf_is_transformed_and_the_structure_stays(backend_name):
    backend = named(backend_name)
    space = numbers(backend)
    data = sample(space)
    transformation = IterativeTransformation(RescaleTransformation(0, 1))
    result = transformation.transform(space, data)
    assert isinstance(result["pair"], tuple)
    alone = RescaleTransformation(0, 1).transform(space["pair"][0], data["pair"][0])
    assert_same(host(backend, result["pair"][0]), host(backend, alone))
    leaf = floats(backend)
    on_a_leaf = transformation.transform(leaf, data["joints"])
    assert_same(host(backend, on_a_leaf), host(backend, result["joints"]))


@per_backend
def test_the_inverse_knows_each_leaf_s_own_bounds(backend_name):
    backend = named(backend_name)
    space = numbers(backend)
    transformation = IterativeTransformation(RescaleTransformation(0, 1))
    inverse = transformation.direction_inverse(space)
    target = transformation.get_target_space_from_source(space)
    assert inverse.get_target_space_from_source(target) == space
    data = sample(space)
    assert_same(
        host(backend, inverse.transform(target, transformation.transform(space, data))), host(backend, data), 1e-5
    )
    back = inverse.direction_inverse(target)
    assert back.get_target_space_from_source(space) == target


def test_the_inverse_is_iterative_where_one_transformation_serves_all_leaves():
    space = DictSpace(N, {"a": floats(N), "b": floats(N)})
    assert isinstance(
        IterativeTransformation(RescaleTransformation()).direction_inverse(space), IterativeTransformation
    )
    assert isinstance(IterativeTransformation(CropTransformation(0, 1)).direction_inverse(), IterativeTransformation)
    with pytest.raises(ValueError, match="depends on the source space"):
        IterativeTransformation(RescaleTransformation()).direction_inverse()


def everything_is_a_leaf(space):
    return True


def boxes_and_tuples_are_leaves(space):
    return not isinstance(space, DictSpace)


def test_leaf_functions_are_honoured():
    space = numbers(N)
    data = sample(space)
    whole = IterativeTransformation(DictIncludeKeyTransformation(["joints"]), everything_is_a_leaf)
    assert set(whole.transform(space, data)) == {"joints"}
    assert set(whole.get_target_space_from_source(space).keys()) == {"joints"}
    pairs = IterativeTransformation(Closing(), boxes_and_tuples_are_leaves, everything_is_a_leaf)
    assert pairs.transform(space, data)["pair"] is data["pair"]
    inverse = pairs.direction_inverse(space)
    assert inverse.is_leaf_node_fn is everything_is_a_leaf
    assert inverse.inv_is_leaf_node_fn is boxes_and_tuples_are_leaves


def test_a_leaf_function_that_goes_too_far():
    with pytest.raises(TypeError, match=r"^a: the leaf function says that Box.* is not a leaf, but it has no children"):
        IterativeTransformation(IdentityTransformation(), lambda space: False).get_target_space_from_source(
            DictSpace(N, {"a": floats(N)})
        )


def test_find_leaf_source_space():
    space = numbers(N)
    assert find_leaf_source_space(space, default_is_leaf_fn) is space["joints"]
    assert find_leaf_source_space(space, everything_is_a_leaf) is space
    assert find_leaf_source_space(DictSpace(N, {}), default_is_leaf_fn) is None
    assert find_leaf_source_space(None, default_is_leaf_fn) is None


def test_leafwise_wants_one_transformation_per_leaf():
    space = numbers(N)
    too_few, too_many = (LeafwiseTransformation([IdentityTransformation()] * count) for count in (2, 4))
    for transformation in (too_few, too_many):
        with pytest.raises(ValueError, match=r"has 3 leaves for \d transformations"):
            transformation.get_target_space_from_source(space)
    with pytest.raises(ValueError, match="more leaves than the 2 transformations"):
        too_few.transform(space, sample(space))


def test_leaves_are_checked_and_closed():
    with pytest.raises(TypeError, match="transformation: int, it must be a DataTransformation"):
        IterativeTransformation(3)
    with pytest.raises(TypeError, match="0: str, it must be a DataTransformation"):
        LeafwiseTransformation(["crop"])
    member = Closing()
    IterativeTransformation(member).close()
    LeafwiseTransformation([member, member]).close()
    assert member.closed == 3


# -- the axis of size one ----------------------------------------------------------------------------------


@per_backend
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_batchify_inserts_an_axis(backend_name, axis):
    backend = named(backend_name)
    space = BoxSpace(backend, [[0, 1, 2], [3, 4, 5]], 9, "float32")
    data = sample(space)
    batchify = BatchifyTransformation(axis)
    result = batchify.transform(space, data)
    target = batchify.get_target_space_from_source(space)
    assert result in target
    np.testing.assert_array_equal(backend.to_numpy(result), np.expand_dims(backend.to_numpy(data), axis))
    np.testing.assert_array_equal(backend.to_numpy(target.low), np.expand_dims(backend.to_numpy(space.low), axis))
    inverse = batchify.direction_inverse()
    assert isinstance(inverse, UnBatchifyTransformation)
    assert inverse.axis == axis
    assert isinstance(inverse.direction_inverse(), BatchifyTransformation)
    assert inverse.get_target_space_from_source(target) == space
    np.testing.assert_array_equal(backend.to_numpy(inverse.transform(target, result)), backend.to_numpy(data))


def every_kind():
    box = BoxSpace(N, 0, 1, "float32", shape=(2,))
    return [
        box,
        BinarySpace(N, (2, 3)),
        TextSpace(N, 5),
        UnionSpace(N, [box, TextSpace(N, 3)]),
        DynamicBoxSpace(N, 0, 1, (1, 2), (3, 2), "float32"),
        GraphSpace(N, box, box, is_edge=True, max_nodes=4, max_edges=4),
        BatchedSpace(TextSpace(N, 5), (2,)),
        DictSpace(N, {"a": box, "b": {"c": TextSpace(N, 5)}}),
        TupleSpace(N, [box, BinarySpace(N, ())]),
    ]


@pytest.mark.parametrize("space", every_kind(), ids=lambda space: type(space).__name__)
def test_batchify_makes_a_batch_of_one_of_every_kind(space):
    data = sample(space)
    batchify = BatchifyTransformation()
    target = batchify.get_target_space_from_source(space)
    assert target == batch_utils.batch_space(space, 1)
    result = batchify.transform(space, data)
    assert result in target
    inverse = batchify.direction_inverse(space)
    assert inverse.get_target_space_from_source(target) == space
    recovered = inverse.transform(target, result)
    assert recovered in space
    if not isinstance(space, GraphSpace):
        np.testing.assert_equal(recovered, data)


def test_data_may_have_further_axes_in_front():
    space = BoxSpace(N, 0, 1, "float32", shape=(2, 3))
    result = BatchifyTransformation(1).transform(space, np.zeros((7, 2, 3), np.float32))
    assert result.shape == (7, 2, 1, 3)


def test_only_an_axis_of_size_one_can_be_removed():
    space = DictSpace(N, {"a": BinarySpace(N, (1, 2)), "b": {"c": BinarySpace(N, (2, 2))}})
    with pytest.raises(ValueError, match=r"^b/c: axis 0 of shape \(2, 2\) has size 2, only one of size 1"):
        UnBatchifyTransformation().get_target_space_from_source(space)
    with pytest.raises(ValueError, match="axis 5 is out of range for 3 axes"):
        BatchifyTransformation(5).get_target_space_from_source(BinarySpace(N, (2, 2)))
    with pytest.raises(ValueError, match="axis 0 is out of range for 0 axes"):
        UnBatchifyTransformation().get_target_space_from_source(BinarySpace(N, ()))
    with pytest.raises(ValueError, match="has no batch axis to remove"):
        UnBatchifyTransformation().get_target_space_from_source(TextSpace(N, 5))
    with pytest.raises(TypeError):
        BatchifyTransformation(1.5)
