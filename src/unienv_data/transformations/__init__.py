"""The documented path of transformations, which are defined in `unienv_interface.transformations`."""
