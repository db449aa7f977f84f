"""The tables of `forms_of_age.py`: selected forms, gains over plain training, and what age adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from age_forms import Form
from comparing import belongs_to
from forms_of_age import (
    AGE,
    AGE_AS_ERROR,
    BOTH_AS_ROOT,
    ERROR,
    ERROR_AS_AGE,
    FIXED,
    INVERSE,
    NONE,
    OTHERS,
    ROOT,
    WORLDS,
    chosen,
    families,
)
from measuring import Record, table

from aol.stats import holm, paired_gain

MEASURES = {"accuracy": "Accuracy", "worst": "Accuracy of the three worst classes"}
ALPHA = 0.05
# Comparisons: a form, or the name of a family, which stands for its selected form.
ADDS: dict[str, tuple[Form | str, Form | str]] = {
    "age − age of a wrong class": (AGE, OTHERS),
    "age − error, both as strong as age": (AGE, ERROR_AS_AGE),
    "age − error, both as strong as error": (AGE_AS_ERROR, ERROR),
    "frequency^-0.5 with − without age, equally strong": (BOTH_AS_ROOT, ROOT),
    "best age − best frequency": ("age", "frequency"),
    "best age − best error": ("age", "error"),
    "best frequency × age − best frequency": ("frequency × age", "frequency"),
    "best frequency × error − best frequency": ("frequency × error", "frequency"),
    "best frequency × age − best frequency × error": ("frequency × age", "frequency × error"),
    "best frequency × error × age − best frequency × error": ("frequency × error × age", "frequency × error"),
    "best other form of age − best frequency": ("other forms of age", "frequency"),
    # Not planned: asked when the worst classes gained by age × frequency, since that might be strength alone.
    "best frequency × age − frequency^-1": ("frequency × age", INVERSE),
}


def figures(record: Record, world: str, part: str, measure: str) -> dict[str, dict[int, float]]:
    """Return one figure of each form, by seed."""
    return {
        case["form"]: dict(zip(case["seeds"], case[measure], strict=True))
        for case in record["cases"]
        if (case["world"], case["part"]) == (world, part)
    }


def differences(found: Mapping[str, Mapping[int, float]], one: Form, other: Form) -> list[float]:
    """Return how much better one form is than another in points, for each seed that has both."""
    a, b = found[one.name], found[other.name]
    return [100 * (a[seed] - b[seed]) for seed in sorted(a.keys() & b.keys())]


def gains(
    record: Record, measure: str, rows: Mapping[str, tuple[Form | str, Form | str]], worlds: Sequence[str]
) -> list[dict[str, str]]:
    """Return rows of differences with 95 % intervals; a star where p, corrected over the whole table, is below 5 %."""
    apart = {}
    for world in worlds:
        best, found = chosen(record["cases"], world), figures(record, world, "report", measure)
        for row, sides in rows.items():
            one, other = (best[side] if isinstance(side, str) else side for side in sides)
            apart[row, world] = paired_gain(differences(found, one, other))
    corrected = dict(zip(apart, holm([gain.p for gain in apart.values()]), strict=True))
    lines = []
    for row in rows:
        line = {"": row}
        for world in worlds:
            gain = apart[row, world]
            low, high = gain.interval or (gain.mean, gain.mean)
            star = "*" if corrected[row, world] < ALPHA else ""
            line[world] = f"{gain.mean:+.1f}{star} ({low:+.1f} to {high:+.1f})"
        lines.append(line)
    return lines


def complete(record: Record) -> list[str]:
    """Return the worlds whose report has begun and has all its forms."""
    worlds = []
    for world in WORLDS:
        known = figures(record, world, "report", "accuracy")
        if known and all(form.name in known for form in [*FIXED, *chosen(record["cases"], world).values()]):
            worlds.append(world)
    return worlds


def choices(record: Record, worlds: Sequence[str]) -> list[dict[str, str]]:
    """Return each family's chosen form, with its accuracy on the seeds of the choice and on those of the report."""
    lines = []
    for family in families(stream=True):
        line = {"family": family}
        for world in worlds:
            form = chosen(record["cases"], world)[family]
            now, then = (_mean(figures(record, world, part, "accuracy")[form.name]) for part in ("choice", "report"))
            line[world] = f"{form.name}: {now:.1f}, {then:.1f}"
        lines.append(line)
    plain = {
        world: [_mean(figures(record, world, part, "accuracy")[NONE.name]) for part in ("choice", "report")]
        for world in worlds
    }
    return [{"family": "none"} | {world: f"{now:.1f}, {then:.1f}" for world, (now, then) in plain.items()}, *lines]


def _mean(values: Mapping[int, float]) -> float:
    return 100 * float(np.mean(list(values.values())))


def strengths(record: Record, worlds: Sequence[str]) -> list[dict[str, str]]:
    """Return how far the logarithms of the weights were spread, of the forms that are compared at equal strength."""
    forms = [form for form in FIXED if form is not NONE]
    spreads = {world: figures(record, world, "report", "spread") for world in worlds}
    return [
        {"form": form.name} | {world: f"{_mean(spreads[world][form.name]) / 100:.2f}" for world in worlds}
        for form in forms
    ]


def text(record: Record) -> str:
    """Return all tables of a record."""
    worlds = complete(record)
    if not worlds:
        return "No world is complete yet."
    seeds = {len(case["seeds"]) for case in record["cases"] if case["part"] == "report" and case["world"] in worlds}
    parts = [belongs_to(record | {"seeds": " to ".join(map(str, sorted({min(seeds), max(seeds)})))})]
    parts += ["### What was chosen", table(choices(record, worlds))]
    over_none: dict[str, tuple[Form | str, Form | str]] = {form.name: (form, NONE) for form in FIXED[1:]}
    over_none |= {f"best {family}": (family, NONE) for family in families(stream=True)}
    for title, rows in (("Gains over plain training", over_none), ("What age adds", ADDS)):
        parts.append(f"### {title}")
        for measure, what in MEASURES.items():
            parts.append(f"**{what}, points**\n\n{table(gains(record, measure, rows, worlds))}")
    parts += ["### Spread of the logarithms of the weights", table(strengths(record, worlds))]
    return "\n\n".join(parts)
