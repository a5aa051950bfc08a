"""The transformations that the laws are checked on, each with a source space on any backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from unienv_interface.backends import ComputeBackend, deserialize_backend
from unienv_interface.space.spaces import BinarySpace, BoxSpace, DictSpace, Space, TupleSpace
from unienv_interface.transformations import (
    BatchifyTransformation,
    ChainedTransformation,
    CropTransformation,
    DataTransformation,
    DictExcludeKeyTransformation,
    DictIncludeKeyTransformation,
    DictTransformation,
    FlattenDictTransformation,
    IdentityTransformation,
    ImageResizeTransformation,
    IterativeTransformation,
    LeafwiseTransformation,
    NormalizeTransformation,
    RescaleTransformation,
    UnBatchifyTransformation,
    UnflattenDictTransformation,
)

BACKENDS = ("numpy", "pytorch", "jax")


def floats(backend: ComputeBackend) -> BoxSpace:
    return BoxSpace(backend, [-1.0, 2.0, 0.0], [1.0, 10.0, 0.0], "float32")


def integers(backend: ComputeBackend) -> BoxSpace:
    return BoxSpace(backend, [-7, 0, 3], [9, 255, 3], "int32")


def pixels(backend: ComputeBackend) -> BoxSpace:
    return BoxSpace(backend, 0, 255, "uint8", shape=(4, 6, 3))


def nested(backend: ComputeBackend) -> DictSpace:
    return DictSpace(
        backend,
        {
            "robot": {"joints": floats(backend), "gripper": integers(backend)},
            "touch": BinarySpace(backend, (3,)),
            "time": BoxSpace(backend, 0.0, 1.0, "float32", shape=(3,)),
        },
    )


def numbers(backend: ComputeBackend) -> DictSpace:
    pair = TupleSpace(backend, [integers(backend), floats(backend)])
    return DictSpace(backend, {"joints": floats(backend), "pair": pair})


def flat(backend: ComputeBackend) -> DictSpace:
    spaces = {"robot/joints": floats(backend), "robot/gripper": integers(backend), "time": floats(backend)}
    return DictSpace(backend, spaces)


def one_of_each(backend: ComputeBackend) -> DictSpace:
    return DictSpace(
        backend,
        {
            "joints": BoxSpace(backend, [[-1.0, 2.0, 0.0]], [[1.0, 10.0, 1.0]], "float32"),
            "touch": BinarySpace(backend, (1, 3)),
        },
    )


@dataclass(frozen=True)
class Case:
    name: str
    transformation: DataTransformation
    space: Callable[[ComputeBackend], Space]
    tolerance: float | None = 1e-5  # of the recovered data; None where the inverse does not recover it
    batches: bool = True  # whether a batch is transformed like its single values

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("identity", IdentityTransformation(), nested, 0),
    Case("rescale", RescaleTransformation(), floats),
    Case("rescale-array", RescaleTransformation([-1.0, 0.0, 5.0], np.float32([1.5, 3.0, 6.0])), floats),
    Case("rescale-integers", RescaleTransformation(0, 1), integers, 0),
    Case("rescale-to-integers", RescaleTransformation(-30000, 30000, "int16"), floats, 1e-3),
    Case("rescale-nan-to", RescaleTransformation(0.0, 1.0, "float16", nan_to=0.5), floats, 1e-2),
    Case("normalize", NormalizeTransformation(0.25, 2.5), floats),
    Case("normalize-array", NormalizeTransformation([0.5, 5.0, 1.0], np.float32([0.1, 3.0, 2.0])), floats),
    Case("normalize-integers", NormalizeTransformation([1, 100, 3], [2.5, 64.0, 1.0]), integers, 0),
    Case("normalize-pixels", NormalizeTransformation([[[120.0, 100.0, 90.0]]], [[[60.0, 50.0, 40.0]]]), pixels, 0),
    Case("crop", CropTransformation(-0.5, 3.0), floats, None),
    Case("crop-array", CropTransformation([-np.inf, 10.5, 0], 100), integers, None),
    Case("resize", ImageResizeTransformation(3, 8), pixels, None),
    Case("batchify", BatchifyTransformation(1), numbers, 0, batches=False),
    Case("unbatchify", UnBatchifyTransformation(), one_of_each, 0, batches=False),
    Case(
        "dict", DictTransformation({"robot/joints": RescaleTransformation(), "time": CropTransformation(0, 2)}), nested
    ),
    Case("include", DictIncludeKeyTransformation(["robot/gripper", "robot/joints", "time"]), nested, None),
    Case("exclude", DictExcludeKeyTransformation({"robot/gripper", "touch"}), nested, None),
    Case("flatten", FlattenDictTransformation(), nested, 0),
    Case("unflatten", UnflattenDictTransformation(), flat, 0),
    Case("chained-empty", ChainedTransformation([]), nested, 0),
    Case(
        "chained",
        ChainedTransformation(
            [FlattenDictTransformation("."), DictTransformation({"robot.joints": RescaleTransformation()})]
        ),
        nested,
    ),
    Case("iterative", IterativeTransformation(RescaleTransformation(0, 1)), numbers),
    Case(
        "leafwise",
        LeafwiseTransformation([RescaleTransformation(), IdentityTransformation(), CropTransformation(-9, 99)]),
        numbers,
    ),
]


def sample(space: Space, seed: int = 0) -> Any:
    return space.sample(space.backend.random.random_number_generator(seed))[1]


def named(name: str) -> ComputeBackend:
    return deserialize_backend(name)


def host(backend: ComputeBackend, value: Any) -> Any:
    """A value with its arrays as NumPy arrays."""
    return backend.map_fn_over_arrays(value, lambda array: np.array(backend.to_host(array)))


def assert_same(one: Any, other: Any, tolerance: float = 0) -> None:
    """Two values on the host are alike: keys, dtypes, shapes, and numbers up to the tolerance."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key], tolerance)
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs, tolerance)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        exact = tolerance == 0 or one.dtype.kind in "biu"
        if exact:
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=tolerance, atol=tolerance)
    else:
        assert one == other


__all__ = ["BACKENDS", "CASES", "Case", "assert_same", "host", "named", "sample"]
