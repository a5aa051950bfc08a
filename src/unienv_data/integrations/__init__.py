"""Conversions between batches and datasets of other libraries. A module needs the library of its name."""
