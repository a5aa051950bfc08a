"""A view of a batch on another backend or device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic

import numpy as np

from unienv_interface.backends import BackendLike, ComputeBackend, parse_backend
from unienv_interface.backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from unienv_interface.env_base.wrapper import WrapperBArrayT, WrapperBDeviceT, WrapperBDtypeT, WrapperBRngT
from unienv_interface.space.row_layout import RowLayout, Rows
from unienv_interface.wrapper.backend_compat import data_to

from ..base.common import BatchBase, BatchT, WrapperBatchT, resolve_index
from ..base.windows import Limits, WindowQuery, Windows
from ._view import BatchView

__all__ = ["ToBackendOrDeviceBatch", "data_to"]


class ToBackendOrDeviceBatch(
    BatchView[WrapperBatchT, WrapperBArrayT, WrapperBDeviceT, WrapperBDtypeT, WrapperBRngT],
    Generic[
        WrapperBatchT,
        WrapperBArrayT,
        WrapperBDeviceT,
        WrapperBDtypeT,
        WrapperBRngT,
        BatchT,
        BArrayType,
        BDeviceType,
        BDtypeType,
        BRNGType,
    ],
):
    """A view of a batch on another backend, another device or both: every value is converted on reading and writing.

    Parameters
    ----------
    batch
        The samples; it stays open when the view is closed.
    backend
        The backend of the view, by default as of the batch.
    device
        The device of the view, by default as of the batch, or the default device of another backend.

    Examples
    --------
    >>> tensors = ToBackendOrDeviceBatch(buffer, "torch")
    >>> batch = StepSampler(tensors, 256).sample()
    >>> type(batch["obs"]).__name__
    'Tensor'
    """

    def __init__(self, batch: BatchBase, backend: BackendLike | None = None, device: Any = None) -> None:
        self.target_backend = batch.backend if backend is None else parse_backend(backend)
        self.target_device = batch.device if device is None and self.target_backend is batch.backend else device
        metadata_space = batch.single_metadata_space
        if metadata_space is not None:
            metadata_space = metadata_space.to(self.target_backend, self.target_device)
        super().__init__(batch, batch.single_space.to(self.target_backend, self.target_device), metadata_space)
        #: The layout of rows, if a row of the batch is a row of the view too.
        self._row_layout: RowLayout | None = RowLayout(self.single_space)
        if self._row_layout.has_heap or self._row_layout.dtype != RowLayout(batch.single_space).dtype:
            self._row_layout = None

    @property
    def is_mutable(self) -> bool:  # type: ignore[override]
        """Whether the batch below can be written."""
        return self.batch.is_mutable

    @property
    def backend(self) -> ComputeBackend:
        """The backend that samples are converted to."""
        return self.target_backend

    @property
    def device(self) -> Any:
        """The device that samples are moved to."""
        return self.target_device

    def _below(self, idx: Any) -> Any:
        return resolve_index(self.target_backend, idx, len(self))

    def _out(self, data: Any) -> Any:
        return data_to(data, self.batch.backend, self.target_backend, self.target_device)

    def _both_out(self, both: tuple[Any, dict[str, Any] | None]) -> tuple[Any, dict[str, Any] | None]:
        data, metadata = both
        return self._out(data), None if metadata is None else self._out(metadata)

    def _in(self, data: Any) -> Any:
        backend, device = self.batch.backend, self.batch.device
        if device is None:  # the default device: arrays of the caller may be on another one
            device = backend.device(backend.empty((0,)))
        return data_to(data, self.target_backend, backend, device)

    # -- reading ---------------------------------------------------------------------------------------------

    def get_at(self, idx: Any) -> Any:
        below = self._below(idx)
        rows = None if isinstance(below, int) else self.read_rows(below)
        if rows is None or self._row_layout is None:
            return self._out(self.batch.get_at(below))
        return self._row_layout.unpack_gathered(rows)

    def read_rows(self, positions: np.ndarray) -> Rows | None:
        return None if self._row_layout is None else self.batch.read_rows(positions)

    def get_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self._both_out(self.batch.get_at_with_metadata(self._below(idx)))

    def get_flattened_at(self, idx: Any) -> Any:
        return self._out(self.batch.get_flattened_at(self._below(idx)))

    def get_flattened_at_with_metadata(self, idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self._both_out(self.batch.get_flattened_at_with_metadata(self._below(idx)))

    def get_column_at(self, nested_keys: Sequence[Any], idx: Any) -> Any:
        return self._out(self.batch.get_column_at(nested_keys, self._below(idx)))

    def get_column_at_with_metadata(self, nested_keys: Sequence[Any], idx: Any) -> tuple[Any, dict[str, Any] | None]:
        return self._both_out(self.batch.get_column_at_with_metadata(nested_keys, self._below(idx)))

    def applies_mask(self, mask_keys: tuple[Any, ...]) -> bool:
        return self.batch.applies_mask(mask_keys)

    def read_windows(self, positions: np.ndarray, query: WindowQuery, limits: Limits | None = None) -> Windows:
        return self.read_column_windows(positions, (query,), limits)[0]

    def read_column_windows(
        self, positions: np.ndarray, queries: Sequence[WindowQuery], limits: Limits | None = None
    ) -> list[Windows]:
        moved = []
        for windows in self.batch.read_column_windows(positions, queries, limits):
            data, metadata = self._both_out((windows.data, windows.metadata))
            moved.append(windows._replace(data=data, metadata=metadata))
        return moved

    # -- writing ---------------------------------------------------------------------------------------------

    def set_at(self, idx: Any, value: Any) -> None:
        self.batch.set_at(self._below(idx), self._in(value))

    def set_flattened_at(self, idx: Any, value: Any) -> None:
        self.batch.set_flattened_at(self._below(idx), self._in(value))

    def append(self, value: Any) -> None:
        self.batch.append(self._in(value))

    def extend(self, value: Any) -> None:
        self.batch.extend(self._in(value))

    def extend_flattened(self, value: Any) -> None:
        self.batch.extend_flattened(self._in(value))

    def remove_at(self, idx: Any) -> None:
        self.batch.remove_at(self._below(idx))
