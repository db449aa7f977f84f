"""Trains R runs at once: settings, batches, steps, clean passes, history.

An epoch reads on one screen in `offline.py` and `stream.py`; what they share is in `loop.py`. Names are imported
when they are first used: `aol.engine.settings` needs no torch.
"""

from typing import TYPE_CHECKING

from aol._lazy import lazy

if TYPE_CHECKING:
    from aol.engine.offline import OfflineLoop
    from aol.engine.settings import Settings, WrongSettingsError, grid, groups
    from aol.engine.stream import StreamLoop

__all__ = ["OfflineLoop", "Settings", "StreamLoop", "WrongSettingsError", "grid", "groups"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "aol.engine.offline": ("OfflineLoop",),
        "aol.engine.settings": ("Settings", "WrongSettingsError", "grid", "groups"),
        "aol.engine.stream": ("StreamLoop",),
    },
)
