"""Transformations: pure mappings from values of one space to values of another."""

from .batch_and_unbatch import BatchifyTransformation, UnBatchifyTransformation
from .chained_transform import ChainedTransformation
from .crop import CropTransformation
from .dict_transform import DictTransformation
from .filter_dict import DictExcludeKeyTransformation, DictIncludeKeyTransformation
from .flatten_dict_transform import FlattenDictTransformation, UnflattenDictTransformation
from .identity import IdentityTransformation
from .image_compress import ImageCompressTransformation, ImageDecompressTransformation
from .image_resize import ImageResizeTransformation
from .iter_transform import IterativeTransformation, LeafwiseTransformation, register_leaf_function
from .normalize import NormalizeTransformation
from .random_image import ColorJitterTransformation, RandomCropTransformation, RandomShiftTransformation
from .rescale import RescaleTransformation
from .serialization_utils import json_to_transformation, register_transformation, transformation_to_json
from .transformation import DataTransformation

__all__ = [
    "DataTransformation",
    "IdentityTransformation",
    "RescaleTransformation",
    "NormalizeTransformation",
    "CropTransformation",
    "RandomCropTransformation",
    "RandomShiftTransformation",
    "ColorJitterTransformation",
    "ImageCompressTransformation",
    "ImageDecompressTransformation",
    "ImageResizeTransformation",
    "BatchifyTransformation",
    "UnBatchifyTransformation",
    "ChainedTransformation",
    "DictTransformation",
    "DictIncludeKeyTransformation",
    "DictExcludeKeyTransformation",
    "FlattenDictTransformation",
    "UnflattenDictTransformation",
    "IterativeTransformation",
    "LeafwiseTransformation",
    "transformation_to_json",
    "json_to_transformation",
    "register_transformation",
    "register_leaf_function",
]
