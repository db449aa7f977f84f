"""Coverage of 95 % intervals with few seeds, and the spurious gain from choosing settings.

Nothing is trained: accuracies are drawn from a normal distribution, and no setting is better than the baseline. The
tables are those of docs/statistics.md.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import stats

from aol.lab.study.stats import choose, choose_leaving_one_out
from aol.stats import inflation

TIMES, SETTINGS = 10_000, 10
Draws = npt.NDArray[np.float64]


def covers(differences: Draws, factor: float = 1.0) -> float:
    """Return how often Student's interval of each row contains zero; `factor` widens the variance."""
    seeds = differences.shape[1]
    half = stats.t.ppf(0.975, seeds - 1) * differences.std(1, ddof=1) * math.sqrt(factor / seeds)
    return float((np.abs(differences.mean(1)) <= half).mean())


def bootstrap_covers(differences: Draws, generator: np.random.Generator) -> float:
    """Return how often the percentile bootstrap interval of each row contains zero."""
    seeds = differences.shape[1]
    drawn = generator.integers(0, seeds, (2000, seeds))
    hits = 0
    for row in differences[:2000]:
        low, high = np.quantile(row[drawn].mean(1), [0.025, 0.975])
        hits += bool(low <= 0.0 <= high)
    return hits / 2000


def chosen(seeds: int, generator: np.random.Generator) -> dict[str, Draws]:
    """Return gains over the baseline, a row a study, by each way of choosing; luck on validation is luck on test."""
    found: dict[str, list[Draws]] = {"on its own": [], "on all": [], "on the others": []}
    for _ in range(TIMES):
        test, plain = generator.standard_normal((seeds, SETTINGS)), generator.standard_normal(seeds)
        found["on its own"].append(test.max(1) - plain)
        found["on all"].append(test[:, choose(test)] - plain)
        found["on the others"].append(test[np.arange(seeds), choose_leaving_one_out(test)] - plain)
    return {name: np.array(rows) for name, rows in found.items()}


def main() -> None:
    """Print the tables."""
    print("| seeds | bootstrap | Student's t |\n| ---: | ---: | ---: |")
    for seeds in (3, 4, 5, 10):
        generator = np.random.default_rng(seeds)
        fixed = generator.standard_normal((TIMES, seeds))
        print(f"| {seeds} | {bootstrap_covers(fixed, generator):.0%} | {covers(fixed):.0%} |")
    print("\n| seeds | chosen | made-up gain | covered | covered, widened |\n| ---: | --- | ---: | ---: | ---: |")
    for seeds in (3, 5, 10):
        for name, gains in chosen(seeds, np.random.default_rng(seeds)).items():
            wide = covers(gains, inflation(seeds, 1))
            made_up = f"{gains.mean():+.2f}" if abs(gains.mean()) >= 0.005 else "0.00"
            print(f"| {seeds} | {name} | {made_up} | {covers(gains):.0%} | {wide:.0%} |")
    print(f"\nNumPy {np.__version__}, {TIMES} made-up studies a row, {SETTINGS} settings.")


if __name__ == "__main__":
    main()
