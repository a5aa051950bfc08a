"""What holds for every transformation on every backend."""

import copy
import json
import pickle

import numpy as np
import pytest
from transformation_cases import BACKENDS, CASES, assert_same, host, named, sample

from unienv_interface.space.space_utils import batch_utils
from unienv_interface.transformations import DataTransformation, json_to_transformation, transformation_to_json

per_case = pytest.mark.parametrize("case", CASES, ids=str)
per_backend = pytest.mark.parametrize("backend_name", BACKENDS)


@per_backend
@per_case
def test_results_lie_in_the_target_space(case, backend_name):
    space = case.space(named(backend_name))
    target = case.transformation.get_target_space_from_source(space)
    for seed in range(3):
        assert case.transformation.transform(space, sample(space, seed)) in target


@per_backend
@per_case
def test_inverse_recovers_the_data(case, backend_name):
    backend = named(backend_name)
    space = case.space(backend)
    transformation = case.transformation
    if not transformation.has_inverse:
        with pytest.raises(TypeError, match="has no inverse"):
            transformation.direction_inverse(space)
        return
    inverse = transformation.direction_inverse(space)
    target = transformation.get_target_space_from_source(space)
    data = sample(space)
    recovered = inverse.transform(target, transformation.transform(space, data))
    assert recovered in inverse.get_target_space_from_source(target)
    if case.tolerance is not None:
        assert recovered in space
        assert_same(host(backend, recovered), host(backend, data), case.tolerance)


@per_backend
@per_case
@pytest.mark.parametrize("with_space", [False, True], ids=["bare", "with-space"])
def test_json_round_trip(case, backend_name, with_space):
    backend = named(backend_name)
    space = case.space(backend)
    told = space if with_space else None
    assert "type" not in case.transformation.serialize(told)
    text = json.dumps(transformation_to_json(case.transformation, told))
    again = json_to_transformation(json.loads(text), told)
    assert type(again) is type(case.transformation)
    assert again.get_target_space_from_source(space) == case.transformation.get_target_space_from_source(space)
    assert json.dumps(transformation_to_json(again, told)) == text
    data = sample(space)
    results = (t.transform(space, data) for t in (again, case.transformation))
    assert_same(*(host(backend, result) for result in results))


@per_case
def test_json_of_the_inverse_round_trips(case):
    backend = named("numpy")
    space = case.space(backend)
    if not case.transformation.has_inverse:
        return
    inverse = case.transformation.direction_inverse(space)
    target = case.transformation.get_target_space_from_source(space)
    again = json_to_transformation(json.loads(json.dumps(transformation_to_json(inverse))))
    data = case.transformation.transform(space, sample(space))
    assert_same(again.transform(target, data), inverse.transform(target, data))


@per_backend
@pytest.mark.parametrize("case", [case for case in CASES if case.batches], ids=str)
@pytest.mark.parametrize("described_by", ["batched space", "single space"])
def test_a_batch_is_transformed_like_its_values(case, backend_name, described_by):
    backend = named(backend_name)
    space = case.space(backend)
    singles = [sample(space, seed) for seed in range(2)]
    batched = batch_utils.batch_space(space, 2)
    data = batch_utils.concatenate(space, singles)
    source = batched if described_by == "batched space" else space
    target = case.transformation.get_target_space_from_source(space)
    expected = batch_utils.concatenate(target, [case.transformation.transform(space, single) for single in singles])
    found = case.transformation.transform(source, data)
    assert_same(host(backend, found), host(backend, expected), 1e-6)
    batched_target = case.transformation.get_target_space_from_source(batched)
    assert found in batched_target
    assert batched_target == batch_utils.batch_space(target, 2)


@pytest.mark.parametrize("backend_name", ["numpy", "pytorch"])  # JAX arrays cannot be written to
@per_case
def test_the_data_given_stays_as_it_is(case, backend_name):
    backend = named(backend_name)
    space = case.space(backend)
    data, before_space = sample(space), copy.deepcopy(space)
    before = copy.deepcopy(data)
    result = case.transformation.transform(space, data)
    if case.transformation.has_inverse:
        target = case.transformation.get_target_space_from_source(space)
        kept = copy.deepcopy(result)
        case.transformation.direction_inverse(space).transform(target, result)
        assert_same(host(backend, result), host(backend, kept))
    assert_same(host(backend, data), host(backend, before))
    assert space == before_space


@per_backend
@per_case
def test_pickles_after_use(case, backend_name):
    backend = named(backend_name)
    space = case.space(backend)
    data = sample(space)
    before = case.transformation.transform(space, data)
    again = pickle.loads(pickle.dumps(case.transformation))
    assert_same(host(backend, again.transform(space, data)), host(backend, before))


@per_case
def test_prints_its_settings(case):
    text = repr(case.transformation)
    assert text.startswith(type(case.transformation).__name__ + "(")
    assert "_plans" not in text


ARRAY_CASES = [case for case in CASES if case.name.startswith(("rescale", "normalize", "crop", "resize"))]


@pytest.mark.parametrize("case", ARRAY_CASES, ids=str)
def test_results_stay_on_the_device_of_the_data(case):
    torch = pytest.importorskip("torch")
    space = case.space(named("pytorch"))
    case.transformation.transform(space, sample(space))  # constants for the CPU are there already
    elsewhere = torch.empty(space.shape, dtype=space.dtype, device="meta")
    result = case.transformation.transform(space, elsewhere)
    assert result.device.type == "meta"
    assert tuple(result.shape) == case.transformation.get_target_space_from_source(space).shape


@pytest.mark.parametrize("case", ARRAY_CASES, ids=str)
def test_runs_inside_a_jax_trace(case):
    jax = pytest.importorskip("jax")
    backend = named("jax")
    space = case.space(backend)
    data = sample(space)
    fresh = pickle.loads(pickle.dumps(case.transformation))  # its first use is inside the trace
    traced = jax.jit(lambda x: fresh.transform(space, x))(data)
    eager = fresh.transform(space, data)  # nothing of the trace may have been kept
    assert_same(host(backend, traced), host(backend, eager), 1e-6)


@pytest.mark.parametrize("case", ARRAY_CASES, ids=str)
def test_gradients_flow(case):
    torch = pytest.importorskip("torch")
    space = case.space(named("pytorch"))
    target = case.transformation.get_target_space_from_source(space)
    if not (space.dtype.is_floating_point and target.dtype.is_floating_point):
        return
    data = sample(space).requires_grad_()
    case.transformation.transform(space, data).sum().backward()
    assert torch.isfinite(data.grad).all()


def test_a_class_of_ones_own_needs_four_methods():
    class Negate(DataTransformation):
        def get_target_space_from_source(self, source_space):
            return source_space

        def transform(self, source_space, data):
            return -data

        def serialize(self, source_space=None):
            return {}

        @classmethod
        def deserialize_from(cls, json_data, source_space=None):
            return cls()

    negate = Negate()
    assert negate.has_inverse is False
    negate.close()
    np.testing.assert_array_equal(negate.transform(None, np.ones(2)), -np.ones(2))
    with pytest.raises(TypeError, match=r"Negate\(\) has no inverse"):
        negate.direction_inverse()
