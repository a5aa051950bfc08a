"""Storages made of storages, for the samples of `buffers.number_space`."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

from unienv_data.base import SpaceStorage
from unienv_data.storages.backend_compat import ToBackendOrDeviceStorage
from unienv_data.storages.dict_storage import DictStorage
from unienv_data.storages.flattened import FlattenedStorage
from unienv_data.storages.list_storage import ListStorage
from unienv_data.storages.packed import PackedStorage
from unienv_data.storages.transformation import TransformedStorage
from unienv_interface.backends import deserialize_backend
from unienv_interface.transformations import DictTransformation, FlattenDictTransformation, RescaleTransformation


class Kind(NamedTuple):
    """A class and its options; `on_disk` says whether it keeps samples in files."""

    storage_cls: type[SpaceStorage]
    options: dict[str, Any]
    on_disk: bool = True


_RESCALED = {"data_transformation": DictTransformation({"number": RescaleTransformation(new_dtype="float64")})}
_JOINED = {"data_transformation": FlattenDictTransformation()}
_IN_LIST = {"inner_storage_cls": ListStorage}

KINDS = {
    "list": Kind(ListStorage, {}, False),
    "flattened": Kind(FlattenedStorage, {}),
    "flattened list": Kind(FlattenedStorage, _IN_LIST, False),
    "transformed": Kind(TransformedStorage, _RESCALED),
    "transformed list": Kind(TransformedStorage, {**_JOINED, **_IN_LIST}, False),
    "dict": Kind(DictStorage, {"storage_cls_map": {"inner/copies": PackedStorage, "*": PackedStorage}}),
    "dict of lists": Kind(DictStorage, {"storage_cls_map": {"number": ListStorage, "inner/*": ListStorage}}, False),
    "nested": Kind(
        DictStorage,
        {
            "storage_cls_map": {"inner": TransformedStorage, "*": FlattenedStorage},
            "key_kwargs": {"inner": _JOINED},
            "type_kwargs": {FlattenedStorage: {"inner_storage_cls": DictStorage}},
        },
    ),
}
if importlib.util.find_spec("torch"):
    KINDS["to backend"] = Kind(ToBackendOrDeviceStorage, {"backend": deserialize_backend("pytorch")})

ON_DISK = [name for name, kind in KINDS.items() if kind.on_disk]
