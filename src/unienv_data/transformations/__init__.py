"""The documented path of transformations of data; they are in `unienv_interface.transformations`."""
