"""`python -m unienv_data.cli`, for environments without `unienv` on the path."""

from . import main

if __name__ == "__main__":
    main()
