"""The storages that are files or tensors, as the tests go over them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from unienv_data import ReplayBuffer
from unienv_data.storages.registry import storage_by_name
from unienv_interface.backends import deserialize_backend

HERE = Path(__file__).parent


class Kind(NamedTuple):
    """A storage and how it is made here."""

    storage: str
    options: dict[str, Any]
    backend_name: str = "numpy"
    grows: bool = True
    survives_kill: bool = False
    on_disk: bool = True

    @property
    def backend(self) -> Any:
        return deserialize_backend(self.backend_name)

    @property
    def storage_cls(self) -> Any:
        return storage_by_name(self.storage)

    def create(self, space: Any, capacity: int | None, path: Path | None, **options: Any) -> ReplayBuffer:
        """A buffer; in memory if that is what the kind is."""
        path = path if self.on_disk else None
        return ReplayBuffer.create(
            self.storage_cls, space, capacity=capacity, cache_path=path, **{**self.options, **options}
        )


KINDS = {
    "torch_memmap": Kind("pytorch", {}, "pytorch", grows=False, survives_kill=True),
    "torch_file": Kind("pytorch", {"is_memmap": False}, "pytorch", grows=False, survives_kill=True),
    "torch_memory": Kind("pytorch", {"is_memmap": False}, "pytorch", grows=False, on_disk=False),
    "npz": Kind("npz", {}, survives_kill=True),
    "npz_stored": Kind("npz", {"compressed": False}, survives_kill=True),
    "hdf5": Kind("hdf5", {}),
    "hdf5_chunked": Kind("hdf5", {"compression": "gzip", "chunks": 3}),
    "hdf5_memory": Kind("hdf5", {}, on_disk=False),
    "parquet": Kind("parquet", {"piece_size": 3}),
    "parquet_evicting": Kind("parquet", {"piece_size": 2, "cache_bytes": 1, "compression": None}),
}

_PACKAGE = {"pytorch": "torch", "hdf5": "h5py", "parquet": "pyarrow"}


def kinds(*names: str) -> list[Any]:
    """Kinds as parameters; those whose package is not installed are skipped."""
    return [pytest.param(KINDS[name], id=name) for name in names or KINDS]


def need(kind: Kind) -> None:
    if kind.storage in _PACKAGE:
        pytest.importorskip(_PACKAGE[kind.storage])


def run(program: str, *arguments: str) -> str:
    """What a program of this folder prints; it must end by itself, and well."""
    command = [sys.executable, "-W", "error", str(HERE / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def record(name: str, folder: Path, capacity: int, flushed: int, more: int) -> None:
    """A buffer whose writer was killed after it had appended, flushed, and appended more."""
    need(KINDS[name])
    command = [sys.executable, str(HERE / "record_until_killed.py"), name, str(folder)]
    command += [str(number) for number in (capacity, flushed, more)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "recorded\n"
        finally:
            process.kill()
