"""Write the tables of docs/beyond-counts.md, and its figures, from the record of `beyond_counts.py`.

    python benchmarks/beyond_counts_page.py

The verdicts follow from the rules in `results/studies/beyond-counts.md`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from beyond_counts import CANDIDATES, PILOTS, read
from measuring import RESULTS, Record, table

from aol.stats import paired_gain

DOCS = Path(__file__).parents[1] / "docs"
FORMS = {
    "skip": ("age",),
    "leave out": ("age",),
    "adjust": ("class age", "peak age"),
    "hidden": ("old set",),
    "stream": ("age",),
}
TITLES = {
    "skip": "leave out what has long been right",
    "leave out": "leave out what has never been right",
    "adjust": "age on top of logit adjustment",
    "hidden": "hidden groups without group labels",
    "stream": "age as an alarm in a stream",
}
NAMES = {"none": "plain training", "adjust none": "logit adjustment alone", "stream none": "class-balanced replay"}
LEAST, LOST, SAVED = 0.5, 0.2, 1.1  # points that count as a gain; that skipping may lose; times InfoBatch's savings
BOUND = "with groups"  # methods that know the groups of validation images
Values = dict[str, np.ndarray]  # of each method, by seed
Difference = tuple[float, float]  # mean and half of the interval of 95 %, in points


def by_set(lines: list[Record]) -> dict[tuple[str, str], dict[str, Values]]:
    """Return the measures of the judged seeds: by candidate and set, then by measure, in percent, in order of seeds."""
    sets: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = {}
    for line in sorted(lines, key=lambda line: line["seed"]):
        if line["seed"] >= PILOTS:
            measures = sets.setdefault((line["candidate"], line["set"]), {})
            for run in line["runs"]:
                for key in [key for key in run if key not in ("method", "setting")]:
                    measures.setdefault(key, {}).setdefault(run["method"], []).append(100 * run[key])
    every = [(candidate, name) for candidate, (_, _, names) in CANDIDATES.items() for name in names]
    return {
        key: {measure: {of: np.array(x) for of, x in rows.items()} for measure, rows in sets[key].items()}
        for key in every
        if key in sets
    }


def difference(now: np.ndarray, before: np.ndarray) -> Difference:
    known = paired_gain((now - before).tolist())
    low, high = known.interval or (np.nan, np.nan)
    return known.mean, (high - low) / 2


def shown(apart: Difference) -> str:
    return f"{round(apart[0], 2) + 0.0:+.2f} ± {apart[1]:.2f}".replace("-", "−").replace(" ", "\N{NO-BREAK SPACE}")


def named(candidate: str, method: str) -> str:
    return NAMES.get(f"{candidate} {method}") or method.replace("none", NAMES["none"])


def rivals(candidate: str, values: Values) -> list[str]:
    """Return the methods that a form of age must beat; those that know the groups are a bound."""
    return [method for method in values if method not in FORMS[candidate] and BOUND not in method]


def judged(candidate: str, form: str, measures: dict[str, Values]) -> tuple[bool, str]:
    """Return whether a form of age gains on a set, and the comparison that decides, by the rules of the plan."""
    values = measures[CANDIDATES[candidate][1]]
    if candidate == "skip":
        saved = measures["saved"]
        more, lost = difference(saved[form], saved["InfoBatch"]), difference(values[form], values["none"])
        enough = saved[form].mean() >= SAVED * saved["InfoBatch"].mean() and more[0] > more[1]
        text = f"{saved[form].mean():.1f} % of the samples saved at {shown(lost)} points"
        return enough and lost[0] >= -LOST, f"{text}; InfoBatch {saved['InfoBatch'].mean():.1f} %"
    apart = {rival: difference(values[form], values[rival]) for rival in rivals(candidate, values)}
    gains = all(mean >= LEAST and mean > half for mean, half in apart.values())
    nearest = min(apart, key=lambda rival: apart[rival][0])
    return gains, f"{shown(apart[nearest])} points over {named(candidate, nearest)}"


def verdicts(lines: list[Record]) -> str:
    """Return the table of the candidates: how age compares with the strongest rival on each set, and the verdict."""
    sets, rows = by_set(lines), []
    for candidate, (_, _, names) in CANDIDATES.items():
        known = [name for name in names if (candidate, name) in sets]
        if not known:
            continue
        of_form = {
            form: [judged(candidate, form, sets[candidate, name]) for name in known] for form in FORMS[candidate]
        }
        texts = [
            f"{name}: "
            + ", ".join((f"{form} " if len(of_form) > 1 else "") + own[i][1] for form, own in of_form.items())
            for i, name in enumerate(known)
        ]
        rows.append({
            "use of age": f"[{TITLES[candidate]}](#{anchor(candidate)})",
            "beside the strongest rival (95 %)": "; ".join(texts),
            "verdict": "**gain**" if any(all(gains for gains, _ in own) for own in of_form.values()) else "no gain",
        })  # fmt: skip
    return re.sub("-{4,}", "---", re.sub(r" {2,}\|", " |", table(rows)))


def anchor(candidate: str) -> str:
    return TITLES[candidate].replace(" ", "-")


def details(candidate: str, lines: list[Record]) -> str:
    """Return the table of a candidate: means of all measures in percent, and forms of age minus every other method."""
    rows, main = [], CANDIDATES[candidate][1]
    for (owner, name), measures in by_set(lines).items():
        if owner != candidate:
            continue
        for method, values in measures[main].items():
            row = {"set": name if method == "none" else "", "method": named(candidate, method)}
            row |= {measure: f"{measures[measure][method].mean():.1f}" for measure in sorted(measures, key=main.__ne__)}
            for form in FORMS[candidate]:
                own = method == form or BOUND in method
                row[f"{form} minus it"] = "" if own else shown(difference(measures[main][form], values))
            rows.append(row)
    return table([{key.replace("_", " "): cell for key, cell in row.items()} for row in rows])


def figure(candidate: str, lines: list[Record], folder: Path) -> None:
    """Draw every method's difference to plain training, with intervals."""
    sets = {name: measures for (owner, name), measures in by_set(lines).items() if owner == candidate}
    main = CANDIDATES[candidate][1]
    height = 0.7 + 0.25 * max(len(measures[main]) for measures in sets.values())
    how: dict[str, Any] = {"figsize": (6.2, height), "sharey": True, "squeeze": False, "layout": "constrained"}
    drawn, axes = plt.subplots(1, len(sets), **how)
    for axis, (name, measures) in zip(axes[0], sets.items(), strict=True):
        methods = [method for method in measures[main] if method != "none"][::-1]
        axis.axvline(0, color="#767676", linewidth=0.7, zorder=0)
        for row, method in enumerate(methods):
            mean, half = difference(measures[main][method], measures[main]["none"])
            colour = "#b2182b" if method in FORMS[candidate] else "#8a8a8a" if BOUND in method else "#2166ac"
            axis.errorbar(mean, row, xerr=half, fmt="o", color=colour, markersize=5, linewidth=1.5)
        saved = {method: f" ({values.mean():.0f} % saved)" for method, values in measures.get("saved", {}).items()}
        axis.set_yticks(range(len(methods)), [named(candidate, method) + saved.get(method, "") for method in methods])
        axis.set(xlabel=f"points over {named(candidate, 'none')}", title=name)
        axis.margins(y=0.15)
        axis.spines[["top", "right"]].set_visible(False)
    drawn.savefig(folder / f"beyond-counts-{candidate.replace(' ', '-')}.svg", metadata={"Date": None})
    plt.close(drawn)


def main() -> None:
    lines = read(RESULTS / "beyond_counts.jsonl")
    plt.rcParams.update({"font.size": 8, "axes.titlesize": 8, "svg.hashsalt": "aol"})
    page = DOCS / "beyond-counts.md"
    text = page.read_text()
    for what in ("verdicts", *dict.fromkeys(line["candidate"] for line in lines)):
        before, _, rest = text.partition(f"<!-- {what} -->")
        _, _, after = rest.partition("<!-- end -->")
        own = verdicts(lines) if what == "verdicts" else details(what, lines)
        text = f"{before}<!-- {what} -->\n\n{own}\n\n<!-- end -->{after}"
        if what != "verdicts":
            figure(what, lines, DOCS)
    page.write_text(text)


if __name__ == "__main__":
    main()
