"""Studies: tables of runs with a rule for comparing them.

`spec.py` says which runs a study has, `comparisons.py` turns runs into results, `verdict.py` judges them, `tables.py`,
`formats.py`, `page.py` and `draw.py` show them. Runs are trained by `aol.runs.driver`, like those of `aol train`.
"""

from aol.study.spec import Method, Study, builtin_names, load

__all__ = ["Method", "Study", "builtin_names", "load"]
