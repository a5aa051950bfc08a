import json
import subprocess
import sys

import numpy as np
import pytest
from catalogue import BACKENDS
from transformation_cases import numbers, sample

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace
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
    ImageCompressTransformation,
    ImageDecompressTransformation,
    ImageResizeTransformation,
    IterativeTransformation,
    LeafwiseTransformation,
    RescaleTransformation,
    UnBatchifyTransformation,
    UnflattenDictTransformation,
    json_to_transformation,
    register_leaf_function,
    register_transformation,
    transformation_to_json,
)

KINDS = {
    "identity": (IdentityTransformation, "identity", {}),
    "rescale": (RescaleTransformation, "rescale", {"new_low": -1.0, "new_high": 1.0}),
    "crop": (CropTransformation, "crop", {"crop_low": 0, "crop_high": [1, 2]}),
    "image_compress": (ImageCompressTransformation, "image_compress", {"max_size_bytes": 100}),
    "image_decompress": (ImageDecompressTransformation, "image_compress", {"target_height": 2, "target_width": 3}),
    "image_resize": (ImageResizeTransformation, "image_resize", {"new_height": 3, "new_width": 4}),
    "batchify": (BatchifyTransformation, "batch_and_unbatch", {"axis": 1}),
    "unbatchify": (UnBatchifyTransformation, "batch_and_unbatch", {"axis": 1}),
    "chained": (ChainedTransformation, "chained_transform", {"transformations": []}),
    "dict": (DictTransformation, "dict_transform", {"mapping": {}}),
    "dict_include_keys": (DictIncludeKeyTransformation, "filter_dict", {"enabled_keys": ["a"]}),
    "dict_exclude_keys": (DictExcludeKeyTransformation, "filter_dict", {"excluded_keys": ["a"]}),
    "flatten_dict": (FlattenDictTransformation, "flatten_dict_transform", {"nested_separator": "."}),
    "unflatten_dict": (UnflattenDictTransformation, "flatten_dict_transform", {"nested_separator": "."}),
    "iterative": (IterativeTransformation, "iter_transform", {"transformation": {"type": "identity"}}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_have_stable_keys_and_the_reference_names_are_read_too(kind):
    cls, module, settings = KINDS[kind]
    found = json_to_transformation({"type": kind, **settings})
    assert type(found) is cls
    assert transformation_to_json(found)["type"] == kind
    package = "unienv_data" if module == "image_compress" else "unienv_interface"
    dotted = f"{package}.transformations.{module}.{cls.__name__}"
    assert type(json_to_transformation({"type": dotted, **settings})) is cls


def test_leafwise_has_a_key_too():
    assert transformation_to_json(LeafwiseTransformation([]))["type"] == "leafwise"


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_settings_of_every_backend_are_written_and_read(backend):
    space = BoxSpace(backend, -1.0, 1.0, backend.default_floating_dtype, shape=(2,))
    low = backend.asarray([0.0, 1.0], dtype=backend.default_floating_dtype)
    for made in (
        RescaleTransformation(low, low + 1, backend.default_floating_dtype, nan_to=backend.asarray(1.0)),
        CropTransformation(low - 1, low),
        ChainedTransformation([RescaleTransformation(low, low + 1)]),
    ):
        written = json.loads(json.dumps(transformation_to_json(made, space)))
        found = json_to_transformation(written, space)
        assert transformation_to_json(found, space) == written
        assert found.get_target_space_from_source(space) == made.get_target_space_from_source(space)


# -- what is not the JSON of a transformation --------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["os.system", "subprocess.Popen", "antigravity.Flight", "this", "", None, 3, ["rescale"]]
)
def test_an_unknown_kind_is_named_and_imports_nothing(kind):
    loaded = set(sys.modules)
    with pytest.raises(ValueError, match=r"unknown kind .* of a transformation, known are .*'rescale'") as caught:
        json_to_transformation({"type": kind})
    assert repr(kind) in str(caught.value)
    assert set(sys.modules) == loaded


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("rescale", "str, the JSON of a transformation is an object"),
        ({"axis": 1}, r"has no 'type', only \['axis'\]"),
        ({"type": "crop", "crop_low": 1}, "CropTransformation lacks 'crop_high', it has \\['crop_low'\\]"),
        ({"type": "crop", "crop_low": "x", "crop_high": 1}, "'x' is not the JSON of a number or an array"),
        ({"type": "batchify", "axis": "x"}, "not the JSON of a BatchifyTransformation: 'str'"),
        ({"type": "dict", "mapping": 3}, "not the JSON of a DictTransformation: 'int'"),
        ({"type": "chained", "transformations": [{"type": "x"}]}, "unknown kind 'x'"),
        ({"type": "rescale", "new_dtype": "builtins.eval"}, "new_dtype is 'builtins.eval'"),
        ({"type": "flatten_dict", "nested_separator": 3}, "nested_separator is 3"),
    ],
)
def test_anything_else_is_a_value_error(data, text):
    with pytest.raises(ValueError, match=text):
        json_to_transformation(data)


def test_too_deep_is_a_value_error():
    data = {"type": "identity"}
    for _ in range(3000):
        data = {"type": "chained", "transformations": [data]}
    with pytest.raises(ValueError, match="nested too deeply"):
        json_to_transformation(data)


# -- third parties -----------------------------------------------------------------------------------------


class Doubling(IdentityTransformation):
    def transform(self, source_space, data):
        return data * 2


def test_a_class_of_ones_own_registers(monkeypatch):
    from unienv_interface.transformations import serialization_utils

    monkeypatch.setattr(serialization_utils, "_classes", dict(serialization_utils._classes))
    monkeypatch.setattr(serialization_utils, "_kinds", dict(serialization_utils._kinds))
    with pytest.raises(ValueError, match=r"Doubling is not registered, .* see register_transformation"):
        transformation_to_json(Doubling())
    assert register_transformation("mine.doubling")(Doubling) is Doubling
    assert transformation_to_json(Doubling()) == {"type": "mine.doubling"}
    assert type(json_to_transformation({"type": "mine.doubling"})) is Doubling
    register_transformation("mine.doubling")(Doubling)
    with pytest.raises(ValueError, match="the kind 'rescale' stands for RescaleTransformation already"):
        register_transformation("rescale")(Doubling)


def test_settings_must_leave_the_type_alone(monkeypatch):
    monkeypatch.setattr(IdentityTransformation, "serialize", lambda self, source_space=None: {"type": "other"})
    with pytest.raises(ValueError, match=r"IdentityTransformation\.serialize returned the key 'type'"):
        transformation_to_json(IdentityTransformation())


# -- leaf functions ----------------------------------------------------------------------------------------


def stop_at_once(space):
    return True


def test_leaf_functions_go_by_registered_names(monkeypatch):
    from unienv_interface.transformations import iter_transform

    monkeypatch.setattr(iter_transform, "_leaf_functions", dict(iter_transform._leaf_functions))
    transformation = IterativeTransformation(IdentityTransformation(), stop_at_once)
    with pytest.raises(ValueError, match="the leaf function stop_at_once is not registered"):
        transformation_to_json(transformation)
    register_leaf_function("tests.stop_at_once", stop_at_once)
    stored = json.loads(json.dumps(transformation_to_json(transformation)))
    assert stored["is_leaf_node_fn"] == "tests.stop_at_once"
    assert stored["inv_is_leaf_node_fn"] == "default"
    assert json_to_transformation(stored).is_leaf_node_fn is stop_at_once
    with pytest.raises(ValueError, match="there is a leaf function 'default' already"):
        register_leaf_function("default", stop_at_once)


def iterative(leaf_function):
    return {"type": "iterative", "transformation": {"type": "identity"}, "is_leaf_node_fn": leaf_function}


def test_the_reference_s_leaf_function_is_read():
    from unienv_interface.transformations.iter_transform import default_is_leaf_fn

    dotted = "unienv_interface.transformations.iter_transform.default_is_leaf_fn"
    for stored in ({"mode": "name", "name": dotted}, {"mode": "name", "value": dotted}, dotted, "default"):
        assert json_to_transformation(iterative(stored)).is_leaf_node_fn is default_is_leaf_fn


@pytest.mark.parametrize("stored", ["os.system", {"mode": "name", "name": "os.system"}, {"mode": "name"}, 3])
def test_an_unknown_leaf_function_is_refused(stored):
    with pytest.raises(ValueError, match=r"unknown leaf function .*, known are \['default'\]"):
        json_to_transformation(iterative(stored))


def test_a_pickled_leaf_function_is_refused():
    with pytest.raises(
        ValueError, match="a leaf function in mode 'pickle' is refused: it would run code from the data"
    ):
        json_to_transformation(iterative({"mode": "pickle", "data": "gASVHgAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOU"}))


def test_members_are_read_with_their_own_source_spaces():
    seen = []

    class Watching(DataTransformation):
        def get_target_space_from_source(self, source_space):
            return source_space

        def transform(self, source_space, data):
            return data

        def serialize(self, source_space=None):
            seen.append(source_space)
            return {}

        @classmethod
        def deserialize_from(cls, json_data, source_space=None):
            seen.append(source_space)
            return cls()

    from unienv_interface.transformations import serialization_utils

    space = numbers(NumpyComputeBackend)
    register_transformation("tests.watching")(Watching)
    try:
        for outer, expected in (
            (DictTransformation({"joints": Watching()}), space["joints"]),
            (
                ChainedTransformation([FlattenDictTransformation(), DictTransformation({"joints": Watching()})]),
                space["joints"],
            ),
            (IterativeTransformation(Watching()), space["joints"]),
        ):
            seen.clear()
            json_to_transformation(transformation_to_json(outer, space), space)
            assert seen == [expected, expected]
    finally:
        del serialization_utils._classes["tests.watching"]


# -- the package -------------------------------------------------------------------------------------------


def test_importing_transformations_imports_no_framework():
    program = "import sys, unienv_interface.transformations; print({'torch', 'jax', 'gymnasium'} & set(sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert found.stdout.strip() == "set()"


def test_json_is_what_a_reader_expects():
    chain = ChainedTransformation([CropTransformation(-np.inf, 5), RescaleTransformation([0, 1], 2.5, "float32")])
    assert json.loads(json.dumps(transformation_to_json(chain))) == {
        "type": "chained",
        "transformations": [
            {"type": "crop", "crop_low": -np.inf, "crop_high": 5},
            {
                "type": "rescale",
                "new_low": {"dtype": "int64", "shape": [2], "value": [0, 1]},
                "new_high": 2.5,
                "new_dtype": "float32",
                "nan_to": None,
            },
        ],
    }


def test_json_written_with_numpy_is_read_on_any_backend():
    pytest.importorskip("torch")
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    stored = transformation_to_json(RescaleTransformation(np.float32([0, 1, 2]), 3))
    space = numbers(PyTorchComputeBackend)["joints"]
    transformation = json_to_transformation(stored, space)
    assert transformation.transform(space, sample(space)) in transformation.get_target_space_from_source(space)
