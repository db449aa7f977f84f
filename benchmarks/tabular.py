"""Ages for boosted trees of three libraries, on three imbalanced tables: all cases of `examples/boosted_trees.py`."""

from __future__ import annotations

import sys
import time
from itertools import product

from measuring import Record, belongs_to, report, seed_options, tables

MEASURES = {"balanced_accuracy": "Balanced accuracy, %", "worst_class": "Recall of the worst class, %"}
TABLES = ("breast_cancer", "digits", "wine")
MODELS = ("hist", "lightgbm", "xgboost")


def one_seed(table: str, model: str, imbalance: float, rounds: int, seed: int) -> list[Record]:
    import boosted_trees

    runs: list[Record] = []
    for method in boosted_trees.METHODS:
        began = time.process_time()
        found = boosted_trees.run(table, model, method, imbalance, rounds, seed)
        figures = {name.replace(" ", "_"): round(value / 100, 5) for name, value in found.items()}
        seconds = round(time.process_time() - began, 2)
        runs.append({"table": table, "model": model, "method": method, **figures, "seconds": seconds})
    return runs


def main(words: list[str] | None = None) -> int:
    parser = seed_options("Compare ages with balanced classes for boosted trees.", "tabular.json", 10)
    parser.add_argument("--imbalance", type=float, default=20.0, help="largest class of a training part over smallest")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of AgedClassifier")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), help="which tables")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="library of the trees")
    given = parser.parse_args(words)
    return report(
        one_seed,
        product(given.tables, given.models, [given.imbalance], [given.rounds]),
        given,
        keys=("table", "model", "method"),
        settings=("imbalance", "rounds"),
        packages=("scikit-learn", "lightgbm", "xgboost"),
        text=text,
    )


def text(record: Record) -> str:
    """Return the tables of a record."""
    shown = tables(record, rows=("table", "method"), column="model", measures=MEASURES, baseline="none")
    return f"{belongs_to(record)}\n\n{shown}"


if __name__ == "__main__":
    sys.exit(main())
