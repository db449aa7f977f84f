"""Runs are trained on small networks, in this process and in copies of it."""

from tests.lab.engine.conftest import _loaded, _small_networks

__all__ = ["_loaded", "_small_networks"]
