"""Hugging Face datasets as batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unienv_data import StepSampler
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.backends.jax import JaxComputeBackend
from unienv_interface.backends.pytorch import PyTorchComputeBackend
from unienv_interface.space import BinarySpace, BoxSpace, DynamicBoxSpace, TextSpace

datasets: Any = pytest.importorskip("datasets")
HFAsUniEnvDataset: Any = pytest.importorskip("unienv_data.integrations.huggingface").HFAsUniEnvDataset
BACKENDS = [NumpyComputeBackend, PyTorchComputeBackend, JaxComputeBackend]
LENGTH = 50


def make() -> Any:
    rng = np.random.default_rng(0)
    return datasets.Dataset.from_dict(
        {
            "count": list(range(LENGTH)),
            "exact": [1 / 3 + i for i in range(LENGTH)],
            "flag": [i % 3 == 0 for i in range(LENGTH)],
            "text": ["x" * (i % 7) + ("a very long text" if i == 33 else "") for i in range(LENGTH)],
            "vector": rng.random((LENGTH, 4)).tolist(),
            "ragged": [[float(i)] * (i % 3 + 1) for i in range(LENGTH)],
            "image": rng.integers(0, 255, (LENGTH, 3, 5), np.uint8),
            "inner": [{"small": i, "pair": [i, -i]} for i in range(LENGTH)],
        },
        features=datasets.Features(
            {
                "count": datasets.Value("int32"),
                "exact": datasets.Value("float64"),
                "flag": datasets.Value("bool"),
                "text": datasets.Value("string"),
                "vector": datasets.Sequence(datasets.Value("float32"), length=4),
                "ragged": datasets.Sequence(datasets.Value("float32")),
                "image": datasets.Array2D((3, 5), "uint8"),
                "inner": {"small": datasets.Value("int16"), "pair": datasets.Sequence(datasets.Value("int64"))},
            }
        ),
    )


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_values_are_as_stored(backend: Any) -> None:
    source = make()
    batch = HFAsUniEnvDataset.create(source, backend)
    assert len(batch) == LENGTH
    assert batch.backend is backend
    space: Any = batch.single_space
    kinds = {key: type(child) for key, child in space.items()}
    assert kinds["text"] is TextSpace
    assert kinds["flag"] is BinarySpace
    assert kinds["ragged"] is DynamicBoxSpace
    assert kinds["image"] is BoxSpace
    assert space["text"].max_length == 21  # of all texts, not only of those looked at
    if backend is not JaxComputeBackend:  # which has only 32 bits here
        assert backend.dtype_name(space["exact"].dtype) == "float64"
    assert backend.dtype_name(space["count"].dtype) == "int32"
    for index in (0, 33, -1):
        one = batch.get_at(index)
        assert space.contains(one)
        assert one["text"] == source[index]["text"]
        precision = 1e-6 if backend is JaxComputeBackend else 0
        assert float(one["exact"]) == pytest.approx(source[index]["exact"], rel=precision)
        assert backend.to_numpy(one["inner"]["pair"]).tolist() == source[index]["inner"]["pair"]
        assert backend.to_numpy(one["image"]).tolist() == source[index]["image"]
    several = batch.get_at([33, 2, 2, 7])
    assert backend.to_numpy(several["count"]).tolist() == [33, 2, 2, 7]
    assert several["text"].tolist() == [source[i]["text"] for i in (33, 2, 2, 7)]
    assert backend.to_numpy(several["inner"]["small"]).tolist() == [33, 2, 2, 7]
    sampler = StepSampler(batch, 4, seed=0)
    assert sampler.sampled_space.contains(sampler.sample())
    assert backend.to_numpy(batch.get_at([])["vector"]).shape == (0, 4)


def test_a_column_is_read_alone_and_is_no_dict() -> None:
    batch = HFAsUniEnvDataset.create(make(), NumpyComputeBackend)
    column = batch.get_column(["vector"])
    assert isinstance(column.single_space, BoxSpace)
    assert column.get_at([1, 2]).shape == (2, 4)
    assert column.single_space.contains(column.get_at(1))
    nested = batch.get_column(["inner", "small"])
    assert nested.get_at(slice(3, 6)).tolist() == [3, 4, 5]
    assert batch.get_at_with_metadata(1)[1] is None
    with pytest.raises(TypeError, match="is read-only"):
        batch.remove_at(0)


def test_what_no_space_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="column 'x' has rows without a value"):
        HFAsUniEnvDataset.create(datasets.Dataset.from_dict({"x": [1, None, 3]}), NumpyComputeBackend)
    with pytest.raises(ValueError, match="the dataset is empty"):
        HFAsUniEnvDataset.create(make().select([]), NumpyComputeBackend)
