"""Studies: tables of runs with a rule for comparing them.

`spec.py` defines the runs of a study, `results.py` turns runs into one frame and into gains, `stats.py` judges them,
`tables.py`, `page.py` and `draw.py` show them; sentences are in `templates`.
"""

from aol.lab.study.spec import Method, Study, builtin_names, load

__all__ = ["Method", "Study", "builtin_names", "load"]
