"""How the frames of columns of video are wanted when a storage of many columns is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from ..base.storage import SpaceStorage
from ._frame_cache import bytes_of


def decoding_options(
    classes: Mapping[str, type[SpaceStorage]], separator: str, columns: Mapping[str, Any], frame_cache: int | str
) -> dict[str, dict[str, Any]]:
    """The options of the parts that are video, by their keys; a ValueError if a pattern names none of them.

    They share the bytes of the cache.
    """
    names = {key: "/".join(key.split(separator)) for key, cls in classes.items() if cls.decodes_frames}
    for pattern in columns:
        if not any(fnmatchcase(name, pattern) for name in names.values()):
            raise ValueError(f"columns {pattern!r} names no column of video, these are {list(names.values())}")
    share = bytes_of(frame_cache) // max(1, len(names))
    options = {}
    for key, name in names.items():
        rule = next((columns[pattern] for pattern in columns if fnmatchcase(name, pattern)), None)
        form = {} if rule is None else {"resize": rule.resize, "crop": rule.crop}
        options[key] = {**form, "frame_cache": share}
    return options
