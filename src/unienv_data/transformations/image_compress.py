"""The documented path of `unienv_interface.transformations.image_compress`."""

from unienv_interface.transformations.image_compress import (
    CONSERVATIVE_COMPRESSION_RATIOS,
    JPEG_QUALITY_COMPRESSION_MAP,
    ImageCompressTransformation,
    ImageDecompressTransformation,
    get_jpeg_compression_ratio,
)

__all__ = [
    "CONSERVATIVE_COMPRESSION_RATIOS",
    "JPEG_QUALITY_COMPRESSION_MAP",
    "ImageCompressTransformation",
    "ImageDecompressTransformation",
    "get_jpeg_compression_ratio",
]
