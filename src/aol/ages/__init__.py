"""Ages: pure functions, then `SampleAges` and `OldSet` (offline, arrivals) and `ClassAges` (streams)."""

from aol.ages.old import OldSet
from aol.ages.rules import age_step, ema_step
from aol.ages.sample import SampleAges
from aol.ages.stream import ClassAges

__all__ = ["ClassAges", "OldSet", "SampleAges", "age_step", "ema_step"]
