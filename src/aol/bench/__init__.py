"""`aol bench`: speed and memory of the engine on this machine, beside the straightforward loop, in one go."""

from aol.bench import measure

__all__ = ["measure"]
