"""What is compared: a module per subject, each with a function `works` that lists what is measured.

A module imports other libraries only where it sets them up, so that the list can be had without any of them.
"""

from __future__ import annotations

import importlib

from harness import Work

SUBJECTS = (
    "rows",
    "sampling",
    "images",
    "cameras",
    "windows",
    "shared",
    "nstep",
    "hindsight",
    "imitation",
    "prioritized",
    "functional",
    "writing",
    "files",
    "vector",
    "recording",
    "training",
    "multiprocess",
    "minari",
    "memory",
    "growth",
    "calls",
)


def works_of(subject: str) -> list[Work]:
    """What is measured of a subject."""
    if subject not in SUBJECTS:
        raise ValueError(f"there is no subject {subject!r}; there are {', '.join(SUBJECTS)}")
    works: list[Work] = importlib.import_module(f"subjects.{subject}").works()
    return works


def title_of(subject: str) -> str:
    """The first line of what its module says about itself."""
    return (importlib.import_module(f"subjects.{subject}").__doc__ or subject).strip().splitlines()[0]
