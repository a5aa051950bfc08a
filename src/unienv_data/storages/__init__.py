"""Storages: where samples lie. Import the submodule of the one you want, or name it (see `registry`)."""
