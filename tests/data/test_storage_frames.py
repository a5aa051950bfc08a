"""Storages of frames: still images."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frames import frame, frames

from unienv_data import ReplayBuffer, StorageCorruptedError
from unienv_data.storages.image_storage import Image, ImageStorage
from unienv_data.testing import check_storage
from unienv_interface.backends import NumpyComputeBackend, deserialize_backend
from unienv_interface.space.spaces import BoxSpace

pillow = pytest.importorskip("PIL.Image")


def box(shape: tuple[int, ...], dtype: str = "uint8", backend: Any = NumpyComputeBackend) -> Any:
    high = 255 if dtype == "uint8" else 65535
    return BoxSpace(backend, 0, high, getattr(backend, dtype), shape=shape)


LOSSLESS = [
    ("png", (8, 6), "uint8"),
    ("png", (8, 6, 1), "uint8"),
    ("png", (8, 6, 3), "uint8"),
    ("png", (8, 6, 4), "uint8"),
    ("png", (8, 6), "uint16"),
    ("png", (8, 6, 1), "uint16"),
    ("webp", (8, 6), "uint8"),
    ("webp", (8, 6, 3), "uint8"),
    ("webp", (8, 6, 4), "uint8"),
]


@pytest.mark.parametrize(("fmt", "shape", "dtype"), LOSSLESS)
def test_lossless_images_keep_every_bit(fmt: str, shape: tuple[int, ...], dtype: str) -> None:
    space = box(shape, dtype)
    rng = np.random.default_rng(0)
    values = rng.integers(0, 65536 if dtype == "uint16" else 256, (5, *shape)).astype(dtype)
    storage = ImageStorage.create(space, format=fmt, capacity=5)
    storage.set(slice(0, 5), values)
    storage.set(2, values[0])
    assert np.array_equal(storage.get([4, 2, 4, 0]), values[[4, 0, 4, 0]])
    assert storage.get(1).dtype == dtype
    assert np.array_equal(storage.get(1), values[1])


@pytest.mark.parametrize("place", ["memory", "shared", "files"])
def test_images_keep_the_contract(place: str, tmp_path: Path) -> None:
    class Images(ImageStorage):
        @classmethod
        def create(cls, space: Any, **options: Any) -> Any:  # type: ignore[override]
            if place != "files":
                options = {**options, "cache_path": None, "multiprocessing": place == "shared"}
            return ImageStorage.create(space, format="png", **options)

    check_storage(Images, tmp_path, spaces=(box((4, 3)), box((4, 4, 3))))


def test_jpeg_is_what_pillow_makes_of_it() -> None:
    storage = ImageStorage.create(box((48, 64, 3)), quality=90, capacity=2)
    picture = frame(3, (48, 64, 3))
    storage.set(1, picture)
    file = io.BytesIO()
    pillow.fromarray(picture).save(file, "JPEG", quality=90)
    assert np.array_equal(storage.get(1), np.asarray(pillow.open(file)))
    assert storage.nbytes < picture.nbytes / 3
    assert storage.get(0).max() == 0  # never written
    grey = ImageStorage.create(box((48, 64)), capacity=1)
    grey.set(0, frame(0, (48, 64)))
    assert np.abs(grey.get(0).astype(int) - frame(0, (48, 64))).mean() < 12


@pytest.mark.parametrize(
    ("fmt", "shape", "dtype", "options", "text"),
    [
        ("jpeg", (8, 6, 4), "uint8", {}, "JPEG does not keep uint8 with 4 channels"),
        ("webp", (8, 6), "uint16", {}, "WEBP does not keep uint16"),
        ("png", (8, 6, 3), "uint16", {}, "PNG does not keep uint16 with 3 channels"),
        ("png", (8, 6, 2), "uint8", {}, "with 1, 3 or 4 channels"),
        ("png", (8,), "uint8", {}, "of shape"),
        ("gif", (8, 6), "uint8", {}, "image format 'GIF'"),
        ("jpeg", (8, 6), "uint8", {"quality": 0}, "quality 0"),
    ],
)
def test_frames_that_a_format_does_not_keep_are_refused(
    fmt: str, shape: tuple[int, ...], dtype: str, options: Any, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        ImageStorage.create(box(shape, dtype), format=fmt, capacity=2, **options)


def test_a_buffer_of_images_is_loaded_dumped_and_checked(tmp_path: Path) -> None:
    space, values = box((24, 32, 3)), frames(12, (24, 32, 3))
    with ReplayBuffer.create(ImageStorage, space, format="png", capacity=8, cache_path=tmp_path / "a") as buffer:
        buffer.extend(values)
        buffer.set_at(2, values[0])
        buffer.remove_at([3])
        buffer.dumps(tmp_path / "b")
    wanted = np.delete(np.concatenate([values[4:6], values[:1], values[7:]]), 3, 0)
    for name in ("a", "b"):
        with ReplayBuffer.load_from(tmp_path / name, backend=NumpyComputeBackend) as loaded:
            assert np.array_equal(loaded.get_at(...), wanted)
            assert loaded.verify() == []
            assert (loaded.storage.format, loaded.storage.quality) == ("PNG", 75)
    heap = tmp_path / "b" / "storage" / "heap.bin"
    content = bytearray(heap.read_bytes())
    content[200] ^= 1
    heap.write_bytes(content)
    with ReplayBuffer.load_from(tmp_path / "b", backend=NumpyComputeBackend) as loaded:
        assert "do not match their checksum" in loaded.verify()[0]


def test_an_image_that_is_none_is_an_error(tmp_path: Path) -> None:
    storage = ImageStorage.create(box((8, 6)), format="png", capacity=2, cache_path=tmp_path / "a")
    storage.set(0, frame(0, (8, 6)))
    heap = tmp_path / "a" / "heap.bin"
    heap.write_bytes(bytes(heap.stat().st_size))
    with pytest.raises(StorageCorruptedError, match="not a PNG 8 high and 6 wide"):
        storage.get(0)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_images_come_as_arrays_of_the_backend(library: str) -> None:
    pytest.importorskip(library)
    backend = deserialize_backend({"torch": "pytorch"}.get(library, library))
    storage = ImageStorage.create(box((8, 6, 3), backend=backend), format="png", capacity=2)
    value = backend.from_numpy(frame(0, (8, 6, 3)), copy=True)
    storage.set(0, value)
    assert np.array_equal(backend.to_numpy(storage.get([0, 0])[1]), frame(0, (8, 6, 3)))


def test_importing_images_imports_no_pillow() -> None:
    program = "import sys, unienv_data.storages.image_storage; sys.exit('PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_rule_names_its_storage() -> None:
    assert Image("png").storage() == (ImageStorage, {"format": "png", "quality": 75})
