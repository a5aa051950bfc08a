"""Batches in a `DataLoader`, and PyTorch datasets as batches."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from buffers import number_space, numbers, read
from torch.utils.data import DataLoader, TensorDataset

from unienv_data import BatchBase, ReplayBuffer, StepSampler
from unienv_data.integrations.pytorch import PyTorchAsUniEnvDataset, UniEnvAsPyTorchDataset, collate_batch
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.backends.jax import JaxComputeBackend
from unienv_interface.backends.pytorch import PyTorchComputeBackend
from unienv_interface.space import BoxSpace, DictSpace, TextSpace
from unienv_interface.space.space_utils import batch_space, get_at

TORCH = PyTorchComputeBackend
HERE = Path(__file__).parent


class Counted(BatchBase):
    """A view with metadata that counts how often it is read."""

    is_mutable = False

    def __init__(self, batch: BatchBase) -> None:
        twice = BoxSpace(batch.backend, -(2**30), 2**30, "int32", shape=())
        super().__init__(
            batch.single_space, DictSpace(batch.backend, {"copy": twice, "name": TextSpace(batch.backend, 9)})
        )
        self.batch, self.reads = batch, 0

    def __len__(self) -> int:
        return len(self.batch)

    def get_at(self, idx: Any) -> Any:
        self.reads += 1
        return self.batch.get_at(idx)

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any]]:
        found = self.get_at(idx)
        values = self.backend.to_numpy(found["number"])
        names = f"is {values}" if values.ndim == 0 else np.array([f"is {value}" for value in values], object)
        return found, {"copy": found["number"], "name": names}


def filled(length: int, backend: Any) -> ReplayBuffer:
    buffer = ReplayBuffer.create(number_space(backend), capacity=length)
    buffer.extend(numbers(range(length), backend))
    return buffer


@pytest.mark.parametrize("backend", [NumpyComputeBackend, TORCH, JaxComputeBackend], ids=str)
def test_a_loader_gives_tensors_with_one_read_a_batch(backend: Any) -> None:
    data = Counted(filled(23, backend))
    for options in ({}, {"collate_fn": collate_batch}):
        data.reads = 0
        loader = DataLoader(UniEnvAsPyTorchDataset(data), batch_size=5, shuffle=True, **options)
        batches = list(loader)
        assert data.reads == len(batches) == 5
        assert all(isinstance(batch["inner"]["copies"], torch.Tensor) for batch in batches)
        assert sorted(value for batch in batches for value in read(batch, TORCH)) == list(range(23))
    single = UniEnvAsPyTorchDataset(data)[7]
    assert single["number"].item() == 7
    assert len(UniEnvAsPyTorchDataset(data)) == 23


@pytest.mark.parametrize("backend", [NumpyComputeBackend, TORCH], ids=str)
def test_metadata_come_with_it(backend: Any) -> None:
    data = UniEnvAsPyTorchDataset(Counted(filled(10, backend)), include_metadata=True)
    for batch, metadata in DataLoader(data, batch_size=5):
        values = read(batch, TORCH)
        assert metadata["copy"].tolist() == values
        assert metadata["name"].tolist() == [f"is {value}" for value in values]
    batch, metadata = data[3]
    assert (batch["number"].item(), metadata["name"]) == (3, "is 3")
    without = UniEnvAsPyTorchDataset(filled(4, TORCH), include_metadata=True)
    ((_, metadata),) = DataLoader(without, batch_size=4)
    assert metadata == {}


def test_without_batches_a_loader_gives_samples() -> None:
    loader = DataLoader(UniEnvAsPyTorchDataset(filled(4, NumpyComputeBackend)), batch_size=None)
    assert [sample["number"].item() for sample in loader] == [0, 1, 2, 3]


PROGRAM = """
import sys
import torch
from torch.utils.data import DataLoader
from buffers import number_space, numbers, read
from unienv_data import ReplayBuffer
from unienv_data.integrations.pytorch import UniEnvAsPyTorchDataset
from unienv_interface.backends.pytorch import PyTorchComputeBackend
from sampler_play import Playing, NUMPY

def main():
    buffer = ReplayBuffer.create(number_space(), capacity=40, multiprocessing=True)
    buffer.extend(numbers(range(40)))
    factor = 1
    data = UniEnvAsPyTorchDataset(Playing(buffer, lambda number: number * factor), include_metadata=True)
    loader = DataLoader(
        data,
        batch_size=8,
        shuffle=True,
        num_workers=1 + (sys.argv[1] == "fork"),
        multiprocessing_context=sys.argv[1],
        persistent_workers=True,
    )
    for _ in range(2):
        found = []
        for batch, metadata in loader:
            assert batch["number"].is_contiguous()
            found += read(batch, PyTorchComputeBackend)
        assert sorted(found) == list(range(40)), found
    print("loaded")

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_loader_with_workers(start_method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent.parent / "src"), str(HERE)])}
    result = subprocess.run(
        [sys.executable, "-W", "error", str(program), start_method],
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
    )
    assert result.stdout == "loaded\n", result.stderr[-3000:]


def plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: plain(value) for key, value in data.items()}
    if isinstance(data, tuple):
        return [plain(value) for value in data]
    return data.tolist() if hasattr(data, "tolist") else data


# -- the other way -------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", ["left", "right"])


class Items:
    """A map-style dataset of items of any structure."""

    def __init__(self, make: Any, length: int = 12) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


@pytest.mark.parametrize(
    "make",
    [
        lambda i: torch.full((3,), i, dtype=torch.float32),
        lambda i: {"image": np.full((2, 2), i, np.uint8), "label": i, "flag": i % 2 == 0},
        lambda i: (torch.tensor(i), {"x": np.float32(i)}),
        lambda i: Pair(torch.tensor([i]), float(i)),
        lambda i: {"text": "abc"[i % 3 :], "x": np.float64(i)},
    ],
    ids=["tensor", "dict", "tuple", "named_tuple", "text"],
)
def test_a_pytorch_dataset_is_a_batch(make: Any) -> None:
    batch = PyTorchAsUniEnvDataset(Items(make))
    assert len(batch) == 12
    assert batch.single_space.contains(batch.get_at(3))
    space = batch_space(batch.single_space, 3)
    sampler = StepSampler(batch, 3, seed=0)
    assert all(space.contains(part) for part in sampler.epoch_iter())
    assert plain(get_at(space, batch.get_at([5, 2, 0]), 1)) == plain(batch.get_at(2))
    assert plain(batch.get_at(slice(1, 3))) == plain(batch.get_at([1, 2]))
    assert batch_space(batch.single_space, 0).contains(batch.get_at([]))
    with pytest.raises(TypeError, match="is read-only"):
        batch.remove_at(0)


def test_tensor_datasets_and_ours_are_read_in_batches() -> None:
    tensors = PyTorchAsUniEnvDataset(TensorDataset(torch.arange(10), torch.arange(20).reshape(10, 2)))
    left, right = tensors.get_at([3, 1])
    assert left.tolist() == [3, 1]
    assert right.tolist() == [[6, 7], [2, 3]]
    data = Counted(filled(10, TORCH))
    again = PyTorchAsUniEnvDataset(UniEnvAsPyTorchDataset(data))
    data.reads = 0
    assert read(again.get_at([4, 2, 9]), TORCH) == [4, 2, 9]
    assert data.reads == 1


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(TypeError, match="is no map-style dataset"):
        PyTorchAsUniEnvDataset(iter([1, 2]))
    with pytest.raises(ValueError, match="the dataset is empty"):
        PyTorchAsUniEnvDataset(Items(lambda i: i, 0))
