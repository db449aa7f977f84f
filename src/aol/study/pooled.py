"""Gains with one spread for all methods of a table: narrower than each method's own, if all of them vary alike.

Knows lines of a table. With three seeds a method's own spread is told from three differences, which Student's t makes
much of; five methods and three seeds tell a common spread by eight degrees of freedom. It is shown beside the verdict
and has no part in it: where a method varies more than the others, its interval is too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aol.engine.intervals import Gain, inflation
from aol.study.lines import Line
from aol.study.tries import luck_of_runs
from aol.study.verdict import LEAST_SEEDS

LEAST_METHODS = 3


def pooled_gains(lines: Sequence[Line], baseline: str) -> dict[str, Gain]:
    """Return the gain of every method over the baseline, averaged over the cells in which all methods are whole.

    For values v `[S, M]`, a row a seed and a column a method, the spread is that of what is left of them without the
    means of rows and columns, with (S - 1)(M - 1) degrees of freedom, and the error of a gain `s · √(2 f / S)`, where f
    is `inflation`. Empty with fewer than three seeds or methods.
    """
    methods = list(dict.fromkeys(line.method for line in lines))
    columns = [[line for line in lines if line.method == name] for name in methods]
    cells = list(zip(*columns, strict=True))
    whole = [cell for cell in cells if all(len(line.seeds) >= LEAST_SEEDS for line in cell)]
    taking_part = [line for cell in whole for line in cell]
    seeds = [seed for seed in whole[0][0].seeds if all(seed in line.seeds for line in taking_part)] if whole else []
    if len(seeds) < LEAST_SEEDS or len(methods) < LEAST_METHODS:
        return {}
    by_cell = [[[line.values[line.seeds.index(seed)] for line in cell] for seed in seeds] for cell in whole]
    values = np.array(by_cell, dtype=np.float64).mean(0)
    found = luck_of_runs(values)
    if found is None or found[0] <= 1e-12:
        return {}
    spread, freedom = math.sqrt(2.0) * found[0], found[1]
    base = methods.index(baseline)
    gains = {}
    for place, name in enumerate(methods):
        if place != base:
            chosen = int(any(line.settings > 1 for cell in whole for line in cell if line.method == name))
            mean = float((values[:, place] - values[:, base]).mean())
            error = spread * math.sqrt(inflation(len(seeds), chosen) / len(seeds))
            gains[name] = Gain(mean, len(seeds), spread, error, None, chosen, freedom - (len(seeds) - 1))
    return gains
