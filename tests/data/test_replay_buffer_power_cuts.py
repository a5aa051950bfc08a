"""Power cuts: any of the pages that were written since the last sync may be lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from power_cut import run


def test_three_hundred_power_cuts(tmp_path: Path) -> None:
    assert run(tmp_path, 300, seed=0) == 300


@pytest.mark.soak
def test_ten_thousand_power_cuts(tmp_path: Path) -> None:
    for part in range(20):
        assert run(tmp_path / str(part), 500, seed=1000 * (part + 1)) == 500
