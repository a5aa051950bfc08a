import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformation_cases import BACKENDS, named, sample

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BinarySpace, BoxSpace, DictSpace
from unienv_interface.transformations import (
    ChainedTransformation,
    DictTransformation,
    IterativeTransformation,
    RescaleTransformation,
    json_to_transformation,
    transformation_to_json,
)

per_backend = pytest.mark.parametrize("backend_name", BACKENDS)


def box(low, high, dtype="float32", **kwargs):
    return BoxSpace(NumpyComputeBackend, low, high, dtype, **kwargs)


# -- values ------------------------------------------------------------------------------------------------


@per_backend
def test_maps_linearly(backend_name):
    backend = named(backend_name)
    space = BoxSpace(backend, [0.0, -2.0], [10.0, 2.0], "float32")
    data = backend.from_numpy(np.array([[0.0, 0.0], [5.0, -2.0], [10.0, 1.0]], np.float32))
    batch = BoxSpace(backend, [[0.0, -2.0]], [[10.0, 2.0]], "float32", shape=(3, 2))
    result = RescaleTransformation(-1, 1).transform(batch, data)
    np.testing.assert_allclose(backend.to_numpy(result), [[-1, 0], [0, -1], [1, 0.5]])
    np.testing.assert_array_equal(backend.to_numpy(result), RescaleTransformation(-1, 1).transform(space, data))


@per_backend
def test_the_ends_map_to_the_ends(backend_name):
    backend = named(backend_name)
    space = BoxSpace(backend, [-7, 0, 100], [9, 255, 101], "int32")
    target = RescaleTransformation(-0.3, 0.7).get_target_space_from_source(space)
    for end in ("low", "high"):
        mapped = RescaleTransformation(-0.3, 0.7).transform(space, getattr(space, end))
        np.testing.assert_allclose(backend.to_numpy(mapped), backend.to_numpy(getattr(target, end)), atol=1e-6)


def test_a_zero_width_entry_becomes_new_low():
    space = box([1.0, 0.0], [1.0, 4.0])
    transformation = RescaleTransformation(-1.0, 1.0)
    result = transformation.transform(space, np.float32([1.0, 1.0]))
    np.testing.assert_array_equal(result, np.float32([-1.0, -0.5]))
    target = transformation.get_target_space_from_source(space)
    np.testing.assert_array_equal(transformation.direction_inverse(space).transform(target, result), [1.0, 1.0])


def test_a_width_below_the_smallest_normal_number_counts_as_none():
    space = box(0.0, float(np.float32(1e-44)), shape=(2,))
    np.testing.assert_array_equal(RescaleTransformation().transform(space, space.high), [-1.0, -1.0])


@per_backend
def test_nan_to_replaces_nan(backend_name):
    backend = named(backend_name)
    space = BoxSpace(backend, [0.0, 1.0, 2.0], 4.0, "float32")
    data = backend.from_numpy(np.array([np.nan, 4.0, np.nan], np.float32))
    kept = RescaleTransformation(0, 1).transform(space, data)
    np.testing.assert_array_equal(backend.to_numpy(kept), [np.nan, 1.0, np.nan])
    replaced = RescaleTransformation(0, 1, nan_to=0.25).transform(space, data)
    np.testing.assert_array_equal(backend.to_numpy(replaced), [0.25, 1.0, 0.25])
    per_entry = RescaleTransformation(0, 100, "uint8", nan_to=[10, 20, 30]).transform(space, data)
    np.testing.assert_array_equal(backend.to_numpy(per_entry), np.array([10, 100, 30], np.uint8))


def test_what_lies_outside_goes_to_the_nearer_end():
    result = RescaleTransformation(0, 255, "uint8").transform(box(-1, 1, shape=(3,)), np.float32([-5, 0.5, np.inf]))
    np.testing.assert_array_equal(result, np.array([0, 191, 255], np.uint8))


def test_data_without_axes_stays_an_array():
    space = box(0.0, 2.0)
    result = RescaleTransformation().transform(space, np.array(0.5, np.float32))
    assert isinstance(result, np.ndarray)
    assert result.shape == ()
    assert result == np.float32(-0.5)


def test_an_empty_box():
    space = box(0.0, 2.0, shape=(0, 3))
    assert RescaleTransformation().transform(space, np.zeros((0, 3), np.float32)).shape == (0, 3)


# -- integers ----------------------------------------------------------------------------------------------


@per_backend
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_the_whole_range_of_an_integer_dtype_and_back(backend_name, dtype):
    backend = named(backend_name)
    if backend.dtype_name(backend.dtype_from_name(dtype)) != dtype:
        pytest.skip(f"{backend} has no {dtype} here")
    space = BoxSpace(backend, -np.inf, np.inf, dtype, shape=(3,))
    limits = np.iinfo(dtype)
    data = backend.from_numpy(np.array([limits.min, limits.max, limits.max // 3], dtype))
    transformation = RescaleTransformation()
    unit = transformation.transform(space, data)
    np.testing.assert_allclose(backend.to_host(unit)[:2], [-1, 1])
    target = transformation.get_target_space_from_source(space)
    recovered = transformation.direction_inverse(space).transform(target, unit)
    assert recovered in space
    found, wanted = (backend.to_numpy(x).tolist() for x in (recovered, data))
    assert found[:2] == wanted[:2]
    # the third survives as far as the float between can hold it
    resolution = np.finfo(backend.to_host(unit).dtype).eps * float(limits.max)
    assert abs(found[2] - wanted[2]) <= 2 * resolution


@per_backend
def test_integers_that_floats_cannot_tell_apart(backend_name):
    backend = named(backend_name)
    dtype, start = ("int32", 2**30) if backend_name == "jax" else ("int64", 2**60)
    space = BoxSpace(backend, start, start + 10, dtype, shape=(11,))
    data = backend.from_numpy(np.arange(start, start + 11, dtype=dtype))
    transformation = RescaleTransformation(0, 1)
    unit = transformation.transform(space, data)
    np.testing.assert_allclose(backend.to_host(unit), np.arange(11) / 10, atol=1e-6)
    target = transformation.get_target_space_from_source(space)
    np.testing.assert_array_equal(
        backend.to_numpy(transformation.direction_inverse(space).transform(target, unit)), backend.to_numpy(data)
    )


def test_integer_results_are_rounded():
    space = box(0.0, 1.0, shape=(4,))
    result = RescaleTransformation(0, 10, "int8").transform(space, np.float32([0.0, 0.04, 0.06, 0.99]))
    np.testing.assert_array_equal(result, np.array([0, 0, 1, 10], np.int8))


# -- dtypes and spaces -------------------------------------------------------------------------------------


@per_backend
def test_the_dtype_of_results(backend_name):
    backend = named(backend_name)
    half = BoxSpace(backend, 0, 1, "float16", shape=(3,))
    assert RescaleTransformation().get_target_space_from_source(half).dtype == half.dtype
    integers = BoxSpace(backend, 0, 255, "uint8", shape=(3,))
    default = RescaleTransformation().get_target_space_from_source(integers)
    assert default.dtype == backend.default_floating_dtype
    for dtype in ("float16", backend.dtype_from_name("float16"), np.float16):
        transformation = RescaleTransformation(new_dtype=dtype)
        assert transformation.new_dtype == "float16"
        target = transformation.get_target_space_from_source(integers)
        assert target.dtype_name == "float16"
        assert backend.dtype_name(transformation.transform(integers, sample(integers)).dtype) == "float16"


def test_bfloat16():
    backend = named("pytorch")
    space = BoxSpace(backend, [-1.0, 0.0], [1.0, 3.0], "bfloat16")
    transformation = RescaleTransformation([0.1, 0.2], 0.7)
    assert transformation.transform(space, sample(space)) in transformation.get_target_space_from_source(space)


@pytest.mark.parametrize("with_space", [False, True])
def test_new_dtype_and_arrays_survive_json(with_space):
    space = box([0, 0], [1, 9])
    told = space if with_space else None
    first = RescaleTransformation(np.float32([0.1, 0.2]), 5, new_dtype=np.dtype("float64"), nan_to=1)
    again = json_to_transformation(json.loads(json.dumps(transformation_to_json(first, told))), told)
    assert again.new_dtype == "float64"
    assert again.new_low.dtype == np.float32
    np.testing.assert_array_equal(again.new_low, first.new_low)
    assert (again.new_high, again.nan_to) == (5, 1)


def test_bounds_stored_with_different_shapes_can_be_inverted():
    space = box([0.0, 1.0, 2.0], 4.0)  # low is kept as three numbers, high as one
    data = np.float32([0.5, 1.5, 3.0])
    transformation = RescaleTransformation()
    target = transformation.get_target_space_from_source(space)
    recovered = transformation.direction_inverse(space).transform(target, transformation.transform(space, data))
    np.testing.assert_allclose(recovered, data, atol=1e-6)


def test_the_inverse_from_a_batched_space_suits_a_single_value():
    batch = box([[0.0, 10.0]], [[1.0, 20.0]], shape=(5, 2))
    inverse = RescaleTransformation().direction_inverse(batch)
    single = box(-1, 1, shape=(2,))
    assert inverse.get_target_space_from_source(single) == box([0.0, 10.0], [1.0, 20.0])
    np.testing.assert_allclose(inverse.transform(single, np.float32([0, 0])), [0.5, 15.0])


def test_settings_belong_to_the_transformation():
    low = np.zeros(2)
    transformation = RescaleTransformation(low, 1.0)
    low[:] = 9
    np.testing.assert_array_equal(transformation.new_low, [0, 0])
    with pytest.raises(ValueError, match="read-only"):
        transformation.new_low[0] = 1
    with pytest.raises(AttributeError):
        transformation.new_low = 1


# -- extremes ----------------------------------------------------------------------------------------------


@per_backend
def test_bounds_as_wide_as_the_dtype(backend_name):
    backend = named(backend_name)
    largest = float(np.finfo(np.float32).max)
    space = BoxSpace(backend, [-largest, 0.0], [largest, 1.0], "float32")
    data = backend.from_numpy(np.array([largest / 2, 0.25], np.float32))
    transformation = RescaleTransformation()
    result = transformation.transform(space, data)
    np.testing.assert_allclose(backend.to_numpy(result), [0.5, -0.5], rtol=1e-6)
    target = transformation.get_target_space_from_source(space)
    recovered = transformation.direction_inverse(space).transform(target, result)
    np.testing.assert_allclose(backend.to_numpy(recovered), backend.to_numpy(data), rtol=1e-6)


FLOATS = {"float16": 11, "float32": 24, "float64": 53}
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@st.composite
def bounded_boxes(draw):
    dtype = draw(st.sampled_from([*FLOATS, *INTEGERS]))
    if dtype in FLOATS:
        largest = float(np.finfo(dtype).max)
        number = st.floats(-largest, largest, width=int(dtype[5:]))
    else:
        limits = np.iinfo(dtype)
        number = st.integers(int(limits.min), int(limits.max))
    pairs = [sorted(draw(st.tuples(number, number))) for _ in range(3)]
    return box(*np.array(pairs, dtype).T, dtype)


@given(
    bounded_boxes(),
    st.sampled_from([(-1.0, 1.0), (0, 255), (-0.1, 0.1), ([0.0, -5.0, 3.0], [1.0, 5.0, 3.0]), (-1e30, 1e30)]),
    st.sampled_from([None, "float32", "float64", "int64", "uint8"]),
    st.integers(0, 2**32 - 1),
)
def test_any_bounds_map_into_the_new_ones_and_back(space, new_bounds, dtype, seed):
    transformation = RescaleTransformation(*new_bounds, dtype)
    try:
        target = transformation.get_target_space_from_source(space)
    except ValueError:  # the new bounds do not fit the dtype
        return
    inverse = transformation.direction_inverse(space)
    for data in (sample(space, seed), space.low, space.high):
        result = transformation.transform(space, data)
        assert result in target
        assert inverse.transform(target, result) in space
    low, high = (bound.astype(object) for bound in (space.low, space.high))
    np.testing.assert_array_equal(transformation.transform(space, space.low), target.low)
    top = transformation.transform(space, space.high)
    smallest = 4 * np.finfo(np.float64 if space.dtype_name == "float64" else np.float32).smallest_normal
    has_width = (high - low >= smallest).astype(bool)
    np.testing.assert_allclose(top[has_width].astype(float), target.high[has_width].astype(float), rtol=1e-6, atol=1e-6)


@given(bounded_boxes(), st.integers(0, 2**32 - 1))
def test_any_data_is_recovered_up_to_the_precision_of_its_dtype(space, seed):
    transformation = RescaleTransformation(0, 1, "float64")
    target = transformation.get_target_space_from_source(space)
    data = sample(space, seed)
    recovered = transformation.direction_inverse(space).transform(target, transformation.transform(space, data))
    reach = np.maximum(np.abs(space.low.astype(float)), np.abs(space.high.astype(float)))
    precision = 2.0 ** -FLOATS.get(space.dtype_name, 53)
    allowed = np.minimum(8 * precision * reach, 1e300) + 1e-300
    if space.dtype_name in INTEGERS:
        allowed = np.where(reach < 2**50, 0, allowed)
    difference = np.abs(recovered.astype(object) - data.astype(object)).astype(float)
    assert (difference <= allowed).all()


# -- errors ------------------------------------------------------------------------------------------------


def test_an_unbounded_source_is_refused_with_the_place():
    with pytest.raises(ValueError, match=r"high is inf at \(1,\), rescaling wants finite bounds on both sides: crop"):
        RescaleTransformation().get_target_space_from_source(box([0.0, 0.0], [1.0, np.inf]))
    with pytest.raises(ValueError, match=r"low is -inf, rescaling"):
        RescaleTransformation().transform(box(-np.inf, 1.0, shape=(2,)), np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="low is -inf"):
        RescaleTransformation().direction_inverse(box(-np.inf, 1.0, shape=(2,)))


def test_the_place_has_the_path_of_the_child():
    space = DictSpace(NumpyComputeBackend, {"obs": {"velocity": box([0, 0], [1.0, np.inf])}})
    expected = r"^obs/velocity: high is inf at \(1,\)"
    for transformation in (
        IterativeTransformation(RescaleTransformation()),
        DictTransformation({"obs/velocity": RescaleTransformation()}),
    ):
        with pytest.raises(ValueError, match=expected):
            transformation.get_target_space_from_source(space)
        with pytest.raises(ValueError, match=expected):
            transformation.transform(space, {"obs": {"velocity": np.zeros(2, np.float32)}})
    with pytest.raises(ValueError, match=r"^\[0\]/obs/velocity: high is inf"):
        ChainedTransformation([IterativeTransformation(RescaleTransformation())]).transform(space, {})


def test_the_inverse_wants_the_source_space():
    with pytest.raises(ValueError, match=r"the inverse of RescaleTransformation\(.*\) depends on the source space"):
        RescaleTransformation().direction_inverse()


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"new_low": 2, "new_high": 1}, ValueError, "new_low 2 is above new_high 1"),
        ({"new_low": [0, 3], "new_high": [1, 2]}, ValueError, r"new_low 3 is above new_high 2 at \(1,\)"),
        ({"new_low": [0, 3], "new_high": [1, 2, 3]}, ValueError, "do not broadcast"),
        ({"new_high": np.inf}, ValueError, "new_high is inf, an end of the new bounds must be finite"),
        ({"new_low": np.nan}, ValueError, "new_low holds NaN"),
        ({"new_low": "a"}, TypeError, "new_low is str, it must be a number or an array"),
        ({"new_low": True}, TypeError, "new_low is bool"),
        ({"new_low": ["a"]}, TypeError, "it must be a real number or an array of them"),
        ({"nan_to": 3}, ValueError, "nan_to 3 is above new_high 1.0"),
        ({"nan_to": -3}, ValueError, "new_low -1.0 is above nan_to -3"),
        (
            {"new_dtype": "bool"},
            ValueError,
            "new_dtype is 'bool', a box of real numbers wants one of integers or floats",
        ),
        ({"new_dtype": "os.system"}, ValueError, "new_dtype is 'os.system'"),
    ],
)
def test_settings_are_checked(settings, error, text):
    with pytest.raises(error, match=text):
        RescaleTransformation(**settings)


def test_source_spaces_are_checked():
    with pytest.raises(TypeError, match="RescaleTransformation wants a BoxSpace, not Binary"):
        RescaleTransformation().get_target_space_from_source(BinarySpace(NumpyComputeBackend, (2,)))
    with pytest.raises(TypeError, match=r"wants real numbers, the dtype of .* is complex64"):
        RescaleTransformation().get_target_space_from_source(box(-np.inf, np.inf, "complex64", shape=(2,)))
    with pytest.raises(ValueError, match=r"new_low and new_high do not suit Box.*does not fit uint8"):
        RescaleTransformation(-1, 1, "uint8").get_target_space_from_source(box(0, 1))
    with pytest.raises(ValueError, match=r"shape \(3,\), which does not broadcast to \(2,\)"):
        RescaleTransformation([0, 0, 0], 1).get_target_space_from_source(box(0, 1, shape=(2,)))


# -- cost --------------------------------------------------------------------------------------------------


def test_spaces_are_worked_out_once(monkeypatch):
    transformation = RescaleTransformation()
    asked = []
    original = RescaleTransformation.get_target_space_from_source
    monkeypatch.setattr(
        RescaleTransformation,
        "get_target_space_from_source",
        lambda self, space: asked.append(space) or original(self, space),
    )
    space = box([0, 1], [2, 3])
    for _ in range(3):
        transformation.transform(space, space.low)
        transformation.transform(box([0, 1], [2, 3]), space.low)  # an equal space is the same space
    assert len(asked) == 1
    for high in range(300):
        transformation.transform(box(0, 1 + high, shape=(2,)), space.low)
    assert len(transformation._plans) <= 256
