"""Images as the bytes of their files."""

from __future__ import annotations

import io
import json
import pickle
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS

from unienv_data.transformations.image_compress import get_jpeg_compression_ratio
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.space_utils import batch_space
from unienv_interface.space.spaces import BoxSpace
from unienv_interface.transformations import (
    ImageCompressTransformation,
    ImageDecompressTransformation,
    json_to_transformation,
    transformation_to_json,
)

pillow = pytest.importorskip("PIL.Image")
every_backend = pytest.mark.parametrize("backend", BACKENDS, ids=str)


def images(shape: tuple[int, ...], backend: Any = NumpyComputeBackend) -> BoxSpace:
    return BoxSpace(backend, 0, 255, backend.dtype_from_name("uint8"), shape=shape)


def gradient(shape: tuple[int, ...]) -> np.ndarray:
    """Smooth images, no two alike."""
    return (np.arange(np.prod(shape)).reshape(shape) % 251).astype(np.uint8)


@every_backend
@pytest.mark.parametrize("shape", [(6, 8, 3), (6, 8, 1), (2, 3, 6, 8, 3)], ids=str)
def test_what_a_format_without_loss_keeps_comes_back(shape: tuple[int, ...], backend: Any) -> None:
    space = images(shape, backend)
    made = ImageCompressTransformation(max_size_bytes=2000, format="PNG")
    target = made.get_target_space_from_source(space)
    assert target.shape == (*shape[:-3], 2000)
    data = backend.from_numpy(gradient(shape), copy=True)
    files = made.transform(space, data)
    assert target.contains(files)
    inverse = made.direction_inverse(space)
    assert inverse.get_target_space_from_source(target) == space
    assert np.array_equal(backend.to_numpy(inverse.transform(target, files)), gradient(shape))
    batched = made.transform(batch_space(space, 2), backend.stack([data, data]))
    assert np.array_equal(backend.to_numpy(batched)[1], backend.to_numpy(files))


def test_an_image_without_channels() -> None:
    space = images((6, 8))
    made = ImageCompressTransformation(max_size_bytes=500, format="PNG", last_channel=False)
    files, inverse = made.transform(space, gradient((6, 8))), made.direction_inverse(space)
    target = made.get_target_space_from_source(space)
    assert np.array_equal(inverse.transform(target, files), gradient((6, 8)))
    assert inverse.direction_inverse(target).last_channel is False


def test_the_bytes_are_a_file_that_pillow_reads() -> None:
    file = ImageCompressTransformation(init_quality=90, compression_ratio=0.5).transform(
        images((16, 16, 3)), np.full((16, 16, 3), 90, np.uint8)
    )
    assert file.shape == (16 * 16 * 3 * 2 + 1,)
    assert np.abs(np.asarray(pillow.open(io.BytesIO(file.tobytes()))).astype(int) - 90).max() <= 2


def test_quality_goes_down_until_the_file_fits_or_it_is_an_error() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    made = ImageCompressTransformation(init_quality=95, max_size_bytes=2000)
    file, quality = made.encode_to_size(noise, 1500)
    assert len(file) <= 1500
    assert quality in range(25, 95, 10)
    with pytest.raises(ValueError, match=r"an image takes .* bytes as JPEG of quality 25, there is room for 100"):
        made.encode_to_size(noise, 100)


def test_the_size_follows_from_the_quality() -> None:
    assert [get_jpeg_compression_ratio(quality) for quality in (10, 55, 57, 70, 100)] == [25, 25, 24, 18, 3]
    target = ImageCompressTransformation(70).get_target_space_from_source(images((20, 10, 3)))
    assert target.shape == (600 // 18 + 1 + 1024,)
    target = ImageCompressTransformation(70, compression_ratio=18).get_target_space_from_source(images((20, 10, 3)))
    assert target.shape == (600 // 18 + 1,)


@pytest.mark.parametrize("size", [1, 4, 16, 32, 64, 128])
def test_images_of_any_size_fit_by_default(size: int) -> None:
    rows, columns = np.mgrid[:size, :size] / size
    scene = (np.sin(9 * rows + 3 * columns) + (columns > 0.5))[..., None].repeat(3, -1) * 60 + 100
    image = (scene + np.random.default_rng(0).normal(0, 4, scene.shape)).clip(0, 255).astype(np.uint8)
    made, space = ImageCompressTransformation(), images((size, size, 3))
    file = made.transform(space, image)
    found = made.direction_inverse(space).transform(made.get_target_space_from_source(space), file)
    assert np.abs(found.astype(int) - image).mean() < 12


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_size_bytes": 10, "compression_ratio": 2.0}, "give one"),
        ({"format": "PNG"}, "the compression ratio of PNG is not known: give max_size_bytes"),
        ({"max_size_bytes": 10, "header_bytes": 5}, "header_bytes is 5 and max_size_bytes 10: give one"),
        ({"compression_ratio": 0}, "compression_ratio is 0, it must be above 0"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ImageCompressTransformation(**settings)


def test_formats_that_there_are_none_of_are_refused() -> None:
    for kind, options in ((ImageCompressTransformation, {"max_size_bytes": 9}), (ImageDecompressTransformation, {})):
        for name in ("format", "mode"):
            size = {} if options else {"target_height": 2, "target_width": 2}
            with pytest.raises(TypeError, match=f"{name} is 7, wanted a name that Pillow knows"):
                kind(**{**options, **size, name: 7})
    with pytest.raises(ValueError, match="Pillow writes no format 'os"):
        ImageCompressTransformation(max_size_bytes=99, format="os.system").transform(
            images((2, 2, 3)), gradient((2, 2, 3))
        )
    with pytest.raises(ValueError, match="Pillow reads no format 'os"):
        ImageDecompressTransformation(2, 2, format="os.system").decode_bytes(b"file")


def test_what_holds_no_images_is_refused() -> None:
    made = ImageCompressTransformation(max_size_bytes=10)
    floats = BoxSpace(NumpyComputeBackend, 0.0, 1.0, np.float32, shape=(4, 4, 3))
    for space in (images((4, 4, 2)), images((4, 4)), floats):
        with pytest.raises(ValueError, match="wants uint8 of shape"):
            made.get_target_space_from_source(space)
    with pytest.raises(ValueError, match="target_channels is 2, it must be 1, 3 or None"):
        ImageDecompressTransformation(2, 2, 2)


def test_bytes_that_are_no_image_of_the_size_are_an_error() -> None:
    made = ImageDecompressTransformation(4, 4, format="PNG")
    file = ImageCompressTransformation(max_size_bytes=500, format="PNG").transform(
        images((2, 4, 3)), gradient((2, 4, 3))
    )
    with pytest.raises(ValueError, match="not the file of an image 4 high and 4 wide: it is 2 high and 4 wide"):
        made.transform(images((500,)), file)
    with pytest.raises(ValueError, match="not the file of an image 4 high and 4 wide"):
        made.transform(images((500,)), np.zeros(500, np.uint8))


def test_json_and_pickles_give_it_back() -> None:
    for made in (ImageCompressTransformation(80), ImageDecompressTransformation(2, 3, None, "L", "PNG")):
        written = json.loads(json.dumps(transformation_to_json(made)))
        for found in (json_to_transformation(written), pickle.loads(pickle.dumps(made))):
            assert transformation_to_json(found) == written
    of_reference = {"init_quality": 70, "max_size_bytes": None, "compression_ratio": 18, "mode": None, "format": "JPEG"}
    kind = "unienv_data.transformations.image_compress.ImageCompressTransformation"
    found = json_to_transformation({**of_reference, "last_channel": True, "type": kind})
    assert transformation_to_json(found)["compression_ratio"] == 18
    assert found.get_target_space_from_source(images((20, 10, 3))).shape == (600 // 18 + 1,)
