"""The code in the documentation runs as it stands: the Python blocks of a page, in order, as one program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def program(page: Path) -> str:
    """The blocks of a page, on the lines that they have there, so that a traceback points at the page."""
    lines, inside = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            inside = line == "```python"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page: str, tmp_path: Path) -> None:
    code = program(DOCS / page)
    if not code.strip():
        pytest.skip("no code on this page")
    script = tmp_path / "page.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


MADE = {"changelog.md"}  # by tools/site_pages.py, with the pages of the reference


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": ([\w/]+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(set(listed) - MADE) == PAGES
    assert set(listed) >= MADE


def anchors_of(page: Path) -> set[str]:
    """The anchors that the site gives the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_within_the_site_lead_somewhere(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("https://", "http://")):
            continue
        name, _, anchor = link.partition("#")
        target = (DOCS / page).parent / name if name else DOCS / page
        if target.resolve().relative_to(DOCS).as_posix() in MADE:
            continue
        assert target.is_file(), f"{page}: {link}"
        if anchor:
            assert anchor in anchors_of(target), f"{page}: {link}: {sorted(anchors_of(target))}"
