import numpy as np
import pytest
from transformation_cases import BACKENDS, named, sample

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace
from unienv_interface.transformations import CropTransformation, IdentityTransformation

per_backend = pytest.mark.parametrize("backend_name", BACKENDS)


def box(low, high, dtype="float32", **kwargs):
    return BoxSpace(NumpyComputeBackend, low, high, dtype, **kwargs)


@per_backend
def test_clamps(backend_name):
    backend = named(backend_name)
    space = BoxSpace(backend, -np.inf, np.inf, "float32", shape=(2, 3))
    data = backend.from_numpy(np.array([[-5, 0.5, np.nan], [5, -0.5, np.inf]], np.float32))
    result = CropTransformation([-1, 0, -2], 1).transform(space, data)
    np.testing.assert_array_equal(backend.to_numpy(result), np.array([[-1, 0.5, np.nan], [1, 0, 1]], np.float32))


@per_backend
def test_wide_ends_leave_data_as_it_is_bit_by_bit(backend_name):
    backend = named(backend_name)
    for dtype in ("float32", "uint8", "int32"):
        space = BoxSpace(backend, 0, 100, dtype, shape=(3,))
        data = sample(space)
        transformation = CropTransformation(-1e9, 1e9)
        assert transformation.get_target_space_from_source(space) == space
        result = transformation.transform(space, data)
        assert backend.to_numpy(result).tobytes() == backend.to_numpy(data).tobytes()


def test_the_inverse_is_the_identity():
    transformation = CropTransformation(0, 1)
    assert transformation.has_inverse
    assert isinstance(transformation.direction_inverse(), IdentityTransformation)


def test_any_number_of_leading_axes_may_be_missing_in_the_ends():
    space = box(-9, 9, shape=(2, 4, 5, 3))
    transformation = CropTransformation([-1, -2, -3], np.float32([1, 2, 3]))
    result = transformation.transform(space, sample(space))
    assert result in transformation.get_target_space_from_source(space)
    low, high = transformation.get_crop_range(space)
    assert low.shape == high.shape == (2, 4, 5, 3)
    np.testing.assert_array_equal(low[1, 3, 4], [-1, -2, -3])
    assert high.dtype == np.float32


def test_the_target_is_the_range_of_the_results():
    assert CropTransformation(0, 5).get_target_space_from_source(box(-1, 1)) == box(0, 1)
    assert CropTransformation(2, 3).get_target_space_from_source(box(0, 1)) == box(2, 2)
    unbounded = box([-np.inf, 0], np.inf)
    assert CropTransformation(-np.inf, 5).get_target_space_from_source(unbounded) == box([-np.inf, 0], 5)


@per_backend
def test_integers_stay_integers(backend_name):
    backend = named(backend_name)
    space = BoxSpace(backend, 0, 255, "uint8", shape=(3,))
    transformation = CropTransformation([-100, 2.5, 0], [300, 250, 9.5])
    target = BoxSpace(backend, [0, 3, 0], [255, 250, 9], "uint8")
    assert transformation.get_target_space_from_source(space) == target
    data = backend.from_numpy(np.array([255, 0, 200], np.uint8))
    np.testing.assert_array_equal(backend.to_numpy(transformation.transform(space, data)), [255, 3, 9])


@pytest.mark.parametrize("backend_name", ["numpy", "pytorch"])
@pytest.mark.parametrize("dtype", ["int64", "uint16", "uint32", "uint64"])
def test_large_integers_exactly(backend_name, dtype):
    backend = named(backend_name)
    limits = np.iinfo(dtype)
    space = BoxSpace(backend, -np.inf, np.inf, dtype, shape=(3,))
    data = backend.from_numpy(np.array([limits.min, limits.max, limits.max - 1], dtype))
    transformation = CropTransformation(int(limits.min) + 1, int(limits.max) - 1)
    expected = [limits.min + 1, limits.max - 1, limits.max - 1]
    result = transformation.transform(space, data)
    assert backend.to_numpy(result).tolist() == expected
    assert result in transformation.get_target_space_from_source(space)


@pytest.mark.parametrize("backend_name", ["pytorch", "jax"])
@pytest.mark.parametrize("ends", [(0.1, 0.7), ([0.1, 0.2, 0.3], 0.7)])
def test_narrow_floats(backend_name, ends):
    backend = named(backend_name)
    for dtype in ("bfloat16", "float16"):
        space = BoxSpace(backend, -1, 1, dtype, shape=(3,))
        transformation = CropTransformation(*ends)
        for data in (space.low, space.high, sample(space)):
            assert transformation.transform(space, data) in transformation.get_target_space_from_source(space)


def test_data_of_a_narrower_dtype_gets_the_dtype_of_the_space():
    space = box(0, 1000, "int32", shape=(2,))
    result = CropTransformation(300, 500).transform(space, np.array([7, 255], np.uint8))
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, [300, 300])


@pytest.mark.parametrize(
    ("low", "high", "error", "text"),
    [
        (2, 1, ValueError, "crop_low 2 is above crop_high 1"),
        (np.nan, 1, ValueError, "crop_low holds NaN"),
        (np.inf, np.inf, ValueError, r"crop_low is \+inf"),
        (None, 1, TypeError, "crop_low is NoneType, it must be a number or an array"),
    ],
)
def test_settings_are_checked(low, high, error, text):
    with pytest.raises(error, match=text):
        CropTransformation(low, high)


def test_source_spaces_are_checked():
    crop = CropTransformation(0.25, 0.75)
    crop.validate_source_space(box(0, 1))
    with pytest.raises(TypeError, match="CropTransformation wants a BoxSpace, not Dict"):
        crop.validate_source_space(DictSpace(NumpyComputeBackend, {}))
    with pytest.raises(ValueError, match=r"crop_low and crop_high do not suit Box.*low 1 is above high 0"):
        crop.validate_source_space(box(0, 5, "int32"))
    with pytest.raises(ValueError, match="no value of uint8 lies between them"):
        CropTransformation(300, 400).validate_source_space(box(0, 5, "uint8"))
    with pytest.raises(ValueError, match=r"does not broadcast to \(2,\)"):
        CropTransformation([1, 2, 3], 4).validate_source_space(box(0, 5, shape=(2,)))
