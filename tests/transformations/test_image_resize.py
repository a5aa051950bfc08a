import numpy as np
import pytest
from transformation_cases import BACKENDS, named, sample

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BinarySpace, BoxSpace
from unienv_interface.transformations import ImageResizeTransformation

per_backend = pytest.mark.parametrize("backend_name", BACKENDS)
SIZES = [((4, 6), (3, 8)), ((7, 5), (7, 2)), ((5, 5), (1, 1)), ((1, 1), (3, 2)), ((9, 12), (3, 4)), ((3, 4), (10, 11))]


def interpolated(images, new_size):
    """The independent source: torch on float64, over any leading axes."""
    torch = pytest.importorskip("torch")
    stacked = torch.from_numpy(np.asarray(images, np.float64)).reshape((-1, *images.shape[-3:])).permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(
        stacked, size=new_size, mode="bilinear", align_corners=False, antialias=False
    )
    return resized.permute(0, 2, 3, 1).reshape((*images.shape[:-3], *new_size, images.shape[-1])).numpy()


@pytest.mark.parametrize("backend_name", ["numpy", "pytorch"])
@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_floats_against_torch(backend_name, old, new, channels):
    backend = named(backend_name)
    space = BoxSpace(backend, -2.0, 2.0, "float32", shape=(*old, channels))
    images = sample(space)
    result = ImageResizeTransformation(*new).transform(space, images)
    np.testing.assert_allclose(backend.to_numpy(result), interpolated(backend.to_numpy(images), new), atol=1e-6)


@per_backend
def test_uint8_stays_uint8_with_any_number_of_leading_axes(backend_name):
    backend = named(backend_name)
    for leading in ((2, 1, 3), (2,), ())[: 1 if backend_name == "jax" else 3]:  # JAX compiles every shape
        space = BoxSpace(backend, 0, 255, "uint8", shape=(*leading, 4, 6, 3))
        images = sample(space)
        transformation = ImageResizeTransformation(3, 8)
        result = transformation.transform(space, images)
        target = transformation.get_target_space_from_source(space)
        assert result in target
        assert target == BoxSpace(backend, 0, 255, "uint8", shape=(*leading, 3, 8, 3))
        exact = interpolated(backend.to_numpy(images), (3, 8))
        assert np.abs(backend.to_numpy(result) - exact).max() <= 0.5 + 1e-3  # rounded to the nearest


@pytest.mark.parametrize("backend_name", ["numpy", "pytorch"])
@pytest.mark.parametrize("dtype", ["uint16", "int16", "int32", "int64", "uint64", "float16", "float64"])
def test_other_dtypes(backend_name, dtype):
    backend = named(backend_name)
    high = 1000 if dtype.startswith("float") else np.iinfo(dtype).max
    space = BoxSpace(backend, 0, high, dtype, shape=(4, 6, 1))
    transformation = ImageResizeTransformation(3, 8)
    for images in (sample(space), space.high):
        result = transformation.transform(space, images)
        assert result in transformation.get_target_space_from_source(space)
        exact = interpolated(backend.to_numpy(images), (3, 8))
        np.testing.assert_allclose(backend.to_numpy(result).astype(float), exact, rtol=1e-3, atol=0.51)


def test_an_image_of_one_colour_keeps_it_exactly():
    space = BoxSpace(NumpyComputeBackend, 0.0, 1.0, "float32", shape=(7, 9, 3))
    images = np.full((7, 9, 3), 0.1, np.float32)
    result = ImageResizeTransformation(13, 4).transform(space, images)
    np.testing.assert_array_equal(result, np.full((13, 4, 3), 0.1, np.float32))


def test_the_same_size_returns_the_data():
    space = BoxSpace(NumpyComputeBackend, 0, 255, "uint8", shape=(4, 6, 3))
    images = sample(space)
    np.testing.assert_array_equal(ImageResizeTransformation(4, 6).transform(space, images), images)


def test_bounds_that_vary_become_the_widest_of_their_channel():
    low = np.zeros((2, 2, 2), np.float32)
    low[0, 1] = [-1, -2]
    space = BoxSpace(NumpyComputeBackend, low, [1.0, 5.0], "float32")
    target = ImageResizeTransformation(3, 3).get_target_space_from_source(space)
    assert target == BoxSpace(NumpyComputeBackend, [-1.0, -2.0], [1.0, 5.0], "float32", shape=(3, 3, 2))


def test_the_inverse_has_the_size_of_the_source():
    space = BoxSpace(NumpyComputeBackend, 0, 255, "uint8", shape=(2, 4, 6, 3))
    transformation = ImageResizeTransformation(3, 8)
    inverse = transformation.direction_inverse(space)
    assert (inverse.new_height, inverse.new_width) == (4, 6)
    assert inverse.get_target_space_from_source(transformation.get_target_space_from_source(space)) == space
    with pytest.raises(ValueError, match="depends on the source space: pass source_space"):
        transformation.direction_inverse()


def test_errors():
    transformation = ImageResizeTransformation(3, 8)
    with pytest.raises(ValueError, match="new_height is 0, it must be at least 1"):
        ImageResizeTransformation(0, 3)
    with pytest.raises(TypeError):
        ImageResizeTransformation(2.5, 3)
    with pytest.raises(ValueError, match="at least three axes, the last being height, width and channels"):
        transformation.get_target_space_from_source(BoxSpace(NumpyComputeBackend, 0, 1, "float32", shape=(4, 6)))
    with pytest.raises(ValueError, match="at least one pixel"):
        transformation.get_target_space_from_source(BoxSpace(NumpyComputeBackend, 0, 1, "float32", shape=(0, 6, 3)))
    with pytest.raises(TypeError, match="ImageResizeTransformation wants a BoxSpace, not Binary"):
        transformation.get_target_space_from_source(BinarySpace(NumpyComputeBackend, (4, 6, 3)))
