"""Write tables and figures of docs/beyond-counts.md, from the lines of `beyond_counts.py` and `beyond_counts_gpu.py`.

    python benchmarks/beyond_counts_page.py

The verdicts follow from the rules in `results/studies/beyond-counts.md`.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from beyond_counts import CANDIDATES, PILOTS, read
from matplotlib.ticker import MaxNLocator
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
RIVALS = {"skip": "training on all"}  # what a form of age must be near to
SECOND = {"skip": "saved", "leave out": "mislabelled", "hidden": "others"}  # measures beside the metric
NAMES = {"none": "plain training", "skip none": "training on all", "leave out none": "training on all"}
NAMES |= {"adjust none": "logit adjustment alone", "stream none": "class-balanced replay"}
LEAST, LOST, SAVED = 0.5, 0.2, 1.1  # points that count as a gain; that skipping may lose; times InfoBatch's savings
FEWEST = 5  # seeds of a set
BOUND = "with groups"  # methods that know the groups of validation images
COLOURS = ("#b2182b", "#2166ac")
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
    small = [(candidate, name) for candidate, (_, _, names) in CANDIDATES.items() for name in names]
    every = dict.fromkeys([*small, *sets])
    return {
        key: {measure: {of: np.array(x) for of, x in rows.items()} for measure, rows in sets[key].items()}
        for key in every
        if key in sets and len(sets[key][CANDIDATES[key[0]][1]]["none"]) >= FEWEST
    }


def difference(now: np.ndarray, before: np.ndarray) -> Difference:
    known = paired_gain((now - before).tolist())
    low, high = known.interval or (known.mean, known.mean)  # none of equal differences
    return known.mean, (high - low) / 2


def signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")


def named(candidate: str, method: str) -> str:
    return NAMES.get(f"{candidate} {method}") or method.replace("none", NAMES["none"])


def savings(measures: dict[str, Values]) -> float:
    """Return how many times as many samples ages save as InfoBatch."""
    return float(measures["saved"]["age"].mean() / measures["saved"]["InfoBatch"].mean())


def rivals(candidate: str, values: Values) -> list[str]:
    """Return the methods that a form of age must beat; those that know the groups are a bound."""
    return [method for method in values if method not in FORMS[candidate] and BOUND not in method]


def judged(candidate: str, form: str, measures: dict[str, Values]) -> tuple[bool, Difference, str]:
    """Return whether a form of age gains on a set by the rules of the plan, and the difference that decides."""
    values = measures[CANDIDATES[candidate][1]]
    apart = {rival: difference(values[form], values[rival]) for rival in rivals(candidate, values)}
    if candidate == "skip":
        times, more = savings(measures), difference(measures["saved"][form], measures["saved"]["InfoBatch"])
        gains = times >= SAVED and more[0] > more[1] and apart["none"][0] >= -LOST
        return gains, apart["none"], f"at {times:.2f} times InfoBatch's savings"
    nearest = min(apart, key=lambda rival: apart[rival][0])
    gains = all(mean >= LEAST and mean > half for mean, half in apart.values())
    return gains, apart[nearest], f"over {named(candidate, nearest)}"


def verdicts(lines: list[Record]) -> str:
    """Return the table of the candidates: how forms of age compare with the strongest rival of every set."""
    rows = []
    for candidate in CANDIDATES:
        sets = {name: measures for (owner, name), measures in by_set(lines).items() if owner == candidate}
        texts, gained = [], {}
        for form in FORMS[candidate]:
            own = {name: judged(candidate, form, measures) for name, measures in sets.items()}
            gained[form] = [name for name, (gains, *_) in own.items() if gains]
            means = [mean for _, (mean, _), _ in own.values()]
            texts.append(f"{form} {signed(min(means))} to {signed(max(means))}")
        if candidate == "skip":
            times = [savings(measures) for measures in sets.values()]
            texts[0] += f" beside training on all, {min(times):.2f} to {max(times):.2f} times InfoBatch's savings"
        rows.append({
            "use of age": f"[{TITLES[candidate]}](#{TITLES[candidate].replace(' ', '-')})",
            "sets": str(len(sets)),
            "beside the strongest rival, points": "; ".join(texts),
            "gains on": "; ".join(f"{name} ({form})" for form in gained for name in gained[form]) or "none",
            "verdict": "**gain**" if len(sets) in map(len, gained.values()) else "no gain",
        })  # fmt: skip
    return table(rows)


def details(candidate: str, lines: list[Record]) -> str:
    """Return the table of a candidate: means in percent by set, and forms of age minus the strongest rival."""
    rows, main, strongest = [], CANDIDATES[candidate][1], RIVALS.get(candidate, "the strongest rival")
    for (owner, name), measures in by_set(lines).items():
        if owner != candidate:
            continue
        shown = [measures[key] for key in (main, SECOND.get(candidate)) if key]
        seeds = len(measures[main]["none"])
        row = {"set": name if seeds == 10 else f"{name} (n = {seeds})"}
        for method in measures[main]:
            row[named(candidate, method)] = " / ".join(f"{values[method].mean():.1f}" for values in shown)
        for form in FORMS[candidate]:
            gains, (mean, half), text = judged(candidate, form, measures)
            text = f"{signed(mean)} ± {half:.2f} {text}"
            row[f"{form} minus {strongest}"] = f"**{text}**" if gains else text
        rows.append(row)
    return table(rows)


def figure(candidate: str, lines: list[Record], folder: Path) -> None:
    """Draw forms of age minus every rival, with intervals."""
    sets = {name: measures for (owner, name), measures in by_set(lines).items() if owner == candidate}
    main, across = CANDIDATES[candidate][1], min(len(sets), 3)
    others = rivals(candidate, next(iter(sets.values()))[main])[::-1]
    down = -(-len(sets) // across)
    how: dict[str, Any] = {"sharey": True, "squeeze": False, "layout": "constrained"}
    drawn, axes = plt.subplots(down, across, figsize=(7.4, down * (0.7 + 0.22 * len(others))), **how)
    for axis in axes.flat[len(sets) :]:
        axis.set_visible(False)
    for axis, (name, measures) in zip(axes.flat, sets.items(), strict=False):
        axis.axvline(0, color="#767676", linewidth=0.7, zorder=0)
        for (place, form), row in itertools.product(enumerate(FORMS[candidate]), range(len(others))):
            mean, half = difference(measures[main][form], measures[main][others[row]])
            at = row + 0.15 * (len(FORMS[candidate]) - 1) * (1 - 2 * place)
            label = form if row == 0 else None
            axis.errorbar(mean, at, xerr=half, fmt="o", color=COLOURS[place], markersize=4, linewidth=1.3, label=label)
        axis.set_yticks(range(len(others)), [f"minus {named(candidate, rival)}" for rival in others])
        saved = [f"{of} {measures['saved'][of].mean():.0f} %" for of in ("age", "InfoBatch") if "saved" in measures]
        axis.set(title=f"{name}\nsaved: {', '.join(saved)}" if saved else name)
        axis.xaxis.set_major_locator(MaxNLocator(4))
        axis.margins(y=0.2)
        axis.spines[["top", "right"]].set_visible(False)
    drawn.supxlabel("points, 95 % interval", fontsize=8)
    if len(FORMS[candidate]) > 1:
        drawn.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    drawn.savefig(folder / f"beyond-counts-{candidate.replace(' ', '-')}.svg", metadata={"Date": None})
    plt.close(drawn)


def main() -> None:
    lines = read(RESULTS / "beyond_counts.jsonl")
    plt.rcParams.update({"font.size": 8, "axes.titlesize": 8, "svg.hashsalt": "aol", "svg.fonttype": "none"})
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
