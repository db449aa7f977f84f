"""Trains R runs at once: settings, batches, steps, clean passes, history.

An epoch reads on one screen in `offline.py` and `stream.py`; what they share is in `loop.py`. Names are imported
when they are first used: `aol.lab.settings` needs no torch.
"""

from typing import TYPE_CHECKING

from aol._lazy import lazy

if TYPE_CHECKING:
    from aol.lab.engine.offline import OfflineLoop
    from aol.lab.engine.stream import StreamLoop
    from aol.lab.settings import Settings, WrongSettingsError, grid, groups

__all__ = ["OfflineLoop", "Settings", "StreamLoop", "WrongSettingsError", "grid", "groups"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "aol.lab.engine.offline": ("OfflineLoop",),
        "aol.lab.settings": ("Settings", "WrongSettingsError", "grid", "groups"),
        "aol.lab.engine.stream": ("StreamLoop",),
    },
)
