"""UniEnv's interfaces: spaces, environments, and the mappings between spaces.

The packages below define the names here and are imported when a name is first used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if sys.platform == "win32":
    raise ImportError("UniEnv needs the file locks and semaphores of POSIX, which Windows lacks: run it in WSL 2 there")

from .utils.lazy import lazy_exports

if TYPE_CHECKING:
    from .env_base import (
        ActionWrapper,
        AsyncVecEnv,
        ContextObservationWrapper,
        Env,
        FuncEnv,
        FuncEnvBasedEnv,
        FuncEnvWrapper,
        SyncVecEnv,
        WorkerDied,
        Wrapper,
    )
    from .space import Space
    from .transformations import (
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
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            ".env_base": [
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
            ],
            ".space": ["Space"],
            ".transformations": [
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
            ],
        },
    )

__all__ = [
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
    "Space",
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
]
