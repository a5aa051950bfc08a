"""The reference on the site has a page for every public class, and every public function in one."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("griffe") is None or importlib.util.find_spec("mkdocs") is None:
    pytest.skip("the site is built with the extra `docs`", allow_module_level=True)

TOOLS = Path(__file__).parent.parent / "tools" / "site_pages.py"
PACKAGES = ("unienv", "unienv_interface", "unienv_interface.space", "unienv_data", "unienv_data.datasets")


@pytest.fixture(scope="module")
def sections() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("site_pages", TOOLS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Any] = module.sections()
    return found


def test_every_public_name_is_on_a_page(sections: dict[str, Any]) -> None:
    shown = {path.rpartition(".")[2] for section in sections.values() for path in section.classes}
    shown |= {
        path.rpartition(".")[2]
        for section in sections.values()
        for paths in section.functions.values()
        for path in paths
    }
    for package in PACKAGES:
        module = importlib.import_module(package)
        names = {
            name
            for name in module.__all__
            if inspect.isroutine(getattr(module, name)) or inspect.isclass(getattr(module, name))
        }
        assert names - shown == set(), package


def test_every_name_on_a_page_has_examples(sections: dict[str, Any]) -> None:
    for section in sections.values():
        for path in [*section.classes, *(path for paths in section.functions.values() for path in paths)]:
            docstring = section.reference.object(path).docstring
            assert docstring is not None, path
            assert "\nExamples\n--------\n" in docstring.value, path


def test_every_page_has_one_class(sections: dict[str, Any]) -> None:
    pages = [uri for section in sections.values() for _, uri, _ in section.pages()]
    assert len(pages) == len(set(pages)) > 100
    texts = {uri: text for section in sections.values() for _, uri, text in section.pages()}
    assert texts["reference/buffers/ReplayBuffer.md"].startswith("::: unienv_data.ReplayBuffer\n")
    for section in sections.values():
        assert section.overview().startswith(f"# {section.title}\n")
