"""Does any form of age beat simpler weights? Forms are selected on some seeds and reported on others.

Small worlds with the small CNN, through the engine: Fashion-MNIST at 7×7 pixels on a stream whose long tail shifts
every ten steps, and offline. Each seed draws its own pictures. Seeds and pictures of the report are others than those
of the choice. Every family has six tries in the choice. A stream of digits, which needs no download, is there to be
asked for; its pictures are too few to be kept apart.

    OMP_NUM_THREADS=1 python benchmarks/forms_of_age.py [--worlds ...] [--data-dir FOLDER]

Continues if it was stopped; writes benchmarks/results/forms_of_age.json and prints the tables of forms_of_age_page.py.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from age_forms import Form, FormWeighting, spread
from comparing import setting, write_cases
from measuring import Record, options

from aol.lab.data import DataError, ImageSet, Pair, open_data
from aol.lab.engine import OfflineLoop, Settings, StreamLoop

SEEDS = {"choice": range(100, 103), "report": range(200, 220)}
WORST = 3  # classes
Stack: TypeAlias = tuple[str, str, int, list[Form]]


@dataclass(frozen=True)
class World:
    """What is learnt from: `per_class` pictures to draw long tails from, `tested` to test with, for each seed."""

    settings: Settings
    per_class: int
    tested: int
    shrink: int
    figure: float  # the last part of the epochs, over whose tests accuracies are averaged


COMMON = {"net": "cnn", "batch_size": 32, "lr": 0.05, "warmup": 0, "epochs": 40, "eval_every": 2}
STREAM = COMMON | {"scenario": "stream", "imbalance": 100, "memory": "reservoir:300", "schedule": "fixed"}
OFFLINE = COMMON | {"imbalance": 50, "schedule": "cosine"}
BALANCED = OFFLINE | {"imbalance": 1}  # classes of one size that differ in how hard they are: counts say nothing
# Of a balanced set each epoch shows a fiftieth; what is absent grows older. Each picture is seen about twice.
ARRIVAL = BALANCED | {"scenario": "arrival", "fraction": 0.02, "epochs": 100, "eval_every": 5}
WORLDS = {
    "fashion stream": World(Settings(data="fashion-mnist", **STREAM), 140, 60, 4, 0.5),  # type: ignore[arg-type]
    "fashion offline": World(Settings(data="fashion-mnist", **OFFLINE), 140, 60, 4, 0.2),  # type: ignore[arg-type]
    "fashion balanced": World(Settings(data="fashion-mnist", **BALANCED), 60, 60, 4, 0.2),  # type: ignore[arg-type]
    "fashion arrival": World(Settings(data="fashion-mnist", **ARRIVAL), 500, 60, 4, 0.2),  # type: ignore[arg-type]
    "digits stream": World(Settings(data="digits", **STREAM), 130, 40, 1, 0.5),  # type: ignore[arg-type]
}
USUAL = ("fashion stream", "fashion offline", "fashion balanced", "fashion arrival")


def _one(signal: str, power: float = 1.0, rho: float = 0.3) -> Form:
    return Form(((signal, power),), rho)


def _times(signal: str) -> list[Form]:
    return [Form((("frequency", p), (signal, t))) for p in (0.5, 0.75) for t in (0.25, 0.5, 1.0)]


def families(stream: bool) -> dict[str, list[Form]]:
    """Return what is tried in the choice: six forms a family.

    Why the other forms of age might help. A cap keeps what is never learnt from taking all weight. Persistence is age
    over what independent errors of the same rate would give: only how errors cling together. A soft age needs no
    threshold: 1 + error × age before.
    """
    own = _one("soft age") if stream else Form((("sample age", 1.0),), level="sample")
    return {
        "frequency": [_one("frequency", power) for power in (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)],
        "age": [_one("age", rho=rho) for rho in (0.1, 0.3, 1.0)]
        + [_one("age", 0.5), _one("age", 2.0), _one("log age")],
        "error": [_one("error", rho=rho) for rho in (0.1, 0.3, 1.0)]
        + [_one("error", 0.5), _one("error", 0.25), _one("expected age")],
        "frequency × age": _times("age"),
        "frequency × error": _times("error"),
        "frequency × error × age": [
            Form((("frequency", p), ("error", e), ("age", t)))
            for p in (0.5, 0.75)
            for e, t in ((0.25, 0.25), (0.5, 0.25), (0.25, 0.5))
        ],
        "other forms of age": [
            own,
            _one("capped age"),
            _one("persistence"),
            Form((("frequency", 0.5), ("persistence", 1.0))),
            Form((("age", 0.5), ("error", 0.5))),
            Form((("age", 1.0), ("error", 0.25))),
        ],
    }


NONE, AGE, ERROR = Form(), _one("age"), _one("error")
ROOT, INVERSE = _one("frequency", 0.5), _one("frequency", 1.0)
ERROR_AS_AGE = replace(ERROR, like=AGE.factors)
AGE_AS_ERROR = replace(AGE, like=ERROR.factors)
BOTH_AS_ROOT = Form((*ROOT.factors, ("age", 0.5)), like=ROOT.factors)
OTHERS = _one("wrong class's age")
# In the report whatever was chosen: controls, the paper's form, and pairs that differ in direction alone.
FIXED = [
    NONE, AGE, ERROR, _one("frequency", 0.25), ROOT, INVERSE, _one("cb"), ERROR_AS_AGE, AGE_AS_ERROR,
    BOTH_AS_ROOT, OTHERS,
]  # fmt: skip


def chosen(cases: Sequence[Record], world: str) -> dict[str, Form]:
    """Return each family's form with the best mean accuracy over the seeds of the choice."""
    found: dict[str, list[float]] = {}
    for case in cases:
        if case["world"] == world and case["part"] == "choice":
            found[case["form"]] = case["accuracy"]
    stream = WORLDS[world].settings.scenario == "stream"
    return {
        family: max(forms, key=lambda form: float(np.mean(found[form.name])))
        for family, forms in families(stream).items()
    }


def wanted(world: str, part: str, cases: Sequence[Record]) -> list[Form]:
    """Return the forms that a part trains, each once."""
    stream = WORLDS[world].settings.scenario == "stream"
    if part == "choice":
        return [NONE, *(form for forms in families(stream).values() for form in forms)]
    return list(dict.fromkeys([*FIXED, *chosen(cases, world).values()]))


def pictures(world: World, pair: Pair[ImageSet], part: str, seed: int) -> Pair[ImageSet]:
    """Return a seed's own balanced pool and test set. Of Fashion-MNIST, choice and report have a half each."""
    train, test = pair.train, pair.test
    if world.settings.data == "digits":  # too few for halves: all are dealt out anew for each seed
        whole = replace(
            train, images=torch.cat((train.images, test.images)), labels=torch.cat((train.labels, test.labels))
        )
        order = _drawn(whole.labels, world.per_class + world.tested, seed)
        kept, held = order[:, : world.per_class], order[:, world.per_class :]
        return replace(pair, train=_part(whole, kept, world.shrink), test=_part(whole, held, world.shrink))
    halves = []
    for split, size in ((train, world.per_class), (test, world.tested)):
        middle = len(split) // 2
        place = slice(0, middle) if part == "choice" else slice(middle, None)
        half = replace(split, images=split.images[place], labels=split.labels[place])
        halves.append(_part(half, _drawn(half.labels, size, seed), world.shrink))
    return replace(pair, train=halves[0], test=halves[1], augmentation=replace(pair.augmentation, pad=1))


def _drawn(labels: torch.Tensor, size: int, seed: int) -> torch.Tensor:
    """Return `size` places of each class, by lot, `int64 [C, size]`."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return torch.stack([order[labels[order] == each][:size] for each in range(int(labels.max()) + 1)])


def _part(whole: ImageSet, place: torch.Tensor, shrink: int) -> ImageSet:
    index = place.reshape(-1)
    images = F.avg_pool2d(whole.images[index].float(), shrink).round().to(torch.uint8)
    return replace(whole, images=images, labels=whole.labels[index])


def trained(world: World, pair: Pair[ImageSet], forms: list[Form], seed: int) -> list[Record]:
    """Train all forms from one seed, as one stack, and return the figures of each."""
    began = time.process_time()
    runs = [Settings(**form.settings(replace(world.settings, seed=seed))) for form in forms]  # type: ignore[arg-type]
    kind = StreamLoop if world.settings.scenario == "stream" else OfflineLoop
    loop = kind(runs, pair, device=torch.device("cpu"))
    loop.weights = FormWeighting(forms, loop)
    while not loop.done:
        loop.run_epoch()
    seconds = (time.process_time() - began) / len(forms)
    start = round(world.settings.epochs * (1 - world.figure))
    by_class = loop.history.by_class("test_accuracy")[start:].nanmean(0)  # [R, C]
    weights = loop.history.by_class("weight")[start:]
    found = []
    for row, form in enumerate(forms):
        right = (
            by_class[row].double() if not loop.failed[row] else torch.full((loop.num_classes,), 1 / loop.num_classes)
        )
        found.append(
            {
                "form": form.name,
                "accuracy": round(float(right.mean()), 5),
                "worst": round(float(right.sort().values[:WORST].mean()), 5),
                "spread": round(float(np.mean([spread(each) for each in weights[:, row]])), 4),
                "seconds": round(seconds, 2),
            }
        )
    return found


def main(words: list[str] | None = None) -> int:
    parser = options("Try forms of age and their rivals; judge those chosen on other seeds.", "forms_of_age.json")
    parser.add_argument("--worlds", nargs="+", choices=list(WORLDS), default=list(USUAL), help="what to learn from")
    parser.add_argument("--part", nargs="+", choices=list(SEEDS), default=list(SEEDS), help="which seeds")
    parser.add_argument("--data-dir", help="where data sets lie")
    parser.add_argument("--most", type=int, help="train at most so many stacks")
    given = parser.parse_args(words)
    try:
        record = json.loads(given.out.read_text()) if given.out.exists() else {"cases": []}
        pairs = {
            name: open_data(name, given.data_dir) for name in {WORLDS[each].settings.data for each in given.worlds}
        }
    except (OSError, ValueError, DataError) as error:
        parser.error(f"{error} (the record is {given.out})")
    for world in given.worlds:
        if "choice" not in given.part and any(missing(record, [world], ["choice"])):
            parser.error(f"the choice of {world} is not complete, and the report needs it")
    stacks = missing(record, given.worlds, given.part)
    for world, part, seed, forms in itertools.islice(stacks, given.most):
        pair = pairs[WORLDS[world].settings.data]
        assert isinstance(pair.train, ImageSet)
        runs = trained(WORLDS[world], pictures(WORLDS[world], pair, part, seed), forms, seed)  # type: ignore[arg-type]
        note(record, world, part, seed, runs)
        save(record, given.out)
        print(f"{world}, {part}, seed {seed}: {len(forms)} runs, {runs[0]['seconds']} s each", flush=True)
    from forms_of_age_page import text

    print(text(record))
    return 0


def missing(record: Record, worlds: Sequence[str], parts: Sequence[str]) -> Iterator[Stack]:
    """Yield what is not in the record yet: a world, a part, a seed and its forms. The report waits for the choice."""
    for part in parts:
        for seed in SEEDS[part]:
            for world in worlds:
                done = {
                    case["form"]
                    for case in record["cases"]
                    if (case["world"], case["part"]) == (world, part) and seed in case["seeds"]
                }
                forms = [form for form in wanted(world, part, record["cases"]) if form.name not in done]
                if forms:
                    yield world, part, seed, forms


def note(record: Record, world: str, part: str, seed: int, runs: Sequence[Record]) -> None:
    """Add the runs of one seed to the cases of the record: one a world, part and form, with a figure a seed."""
    for run in runs:
        key = {"world": world, "part": part, "form": run["form"]}
        case = next((each for each in record["cases"] if key.items() <= each.items()), None)
        if case is None:
            case = {**key, "seeds": [], **{name: [] for name in run if name != "form"}}
            record["cases"].append(case)
        case["seeds"].append(seed)
        for name in run:
            if name != "form":
                case[name].append(run[name])


def save(record: Record, out: Path) -> None:
    """Write the record so that whoever stops it meanwhile finds the one before."""
    record["machine"] = setting("scikit-learn", "scipy")
    new = out.with_suffix(".new")
    write_cases(record, new)
    new.replace(out)


if __name__ == "__main__":
    sys.exit(main())
