"""Ages: functions, then `SampleAges` and `OldSet` (offline, arrivals), `PartAges` (tokens), `ClassAges` (streams)."""

from aol.ages.old import OldSet
from aol.ages.parts import PartAges, pair_classes
from aol.ages.rules import age_step, ema_step
from aol.ages.sample import SampleAges
from aol.ages.sharded import ShardedSampleAges
from aol.ages.stream import ClassAges

__all__ = ["ClassAges", "OldSet", "PartAges", "SampleAges", "ShardedSampleAges", "age_step", "ema_step", "pair_classes"]
