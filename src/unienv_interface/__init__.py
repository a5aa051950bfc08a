"""UniEnv's interfaces: spaces, environments and what lies between them."""

from .space import Space

__all__ = ["Space"]
