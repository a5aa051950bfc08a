"""UniEnv's interfaces: spaces, environments, and the mappings between spaces.

The names here are those of the packages below, which are imported when a name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .utils.lazy import lazy_exports

if TYPE_CHECKING:
    from .env_base import *  # noqa: F403
    from .space import Space as Space
    from .transformations import *  # noqa: F403

_HOMES = {
    ".env_base": (
        "ActionWrapper",
        "AsyncVecEnv",
        "ContextObservationWrapper",
        "Env",
        "FuncEnv",
        "FuncEnvBasedEnv",
        "FuncEnvWrapper",
        "SyncVecEnv",
        "WorkerDied",
        "Wrapper",
    ),
    ".space": ("Space",),
    ".transformations": (
        "BatchifyTransformation",
        "ChainedTransformation",
        "CropTransformation",
        "DataTransformation",
        "DictExcludeKeyTransformation",
        "DictIncludeKeyTransformation",
        "DictTransformation",
        "FlattenDictTransformation",
        "IdentityTransformation",
        "ImageCompressTransformation",
        "ImageDecompressTransformation",
        "ImageResizeTransformation",
        "IterativeTransformation",
        "LeafwiseTransformation",
        "RescaleTransformation",
        "UnBatchifyTransformation",
        "UnflattenDictTransformation",
        "json_to_transformation",
        "register_leaf_function",
        "register_transformation",
        "transformation_to_json",
    ),
}

__all__ = [name for names in _HOMES.values() for name in names]

__getattr__ = lazy_exports(__name__, _HOMES)
