"""Experience replay in TED form (TensorDicts), and Minari datasets.

Modules are imported when one of their names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unienv_interface.utils.lazy import lazy_exports

if TYPE_CHECKING:
    from ._minari_export import export_minari
    from ._storage import ImmutableDatasetError, ImmutableDatasetWriter, RoundRobinWriter, Writer
    from .experience_replay import ExperienceReplay
    from .minari import MinariExperienceReplay
    from .offline import EpisodeSummary
    from .tensordict_storage import TensorDictStorage
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            ".experience_replay": ["ExperienceReplay"],
            ".minari": ["MinariExperienceReplay"],
            ".offline": ["EpisodeSummary"],
            ".tensordict_storage": ["TensorDictStorage"],
            "._minari_export": ["export_minari"],
            "._storage": ["ImmutableDatasetError", "ImmutableDatasetWriter", "RoundRobinWriter", "Writer"],
        },
    )

__all__ = [
    "ExperienceReplay",
    "MinariExperienceReplay",
    "EpisodeSummary",
    "TensorDictStorage",
    "export_minari",
    "ImmutableDatasetError",
    "ImmutableDatasetWriter",
    "RoundRobinWriter",
    "Writer",
]
