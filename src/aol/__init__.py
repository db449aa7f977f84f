"""Age of Learning: how long a model has kept getting something wrong."""

from aol._version import __version__

__all__ = ["__version__"]
