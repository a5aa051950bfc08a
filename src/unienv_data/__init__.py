"""Storages, replay buffers, samplers and datasets over the spaces of `unienv_interface`."""
