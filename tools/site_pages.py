"""Pages of the site that are made while it is built: one per class of the reference, the examples, the changelog.

A file in docs/reference/ lists names as `::: path.of.name`. Here each class that it names becomes a page of its own,
the functions of a module become one page, and the file itself becomes an overview. Names that the packages export and
no file lists are added to the section of their package, so that the reference has them all.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
REPOSITORY = "https://github.com/unienv/unienv"
#: Which section has the names that a package exports, where no file lists them. The first package that fits counts.
SECTIONS = {
    "unienv": "unienv",
    "unienv_interface.backends": "spaces",
    "unienv_interface.space": "spaces",
    "unienv_interface.space.space_utils": "spaces",
    "unienv_interface.transformations": "transformations",
    "unienv_interface.wrapper": "environments",
    "unienv_interface.func_wrapper": "environments",
    "unienv_interface.env_base": "environments",
    "unienv_interface.testing": "environments",
    "unienv_interface": "environments",
    "unienv_data.storages": "buffers",
    "unienv_data.replay_buffer": "buffers",
    "unienv_data.batches": "sampling",
    "unienv_data.samplers": "sampling",
    "unienv_data.on_policy": "sampling",
    "unienv_data.datasets": "datasets",
    "unienv_data.checking": "datasets",
    "unienv_data.testing": "buffers",
    "unienv_data": "buffers",
}
DIRECTIVE = re.compile(r"^::: (\S+)\n((?: {4}.*\n)*)", re.MULTILINE)


class Reference:
    """The names of the packages, as they are written down; nothing is imported."""

    def __init__(self) -> None:
        loader = griffe.GriffeLoader(search_paths=[ROOT / "src"])
        for package in ("unienv_interface", "unienv_data", "unienv"):
            loader.load(package)
        loader.resolve_aliases(external=False)
        self._modules = loader.modules_collection
        self._exported = dict(self._exports())

    def _exports(self) -> Iterator[tuple[str, str]]:
        """Each name by the path of what it means, and the shortest package that exports it."""
        for package in sorted(SECTIONS, key=len, reverse=True):
            for name in self.names(package):
                yield self.object(f"{package}.{name}").path, package

    def object(self, path: str) -> griffe.Object:
        found = self._modules[path]
        return found.final_target if isinstance(found, griffe.Alias) else found

    def names(self, module: str) -> list[str]:
        """What a module exports, or else defines without an underscore."""
        found = self.object(module)
        if found.exports is not None:
            listed = [str(getattr(name, "name", name)) for name in found.exports]
        else:
            listed = [name for name, member in found.members.items() if not member.is_alias and name[0] != "_"]
        return [name for name in listed if self._is_shown(f"{module}.{name}")]

    def _is_shown(self, path: str) -> bool:
        try:
            return self.object(path).kind in (griffe.Kind.CLASS, griffe.Kind.FUNCTION)
        except (KeyError, griffe.AliasResolutionError):
            return False

    def public_path(self, path: str, listed: str) -> str:
        """How a user imports it: from the shortest package that exports it, or else as the file has it."""
        package = self._exported.get(path)
        return listed if package is None else f"{package}.{_last(path)}"

    def summary(self, path: str) -> str:
        docstring = self.object(path).docstring
        text = "" if docstring is None else docstring.value.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        return text.replace("; see the module's docstring", "")

    def module_of_contract(self, path: str) -> str | None:
        """The module whose docstring the one of a class refers to, if it does."""
        found = self.object(path)
        refers = found.docstring is not None and "the module's docstring" in found.docstring.value
        return found.module.path if refers else None


class Section:
    """One file of docs/reference/ and the pages made of it."""

    def __init__(self, name: str, text: str, reference: Reference) -> None:
        self.name, self.reference = name, reference
        self.title = text.partition("\n")[0].removeprefix("# ")
        self.intro = DIRECTIVE.sub("", text.partition("\n")[2] + "\n").strip()
        self.paths: set[str] = set()
        self.classes: dict[str, str] = {}  # by public path, with the options of the directive
        self.functions: dict[str, list[str]] = {}  # by module, public paths
        for path, options in DIRECTIVE.findall(text + "\n"):
            names = reference.names(path) if reference.object(path).kind is griffe.Kind.MODULE else []
            for listed in [f"{path}.{name}" for name in names] or [path]:
                self.add(listed, options)

    def add(self, listed: str, options: str = "") -> None:
        found = self.reference.object(listed)
        if found.path in self.paths:
            return
        self.paths.add(found.path)
        public = self.reference.public_path(found.path, listed)
        if found.kind is griffe.Kind.CLASS:
            self.classes[public] = options
        else:
            self.functions.setdefault(public.rpartition(".")[0], []).append(public)

    def pages(self) -> list[tuple[str, str, str]]:
        """Title, file and text of each page but the overview."""
        found = [(_last(path), self._file(path), self._class_page(path, options)) for path, options in self._sorted()]
        for module, paths in sorted(self.functions.items()):
            text = f"# Functions of {module}\n\n" + "\n".join(_entry(path, "", 2) for path in paths)
            found.append((f"Functions of {_last(module)}", self._file(module), text))
        return found

    def _class_page(self, path: str, options: str) -> str:
        module = self.reference.module_of_contract(path)
        if module is None:
            return _entry(path, options, 1)
        shown = "{members: false, show_root_heading: false, show_root_toc_entry: false, heading_level: 2}"
        return f"{_entry(path, options, 1)}\n## The module's docstring\n\n::: {module}\n    options: {shown}\n"

    def _sorted(self) -> list[tuple[str, str]]:
        return sorted(self.classes.items(), key=lambda item: _last(item[0]).lower())

    def _file(self, path: str) -> str:
        return f"reference/{self.name}/{path if path in self.functions else _last(path)}.md"

    def overview(self) -> str:
        """What there is, in one table."""
        rows = [
            f"| [`{_last(path)}`]({self.name}/{_last(path)}.md) | {self.reference.summary(path)} |"
            for path, _ in self._sorted()
        ]
        for module, paths in sorted(self.functions.items()):
            rows += [
                f"| [`{_last(path)}()`]({self.name}/{module}.md#{path}) | {self.reference.summary(path)} |"
                for path in paths
            ]
        return f"# {self.title}\n\n{self.intro}\n\n| name | what it is |\n| --- | --- |\n" + "\n".join(rows) + "\n"


def _entry(path: str, options: str, level: int) -> str:
    if level == 1:
        return f"::: {path}\n{options}"
    return f"::: {path}\n    options: {{heading_level: {level}, show_root_full_path: false}}\n"


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def sections() -> dict[str, Section]:
    """All sections of the reference, with every public name in one of them."""
    reference = Reference()
    files = sorted((ROOT / "docs" / "reference").glob("*.md"))
    found = {path.stem: Section(path.stem, path.read_text(encoding="utf-8"), reference) for path in files}
    listed = {path for section in found.values() for path in section.paths}
    for package, name in SECTIONS.items():
        for exported in reference.names(package):
            path = reference.object(f"{package}.{exported}").path
            if path not in listed:
                found[name].add(f"{package}.{exported}")
                listed.add(path)
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and put them into the navigation."""
    made = {}
    for section in sections().values():
        overview, pages = f"reference/{section.name}.md", section.pages()
        _add(files, config, overview, section.overview())
        for _, uri, text in pages:
            _add(files, config, uri, text)
        made[overview] = [{"Overview": overview}, *({title: uri} for title, uri, _ in pages)]
    _add(files, config, "changelog.md", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    config.nav = _with_pages(config.nav, made)
    return files


def _add(files: Files, config: MkDocsConfig, uri: str, text: str) -> None:
    present = files.get_file_from_path(uri)
    if present is not None:
        files.remove(present)
    files.append(File.generated(config, uri, content=text))


def _with_pages(nav: Any, made: dict[str, Any]) -> Any:
    if isinstance(nav, list):
        return [_with_pages(item, made) for item in nav]
    if isinstance(nav, dict):
        return {title: _with_pages(item, made) for title, item in nav.items()}
    return made.get(nav, nav)


# -- figures of the landing page ---------------------------------------------------------------------------

#: What is done, its subject and name in the results, and the peers it is compared with.
FIGURES = (
    ("Sample 256 of a million transitions, PyTorch", "sampling", "sample, PyTorch", ("torchrl", "stable-baselines3")),
    ("Sample 64 windows of 16 steps, NumPy", "windows", "windows of 16, NumPy", ("torchrl", "torchrl cached")),
    ("Sample 256 by priority and update", "prioritized", "sample and update", ("torchrl", "cpprb")),
    ("Append one transition", "writing", "append of one", ("torchrl", "stable-baselines3")),
    ("Sample 256 of a Minari dataset", "minari", "sample of 256", ("torchrl",)),
    ("Step 8 HalfCheetah, in workers", "vector", "8 HalfCheetah-v5, workers", ("gymnasium Async", "stable-baselines3")),
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put figures and examples in the place of their markers."""
    for marker, text in (("<!-- figures -->", _figures), ("<!-- examples -->", _examples)):
        if marker in markdown:
            markdown = markdown.replace(marker, text())
    return markdown


def _examples() -> str:
    """Each program of examples/ with its docstring, its learning curve if there is one, and its code."""
    parts = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        code = path.read_text(encoding="utf-8")
        summary, _, said = (ast.get_docstring(ast.parse(code)) or path.stem).partition("\n")
        title, _, summary = summary.partition(": ")
        plot = f"images/examples/{path.stem}.png"
        shown = f"![Learning curve of {path.name}]({plot})\n\n" if (ROOT / "docs" / plot).exists() else ""
        source = textwrap.indent(code, "    ")
        parts.append(
            f"## {title}\n\n{summary[:1].upper()}{summary[1:]}\n\n{said.strip()}\n\n{shown}"
            f'??? example "examples/{path.name}"\n\n    ```python\n{source}    ```\n'
        )
    return "\n".join(parts)


def _figures() -> str:
    run = json.loads((ROOT / "benchmarks" / "results" / "latest.json").read_text(encoding="utf-8"))
    results = {(result["subject"], result["name"]): result for result in run["results"]}
    rows = ["| work | UniEnv | others |", "| --- | --- | --- |"]
    for title, subject, name, peers in FIGURES:
        result = results.get((subject, name))
        if result is None:
            continue
        medians = {
            outcome["name"]: statistics.median(outcome["rounds"])
            for outcome in result["outcomes"]
            if outcome.get("rounds")
        }
        others = ", ".join(f"{peer} {_figure(medians[peer], result['unit'])}" for peer in peers if peer in medians)
        rows.append(f"| {title} | {_figure(medians['unienv'], result['unit'])} | {others} |")
    machine = run["machine"]
    rows.append(
        f"\nMedians of `make bench` on {run['date']}: {machine['cpu']}, {machine['cores']} cores, Python "
        f"{machine['python']}, all in one run that takes turns. [Benchmarks](benchmarks.md) has the rest, "
        f"the versions, how each library was used, and the rows in which others are ahead."
    )
    return "\n".join(rows)


def _figure(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
