"""Studies: which runs a table needs, which of them are missing, who trains them, and where they are kept.

Assumes the engine below: a study says what to train, never how. `spec.py` and `records.py` are what everything else
here, and every table, is made from.
"""

from aol.study.records import Record, Store
from aol.study.spec import Method, Study, builtin_names, load

__all__ = ["Method", "Record", "Store", "Study", "builtin_names", "load"]
