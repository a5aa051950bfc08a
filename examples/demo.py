"""Demonstration: record CartPole and sample from the recording, the same as `unienv demo`.

`python examples/demo.py` takes a few seconds.
"""

import sys

from unienv_data.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "demo")
    main()
