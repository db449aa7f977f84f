"""Networks by name, each initialised from an explicit seed; `Stacked` turns R of them into one.

Every network ends in a linear layer called `head`. Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from aol._lazy import lazy

if TYPE_CHECKING:
    from aol.lab.nets.layers import Network
    from aol.lab.nets.registry import make, names
    from aol.lab.nets.stacked import Stacked, obstacle

__all__ = ["Network", "Stacked", "make", "names", "obstacle"]

__getattr__, __dir__ = lazy(__name__, {"layers": "Network", "registry": "make names", "stacked": "Stacked obstacle"})
