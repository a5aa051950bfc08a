"""Compile TorchRL's sum tree where the one that is installed does not fit the PyTorch beside it.

    python benchmarks/build_torchrl_tree.py

A release of TorchRL has its C++ compiled for one version of PyTorch; beside any other its prioritized sampler raises.
Its wheel carries the sources: they are compiled as they are, for the PyTorch that is there, and take the place of what
could not be loaded. Wants g++, and a minute or two.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sysconfig
import warnings
from pathlib import Path

SOURCES = ("pybind.cpp", "utils.cpp")


def loads() -> bool:
    warnings.simplefilter("ignore")
    try:
        importlib.import_module("torch")  # which the tree is linked with
        importlib.import_module("torchrl._torchrl")
    except ImportError:
        return False
    return True


def build() -> Path:
    """Compile and put in place; where that is."""
    from torch.utils.cpp_extension import include_paths, library_paths

    found = importlib.util.find_spec("torchrl")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("torchrl is not installed: pip install 'unienv[bench]'")
    package = Path(found.origin).parent
    target = package / f"_torchrl{sysconfig.get_config_var('EXT_SUFFIX')}"
    new = target.with_name(target.name + ".new")
    command = ["g++", "-O3", "-DNDEBUG", "-std=c++20", "-fPIC", "-shared", "-o", str(new)]
    command += [f"-I{path}" for path in (*include_paths(), sysconfig.get_paths()["include"])]
    command += [str(package / "csrc" / name) for name in SOURCES]
    for path in library_paths():
        command += [f"-L{path}", f"-Wl,-rpath,{path}"]
    subprocess.run([*command, "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"], check=True)
    os.replace(new, target)
    return target


def main() -> None:
    if loads():
        print("TorchRL's compiled tree loads: nothing to do")
    else:
        print(f"written to {build()}")


if __name__ == "__main__":
    main()
