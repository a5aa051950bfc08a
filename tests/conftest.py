"""Settings that must hold before any framework is imported, and the Hypothesis profiles."""

import os
import signal

# Set before the first import of the library concerned. A run on an accelerator overrides them from outside.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # pytest-xdist already runs one process per core

from hypothesis import settings

# `ci` draws the same examples every time, so a failure seen there is seen here; `dev` searches.
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=25, print_blob=True)
settings.register_profile("dev", deadline=None, max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Shells start what runs in the background with Ctrl-C ignored, and so would be all that the tests press it for.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
