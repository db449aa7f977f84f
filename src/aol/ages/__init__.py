"""Ages: functions, then `SampleAges` (offline, arrivals) and `ClassAges` (streams)."""

from aol.ages.rules import age_step, ema_step
from aol.ages.sample import SampleAges
from aol.ages.stream import ClassAges

__all__ = ["ClassAges", "SampleAges", "age_step", "ema_step"]
