"""Recorded experience to learn from: replay in TED form, and Minari's datasets.

The names here are those of the modules below, which are imported when a name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unienv_interface.utils.lazy import lazy_exports

if TYPE_CHECKING:
    from ._minari_export import export_minari as export_minari
    from ._storage import ImmutableDatasetError as ImmutableDatasetError
    from ._storage import ImmutableDatasetWriter as ImmutableDatasetWriter
    from ._storage import RoundRobinWriter as RoundRobinWriter
    from ._storage import Writer as Writer
    from .experience_replay import ExperienceReplay as ExperienceReplay
    from .minari import MinariExperienceReplay as MinariExperienceReplay
    from .offline import EpisodeSummary as EpisodeSummary
    from .tensordict_storage import TensorDictStorage as TensorDictStorage

_HOMES = {
    ".experience_replay": ("ExperienceReplay",),
    ".minari": ("MinariExperienceReplay",),
    ".offline": ("EpisodeSummary",),
    ".tensordict_storage": ("TensorDictStorage",),
    "._minari_export": ("export_minari",),
    "._storage": ("ImmutableDatasetError", "ImmutableDatasetWriter", "RoundRobinWriter", "Writer"),
}

__all__ = [name for names in _HOMES.values() for name in names]

__getattr__ = lazy_exports(__name__, _HOMES)
