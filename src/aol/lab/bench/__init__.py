"""`aol bench`: speed and memory of the engine on this machine, compared with a plain training loop."""

from aol.lab.bench import measure

__all__ = ["measure"]
