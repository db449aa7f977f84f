"""Trains R runs at once: settings, batches, steps, clean passes, records, checkpoints.

An epoch reads on one screen in `offline.py` and `streaming.py`; what they share is in `loop.py`.
"""

from aol.engine.offline import OfflineLoop
from aol.engine.settings import Settings, WrongSettingsError, grid, stacks
from aol.engine.streaming import StreamLoop
from aol.engine.training import Conduct, train

__all__ = ["Conduct", "OfflineLoop", "Settings", "StreamLoop", "WrongSettingsError", "grid", "stacks", "train"]
