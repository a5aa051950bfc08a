"""Backends are single objects: they compare by identity, pickle by name and print short."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from typing import Any

import cloudpickle
import pytest
from catalogue import BACKENDS, SPACES, backend_cases

from unienv_interface import backends
from unienv_interface.backends import (
    ComputeBackend,
    deserialize_backend,
    deserialize_dtype,
    get_backend_from_tensor,
    serialize_backend,
    serialize_dtype,
)

every_backend = pytest.mark.parametrize("backend", backend_cases())


@every_backend
def test_copies_are_the_backend_itself(backend: ComputeBackend) -> None:
    copies = [copy.copy(backend), copy.deepcopy([backend])[0], cloudpickle.loads(cloudpickle.dumps(backend))]
    copies += [pickle.loads(pickle.dumps(backend, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    assert all(copied is backend for copied in copies)
    assert len(pickle.dumps(backend)) < 100


@every_backend
def test_backends_differ_and_can_be_keys(backend: ComputeBackend) -> None:
    assert [other for other in BACKENDS if other == backend] == [backend]
    assert {other: str(other) for other in BACKENDS}[backend] == backend.simplified_name


@every_backend
def test_print_short(backend: ComputeBackend) -> None:
    assert repr(backend) == str(backend) == backend.simplified_name
    assert repr(backend.random) == f"{backend}.random"


@every_backend
def test_types_are_named(backend: ComputeBackend) -> None:
    array = backend.zeros((2,))
    assert isinstance(array, backend.ARRAY_TYPE)
    assert isinstance(array.dtype, backend.DTYPE_TYPE)
    assert isinstance(backend.random.random_number_generator(0), backend.RNG_TYPE)


@every_backend
def test_names_round_trip(backend: ComputeBackend) -> None:
    assert deserialize_backend(serialize_backend(backend)) is backend
    assert serialize_dtype(backend, backend.dtype_from_name("float32")) == "float32"
    assert deserialize_dtype(backend, "float32") == backend.dtype_from_name("float32")
    assert serialize_dtype(backend, None) is deserialize_dtype(backend, None) is None


def test_an_unknown_name() -> None:
    near = {"torch": ", did you mean 'pytorch'?", "NumPy": ", did you mean 'numpy'?", "": "", "os": ""}
    for name, hint in near.items():
        with pytest.raises(ValueError) as error:
            deserialize_backend(name)
        assert str(error.value) == f"unknown backend {name!r}, the backends are numpy, pytorch, jax{hint}"


@every_backend
def test_the_backend_of_an_array(backend: ComputeBackend) -> None:
    assert get_backend_from_tensor(backend.zeros((2,))) is backend
    assert [other.is_backendarray(backend.zeros(())) for other in BACKENDS] == [other is backend for other in BACKENDS]


@pytest.mark.parametrize("thing", [[1.0], 1.0, None, "a"])
def test_what_is_no_array_has_no_backend(thing: Any) -> None:
    with pytest.raises(TypeError) as error:
        get_backend_from_tensor(thing)
    assert str(error.value) == f"builtins.{type(thing).__name__} is not an array of NumPy, PyTorch or JAX"
    assert not any(backend.is_backendarray(thing) for backend in BACKENDS)


@every_backend
def test_backends_are_imported_when_they_are_asked_for(backend: ComputeBackend) -> None:
    name = {"numpy": "NumpyComputeBackend", "pytorch": "PyTorchComputeBackend", "jax": "JaxComputeBackend"}
    assert getattr(backends, name[backend.simplified_name]) is backend
    with pytest.raises(AttributeError, match="no attribute 'CupyComputeBackend'"):
        _ = backends.CupyComputeBackend


def test_everything_exported_is_there() -> None:
    assert all(hasattr(backends, name) for name in backends.__all__)


def _answer(pickled: bytes, pipe: Any) -> None:
    things = pickle.loads(pickled)
    names = {str(backend) for backend, _, _ in things}
    alive = all(
        space.backend is backend and backend.is_backendarray(array) and space.contains(space.create_empty())
        for backend, space, array in things
    )
    pipe.send((names, alive, pickle.dumps(things)))


def test_backends_arrays_and_spaces_cross_to_a_spawned_process_and_back() -> None:
    things = [(backend, SPACES["dict_empty"](backend), backend.zeros((2,))) for backend in BACKENDS]
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    # pickled here: PyTorch has tensors share memory between processes, which must then both stay alive
    process = context.Process(target=_answer, args=(pickle.dumps(things), there))
    process.start()
    assert here.poll(100), "no answer from the spawned process"
    names, alive, returned = here.recv()
    returned = pickle.loads(returned)
    process.join()
    assert process.exitcode == 0
    assert alive
    assert names == {str(backend) for backend in BACKENDS}
    for (backend, space, _), (back, space_back, _) in zip(things, returned, strict=True):
        assert back is backend
        assert space_back == space
