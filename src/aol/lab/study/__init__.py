"""Studies: tables of runs with a rule for comparing them.

`spec.py` defines the runs of a study, `comparisons.py` turns runs into results, `verdict.py` judges them, `tables.py`,
`formats.py`, `page.py` and `draw.py` show them; sentences are in `templates`. Runs are trained by
`aol.lab.train.driver`, like those of `aol train`.
"""

from aol.lab.study.spec import Method, Study, builtin_names, load

__all__ = ["Method", "Study", "builtin_names", "load"]
