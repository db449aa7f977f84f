"""The tables of `label_noise.py`: means over seeds and noise, by kind of run."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from label_noise_scores import Floats
from measuring import Record

from aol.stats import paired_gain

KINDS = (
    "digits", "digits, learnt by heart", "fashion-mnist, symmetric", "fashion-mnist, class", "cifar10, symmetric",
    "cifar10, class",
)  # fmt: skip
FIRST = (
    "aol suspicion", "loss", "margin", "cleanlab confident learning", "cleanlab normalized margin",
    "area under margin (AUM)", "mean margin", "mean loss", "share wrong", "share wrong x mean other",
    "suspicion + 0.2 share wrong", "area under age", "EMA of age", "EMA x other", "age",
)  # fmt: skip


def kind(case: Record) -> str:
    """Return which kind of run a case is: on what, by which noise where that matters, and whether learnt by heart."""
    if case["data"] == "digits":
        return "digits, learnt by heart" if case["memorises"] else "digits"
    return f"{case['data']}, {case['noise']}"


def table(cases: list[Record], names: list[str]) -> str:
    """Return average precision / precision among the top 1 %, in percent, by score and kind of run."""
    kinds = [each for each in KINDS if any(kind(case) == each for case in cases)]
    heads = [*kinds, "mean"]
    lines = ["| score | " + " | ".join(heads) + " |", "| --- |" + " --- |" * len(heads)]
    for name in names:
        found = {each: [case["scores"][name] for case in cases if kind(case) == each and name in case["scores"]]
                 for each in kinds}  # fmt: skip
        means = [np.mean(values, axis=0) if values else None for values in found.values()]
        whole = None if any(mean is None for mean in means) else np.mean(means, axis=0)  # type: ignore[arg-type]
        lines.append(f"| {name} | " + " | ".join(_cell(mean) for mean in [*means, whole]) + " |")
    counts = [sum(kind(case) == each for case in cases) for each in kinds]
    return "\n".join([*lines, "| runs | " + " | ".join(map(str, counts)) + f" | {sum(counts)} |"])


def _cell(mean: Floats | None) -> str:
    return "" if mean is None else f"{100 * mean[0]:.1f} / {100 * mean[1]:.1f}"


def paired(cases: list[Record], one: str, other: str) -> str:
    """Return the mean difference in average precision between two scores, with Student's interval over runs."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        if one in case["scores"] and other in case["scores"]:
            by_kind[kind(case)].append(case["scores"][one][0] - case["scores"][other][0])
    words = []
    for name in (each for each in KINDS if each in by_kind):
        gain = paired_gain([100 * value for value in by_kind[name]])
        interval = f"{gain.interval[0]:+.1f} to {gain.interval[1]:+.1f}, " if gain.interval else ""
        words.append(f"{name} {gain.mean:+.1f} ({interval}n = {len(by_kind[name])})")
    return f"{one} against {other}: " + "; ".join(words)


# What the guide shows: the name in the record, and in words.
SHOWN = {
    "aol suspicion": "**the score**",
    "loss": "loss, last epoch",
    "margin": "margin, last epoch",
    "cleanlab confident learning": "cleanlab's confident learning, last epoch",
    "cleanlab, cross-validated, confident learning": "the same, cross-validated: five more trainings",
    "area under margin (AUM)": "mean logit margin (AUM)",
    "area under age": "mean age",
    "share wrong": "share of epochs wrong",
    "EMA of age": "smoothed age, last epoch",
    "mean loss": "mean loss",
    "suspicion + 0.2 share wrong": "the score and the share of epochs wrong",
}


def text(record: Record) -> str:
    """Return the table of the guide, with what it belongs to."""
    cases = [case for case in record["cases"] if case["part"] == "report"]
    machine = record["machine"]
    rows = table(cases, list(SHOWN))
    for name, words in SHOWN.items():
        rows = rows.replace(f"| {name} |", f"| {words} |")
    about = (
        f"`python benchmarks/label_noise.py`, on {machine['cpu']}; Python {machine['python']}, "
        f"torch {machine['torch']}, cleanlab {machine['cleanlab']}, aol {machine['aol']}. "
        "Scores were chosen on other seeds. "
        "Differences in average precision, with Student's intervals over runs:"
    )
    rivals = ("loss", "margin", "cleanlab confident learning", "area under margin (AUM)", "suspicion + 0.2 share wrong")
    lines = [f"- {paired(cases, 'aol suspicion', rival)}" for rival in rivals]
    for name in ("aol suspicion", *rivals):
        lines = [line.replace(f"{name}:", f"{SHOWN[name].strip('*')}:") for line in lines]
    return "\n".join([rows, "", about, "", *(line.replace("aol suspicion", "the score") for line in lines)])


def tables(record: Record) -> str:
    """Return the tables of both parts, and the paired differences that matter."""
    found = []
    for part, text in (("report", "Reported (seeds not used for the choice)"), ("choice", "Seeds of the choice")):
        cases = [case for case in record["cases"] if case["part"] == part]
        if cases:
            found += [f"{text}: average precision / precision among the top 1 %, in percent", table(cases, list(FIRST))]
        for rival in ("loss", "margin", "cleanlab confident learning", "share wrong", "suspicion + 0.2 share wrong"):
            found += [paired(cases, "aol suspicion", rival)] if cases else []
    crossed = [case for case in record["cases"] if case["crossed"]]
    if crossed:
        names = ["aol suspicion", *(name for name in crossed[0]["scores"] if "cross-validated" in name)]
        found += ["Where cleanlab had probabilities of networks that did not see the sample:", table(crossed, names)]
        found += [paired(crossed, "aol suspicion", name) for name in names[1:]]
    return "\n\n".join(found)
