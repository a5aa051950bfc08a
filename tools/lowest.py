"""Print the lowest versions that pyproject.toml allows, as constraints for pip: `python3 tools/lowest.py [EXTRA ...]`.

Those of the base dependencies and of the extras named, for the Python that runs this. An extra that is made of others
brings theirs.
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REQUIREMENT = re.compile(r"""(?P<name>[\w.-]+)(\[(?P<extras>[\w,-]+)\])?(>=(?P<version>[\w.]+))?(;(?P<marker>.*))?$""")

#: Packages that others bring, where a newer one does not go with the lowest of these: click 8.5 warns at typer 0.16.
BROUGHT = {"click": "8.4.2"}


def listed(text, name):
    """The strings of a list in a TOML file that is written as ours is."""
    (found,) = re.findall(rf"^{re.escape(name)} = \[(.*?)\]\s*(?:#[^\n]*)?$", text, re.MULTILINE | re.DOTALL)
    without_comments = re.sub(r"#[^\n\"]*$", "", found, flags=re.MULTILINE)
    return re.findall(r'"([^"]+)"', without_comments)


def applies(marker):
    """Whether a marker of ours, such as python_version >= '3.11', holds here."""
    found = re.match(r"\s*python_version\s*(>=|<)\s*'3\.(\d+)'\s*$", marker)
    if found is None:
        sys.exit(f"tools/lowest.py does not know the marker {marker!r}")
    is_newer = sys.version_info[1] >= int(found.group(2))
    return is_newer if found.group(1) == ">=" else not is_newer


def lowest(text, names):
    """{package: version} of these lists, and of those that they name."""
    versions = dict(BROUGHT)
    names = list(names)
    for name in names:  # which grows meanwhile
        for requirement in listed(text, name):
            found = REQUIREMENT.match(requirement.replace(" ", ""))
            marker = requirement.partition(";")[2]
            if marker and not applies(marker):
                continue
            if found.group("name") == "unienv":
                names += [extra for extra in found.group("extras").split(",") if extra not in names]
            elif found.group("version"):
                versions[found.group("name")] = found.group("version")
    return versions


if __name__ == "__main__":
    with open(os.path.join(ROOT, "pyproject.toml")) as file:
        for package, version in sorted(lowest(file.read(), ["dependencies", *sys.argv[1:]]).items()):
            print(f"{package}=={version}")
