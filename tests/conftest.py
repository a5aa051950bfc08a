"""Settings that must hold before any framework is imported, Hypothesis profiles, tests that PyTorch is too old for."""

import os
import signal

# Set before the first import of the library concerned. A run on an accelerator overrides them from outside.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # pytest-xdist already runs one process per core

import numpy as np
import pytest
from hypothesis import settings

# `ci` draws the same examples every time, so a failure seen there is seen here; `dev` searches.
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=25, print_blob=True)
settings.register_profile("dev", deadline=None, max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Shells start what runs in the background with Ctrl-C ignored, and so would be all that the tests press it for.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _lacks_unsigned() -> bool:
    """Whether the installed PyTorch cannot index arrays of uint16, uint32 and uint64, which older releases cannot."""
    try:
        import torch
    except ImportError:
        return False
    try:
        torch.from_numpy(np.zeros(2, np.uint16))[torch.tensor([0])]
    except (RuntimeError, TypeError):
        return True
    return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    unsigned = ("uint16", "uint32", "uint64", "all_dtypes")
    found = [item for item in items if "pytorch" in item.name and any(name in item.name for name in unsigned)]
    if found and _lacks_unsigned():
        for item in found:
            item.add_marker(pytest.mark.skip(reason="the installed PyTorch cannot index unsigned integers"))
