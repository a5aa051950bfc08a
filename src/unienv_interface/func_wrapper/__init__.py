"""Wrappers of functional environments."""

from .frame_stack import FuncFrameStackWrapper, FuncFrameStackWrapperState
from .transformation import FuncTransformWrapper

__all__ = ["FuncFrameStackWrapper", "FuncFrameStackWrapperState", "FuncTransformWrapper"]
