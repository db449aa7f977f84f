"""Does age lose right after a shift of a stream because its weights are late? Test: weights of one at these steps.

The Fashion-MNIST stream of forms_of_age.py, read at every step. A form that rests has weights of one at some steps of
every period; seed, images, order and observations are the same. Resting at the end of the periods is a control.

    OMP_NUM_THREADS=1 python benchmarks/after_a_shift.py [--data-dir FOLDER]

Writes benchmarks/results/after_a_shift.json and prints its table.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from age_forms import Form, FormWeighting
from comparing import belongs_to, setting, write_cases
from forms_of_age import AGE, ERROR, NONE, ROOT, WORLDS, World, pictures
from measuring import Record, options, table
from torch import Tensor

from aol.lab.data import DataError, ImageSet, Pair, open_data
from aol.lab.engine import Settings, StreamLoop
from aol.stats import paired_gain

SEEDS = range(400, 500)  # of no other comparison
# A form, and at which steps of a period of ten it rests, counted from zero.
RESTING: dict[str, tuple[Form, range]] = {
    "none": (NONE, range(0)),
    "age": (AGE, range(0)),
    "age, resting for a step": (AGE, range(1)),
    "age, resting for three": (AGE, range(3)),
    "age, resting for the last three": (AGE, range(7, 10)),
    "error": (ERROR, range(0)),
    "error, resting for a step": (ERROR, range(1)),
    "frequency^-0.5": (ROOT, range(0)),
}
COMPARED = {
    "age − none": ("age", "none"),
    "age, resting for a step − age": ("age, resting for a step", "age"),
    "age, resting for three − age": ("age, resting for three", "age"),
    "age, resting for the last three − age": ("age, resting for the last three", "age"),
    "age, resting for three − none": ("age, resting for three", "none"),
    "error − none": ("error", "none"),
    "error, resting for a step − error": ("error, resting for a step", "error"),
    "frequency^-0.5 − none": ("frequency^-0.5", "none"),
}


class RestingWeighting(FormWeighting):
    """Forms that may rest at some steps of a period."""

    def __init__(self, forms: list[Form], rests: Sequence[range], loop: StreamLoop) -> None:
        super().__init__(forms, loop)
        self._rests = rests

    def by_class(self, counts: Tensor, age_weight: Tensor, error_weight: Tensor, *, epoch: int) -> Tensor:
        """Return class weights `float32 [R, C]`, of one where a run rests."""
        place = epoch % self._loop.settings.period
        resting = torch.tensor([place in rest for rest in self._rests])
        return super().by_class(counts, age_weight, error_weight, epoch=epoch).masked_fill(resting[:, None], 1.0)


def one_seed(world: World, pair: Pair[ImageSet], seed: int) -> list[Record]:
    """Train every form on the stream of a seed; return its accuracy by step of the period, over the second half."""
    forms, rests = (list(column) for column in zip(*RESTING.values(), strict=True))
    common = replace(world.settings, seed=seed, eval_every=1)
    runs = [Settings(**form.settings(common)) for form in forms]  # type: ignore[arg-type]
    loop = StreamLoop(runs, pictures(world, pair, "report", seed), device=torch.device("cpu"))
    loop.weights = RestingWeighting(forms, rests, loop)
    while not loop.done:
        loop.run_epoch()
    late = loop.history.epoch("test_accuracy")[common.epochs // 2 :]  # [E / 2, R]
    places = late.view(-1, common.period, len(runs)).mean(0)
    return [
        {"form": name, "accuracy": [round(value, 5) for value in places[:, row].tolist()]}
        for row, name in enumerate(RESTING)
    ]


def text(record: Record) -> str:
    """Return the table of a record: differences at the first step after the head moved, at the others and at all."""
    found = {case["form"]: 100 * np.array(case["accuracy"]) for case in record["cases"]}  # [S, places]
    lines = []
    for row, (one, other) in COMPARED.items():
        apart = found[one] - found[other]
        line = {"": row}
        for title, places in (("first step", slice(1)), ("steps 2 to 4", slice(1, 4)), ("all steps", slice(None))):
            gain = paired_gain(apart[:, places].mean(1).tolist())
            low, high = gain.interval or (gain.mean, gain.mean)
            line[title] = f"{gain.mean:+.1f} ({low:+.1f} to {high:+.1f})"
        lines.append(line)
    return f"{belongs_to(record)}\n\n{table(lines)}"


def main(words: list[str] | None = None) -> int:
    parser = options("Let weights rest after the head of a stream has moved.", "after_a_shift.json")
    parser.add_argument("--data-dir", help="folder of the data sets")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="number of seeds")
    given = parser.parse_args(words)
    world = WORLDS["fashion stream"]
    try:
        pair = open_data(world.settings.data, given.data_dir)
    except (OSError, ValueError, DataError) as error:
        parser.error(str(error))
    assert isinstance(pair.train, ImageSet)
    cases: dict[str, Record] = {}
    for seed in SEEDS[: given.seeds]:
        for run in one_seed(world, pair, seed):  # type: ignore[arg-type]
            case = cases.setdefault(run["form"], {"form": run["form"], "seeds": [], "accuracy": []})
            case["seeds"].append(seed)
            case["accuracy"].append(run["accuracy"])
    record = {"seeds": given.seeds, "machine": setting("scikit-learn", "scipy"), "cases": list(cases.values())}
    write_cases(record, given.out)
    print(text(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
