"""The demonstration, for those who look here first: the same as `unienv demo`.

python examples/demo.py [OPTIONS]
"""

import sys

from unienv_data.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "demo")
    main()
