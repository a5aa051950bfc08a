"""Describe, check, repair and convert recordings on disk.

A recording is a folder with a `ReplayBuffer` in it. Each function takes its path, prints nothing, and returns a data
class, which the command `unienv` prints.
"""

from ..replay_buffer.inspection import BeingWrittenError
from ._check import CheckReport, check
from ._content import KINDS, Finding
from ._convert import FORMATS, TARGETS, ConvertReport, convert
from ._info import ColumnInfo, Head, InfoReport, Summary, describe_difference, head, info, space_in_words
from ._repair import RepairReport, repair
from ._show import ShowReport, show
from ._stats import ColumnStats, StatsReport, stats
from .reading import ProgressCallback

# fmt: off
__all__ = [
    "CheckReport", "Finding", "KINDS", "RepairReport", "check", "repair",
    "ColumnInfo", "ColumnStats", "Head", "InfoReport", "StatsReport", "Summary", "describe_difference", "head", "info",
    "space_in_words", "stats",
    "ShowReport", "show", "FORMATS", "TARGETS", "ConvertReport", "convert",
    "BeingWrittenError", "ProgressCallback",
]
# fmt: on
