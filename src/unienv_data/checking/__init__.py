"""Looking at recordings on disk: what is in them, what is wrong with them; repairing and converting them.

A recording is a folder that a `ReplayBuffer` lies in. Each function takes its path, prints nothing, and returns a data
class, which `unienv` prints.
"""

from ..replay_buffer.inspection import BeingWrittenError
from ._check import CheckReport, check
from ._content import KINDS, Finding
from ._convert import FORMATS, TARGETS, ConvertReport, convert
from ._info import ColumnInfo, Head, InfoReport, Summary, describe_difference, head, info, space_in_words
from ._reading import ProgressCallback, chunks, columns_of, in_one_line, open_folder, unwatched
from ._repair import RepairReport, repair
from ._show import ShowReport, show
from ._stats import ColumnStats, StatsReport, stats

# fmt: off
__all__ = [
    "CheckReport", "Finding", "KINDS", "RepairReport", "check", "repair",
    "ColumnInfo", "ColumnStats", "Head", "InfoReport", "StatsReport", "Summary", "describe_difference", "head", "info",
    "space_in_words", "stats",
    "ShowReport", "show", "FORMATS", "TARGETS", "ConvertReport", "convert",
    "BeingWrittenError", "ProgressCallback", "chunks", "columns_of", "in_one_line", "open_folder", "unwatched",
]
# fmt: on
