"""Trains R runs at once: settings, batches, steps, clean passes, records, checkpoints.

An epoch reads on one screen in `offline.py` and `stream.py`; what they share is in `loop.py`.
"""

from aol.engine.offline import OfflineLoop
from aol.engine.settings import Settings, WrongSettingsError, grid, groups
from aol.engine.stream import StreamLoop
from aol.engine.training import Conduct, train

__all__ = ["Conduct", "OfflineLoop", "Settings", "StreamLoop", "WrongSettingsError", "grid", "groups", "train"]
