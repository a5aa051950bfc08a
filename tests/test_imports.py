"""Importing the library imports no framework, is quick, and a missing framework names the extra that brings it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FRAMEWORKS = """torch tensordict torchrl jax jaxlib tensorflow gymnasium h5py pyarrow av PIL minari ray typer rich
pandas matplotlib stable_baselines3 envpool""".split()  # noqa: SIM905

# The same line a user writes, and what it brought along.
WHAT_AN_IMPORT_BRINGS = """
import json, sys, time
before = set(sys.modules)
start = time.process_time()  # of this process alone: other tests may be running beside it
import {package}
seconds = time.process_time() - start
print(json.dumps([seconds, sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})]))
"""

# Fails like a package that is not installed, also where it is.
HIDING = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {library!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def run(script: str) -> str:
    """The output of a script in a fresh interpreter."""
    result = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    return result.stdout


def imported_by(package: str) -> tuple[float, set[str]]:
    seconds, modules = json.loads(run(WHAT_AN_IMPORT_BRINGS.format(package=package)))
    return seconds, set(modules)


@pytest.mark.parametrize(
    "package",
    [
        "unienv",
        "unienv_interface",
        "unienv_data",
        "unienv_interface.backends",
        "unienv_interface.space",
        "unienv_interface.wrapper",
    ],
)
def test_no_framework_is_imported(package: str) -> None:
    _, modules = imported_by(package)
    assert not modules & set(FRAMEWORKS)


@pytest.mark.parametrize("package", ["unienv", "unienv_interface", "unienv_data"])
def test_importing_takes_less_than_a_third_of_a_second(package: str) -> None:
    assert any(imported_by(package)[0] < 0.3 for _ in range(5))  # the best of five


def test_using_numpy_alone_imports_no_framework() -> None:
    used = run(
        """
import sys
from unienv_interface.backends import NumpyComputeBackend as backend, get_backend_from_tensor
from unienv_interface.space.spaces import BoxSpace, DictSpace, TextSpace

space = DictSpace(backend, {"a": BoxSpace(backend, 0, 1, "float32", shape=(3,)), "b": TextSpace(backend, 3)})
_, value = space.sample(backend.random.random_number_generator(0))
assert value in space
assert get_backend_from_tensor(value["a"]) is backend
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
    )
    assert not set(used.split()) & set(FRAMEWORKS)


@pytest.mark.parametrize(("library", "backend"), [("torch", "pytorch"), ("jax", "jax")])
@pytest.mark.parametrize(
    "act",
    [
        "import unienv_interface.backends.{backend}",
        "from unienv_interface.backends import deserialize_backend; deserialize_backend('{backend}')",
    ],
)
def test_a_missing_framework_names_its_extra(library: str, backend: str, act: str) -> None:
    script = HIDING.format(library=library) + (
        f"try:\n    {act.format(backend=backend)}\nexcept ImportError as error:\n    print(error, end='')"
    )
    assert run(script) == f"{library} is not installed; get it with: pip install 'unienv[{library}]'"


@pytest.mark.parametrize(("library", "backend"), [("torch", "pytorch"), ("jax", "jax")])
def test_a_framework_marked_as_missing_names_its_extra_too(library: str, backend: str) -> None:
    script = f"""
import sys
sys.modules[{library!r}] = None
from unienv_interface.backends import NumpyComputeBackend, get_backend_from_tensor
try:
    import unienv_interface.backends.{backend}
except ImportError as error:
    print(error)
try:
    get_backend_from_tensor([1])
except TypeError as error:
    print(error)
"""
    assert run(script).splitlines() == [
        f"{library} is not installed; get it with: pip install 'unienv[{library}]'",
        "builtins.list is not an array of NumPy, PyTorch or JAX",
    ]


@pytest.mark.parametrize(
    ("library", "extra", "name"),
    [("gymnasium", "gymnasium", "ToGymnasiumVectorEnv"), ("stable_baselines3", "sb3", "ToSB3VecEnv")],
)
def test_a_bridge_without_its_library_names_the_extra(library: str, extra: str, name: str) -> None:
    script = HIDING.format(library=library) + (
        f"try:\n    from unienv_interface.wrapper import {name}\nexcept ImportError as error:\n    print(error, end='')"
    )
    assert run(script) == f"{library} is not installed; get it with: pip install 'unienv[{extra}]'"


def test_a_broken_framework_shows_its_own_error() -> None:
    """A framework that is there, but misses a dependency, must not be reported as absent."""
    script = """
import sys, types

class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'sympy'", name="sympy")

sys.meta_path.insert(0, Broken())
try:
    import unienv_interface.backends.pytorch
except ModuleNotFoundError as error:
    print(error, end="")
"""
    assert run(script) == "No module named 'sympy'"


def test_bfloat16_without_ml_dtypes_names_the_extra() -> None:
    script = HIDING.format(library="ml_dtypes") + (
        "from unienv_interface.backends import NumpyComputeBackend as backend\n"
        "try:\n    backend.dtype_from_name('bfloat16')\nexcept ImportError as error:\n    print(error, end='')"
    )
    assert run(script) == "ml_dtypes is not installed; get it with: pip install 'unienv[jax]'"
