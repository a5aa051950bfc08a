"""Recorded experience to learn from: replay in TED form, and Minari's datasets.

The names here are those of the modules below, which are imported when a name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unienv_interface.utils.lazy import lazy_exports

if TYPE_CHECKING:
    from ._minari_export import export_minari
    from ._tensordict_storage import TensorDictStorage
    from ._writers import ImmutableDatasetWriter, RoundRobinWriter
    from .experience_replay import ExperienceReplay
    from .minari import MinariExperienceReplay
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            ".experience_replay": ["ExperienceReplay"],
            ".minari": ["MinariExperienceReplay"],
            "._minari_export": ["export_minari"],
            "._tensordict_storage": ["TensorDictStorage"],
            "._writers": ["ImmutableDatasetWriter", "RoundRobinWriter"],
        },
    )

__all__ = [
    "ExperienceReplay",
    "MinariExperienceReplay",
    "export_minari",
    "TensorDictStorage",
    "ImmutableDatasetWriter",
    "RoundRobinWriter",
]
