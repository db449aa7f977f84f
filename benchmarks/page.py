"""Write the recorded figures into `benchmarks/README.md` and the docs, between their marks."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import after_a_shift
import cpu_epoch
import forms_of_age_page
import label_noise_page
import large_images
import mapped_ages
import margins_tables
import margins_text
import networks
import reservoir
import river_streams
import sample_ages
import sample_names
import tabular
from measuring import RESULTS, Record, in_words

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"


def between(page: str, mark: str, text: str) -> str:
    """Return a page with the text between two marks replaced."""
    whole = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- end of {mark} -->)", re.S)
    if not whole.search(page):
        raise ValueError(f"The page has no marks for {mark!r}.")
    return whole.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)


def costs(aged: Record, kept: Record) -> str:
    """Return the figures of the page of costs."""
    cases = {(case["store"], case["shuffled"], bool(case["batch"])): case for case in aged["large"]}
    full, mixed, compact = (cases["full", False, True], cases["full", True, True], cases["compact", False, True])
    own, other = aged["compared"][-1]["library"], aged["compared"][-1]["history"]
    most = max(kept["cases"], key=lambda case: (case["step"], case["capacity"]))
    add, loop = most["library"]["median_s"], most["loop"]["median_s"]
    lines = [
        f"- One epoch of {full['samples']:,} samples (`observe` all, `advance`, all weights): {full['median_s']:.2f} s"
        f" in order, {mixed['median_s']:.2f} s shuffled, in calls of {full['batch']:,}.",
        f"- State: {full['state_bytes'] / 1e6:.0f} MB, or {compact['state_bytes'] / 1e6:.0f} MB with"
        ' `store="compact"`, labels included.',
        f"- A training step of {aged['step']['batch']} samples: {aged['step']['median_s'] * 1e6:.0f} µs for `weight`"
        " and `observe`.",
        f"- Compared with storing and refolding the whole history, {own['samples']:,} samples, {aged['epochs']} epochs:"
        f" {own['state_bytes'] / 1e6:.0f} MB instead of {other['state_bytes'] / 1e6:.0f} MB;"
        f" {own['median_s'] * 1e3:.0f} ms instead of {other['median_s'] * 1e3:.0f} ms in the last epoch,"
        f" {own['whole_s']:.1f} s instead of {other['whole_s']:.1f} s over all epochs.",
        f"- `Reservoir.add` of {most['step']:,} indices: {add * 1e3:.0f} ms, {loop / add:.0f} times as fast as a Python"
        " loop.",
    ]
    return "\n".join([f"`make bench`, on {in_words(aged['machine'], aged['repeats'])}", "", *lines])


# Page, mark, the function that makes the text, and the names of its records.
PARTS: list[tuple[Path, str, Callable[..., str], list[str]]] = [
    (HERE / "README.md", "ages", sample_ages.text, ["sample_ages"]),
    (HERE / "README.md", "mapped ages", mapped_ages.text, ["mapped_ages"]),
    (HERE / "README.md", "reservoir", reservoir.text, ["reservoir"]),
    (HERE / "README.md", "names", sample_names.text, ["sample_names"]),
    (HERE / "README.md", "cpu epoch", cpu_epoch.text, ["cpu_epoch"]),
    (HERE / "README.md", "large", large_images.text, ["large"]),
    (HERE / "README.md", "measured shares", large_images.text, ["large-shares"]),
    (HERE / "README.md", "networks", networks.text, ["networks"]),
    (HERE / "README.md", "steps", networks.steps, ["networks-steps"]),
    (HERE / "README.md", "counts", networks.counts, ["compiled-bytes"]),
    (DOCS / "costs.md", "costs", costs, ["sample_ages", "reservoir"]),
    (DOCS / "forms.md", "forms", forms_of_age_page.text, ["forms_of_age"]),
    (DOCS / "forms.md", "rests", after_a_shift.text, ["after_a_shift"]),
    (DOCS / "how-to" / "river.md", "river", river_streams.text, ["river_streams"]),
    (DOCS / "how-to" / "boosted-trees.md", "tabular", tabular.text, ["tabular"]),
    (DOCS / "how-to" / "boosted-trees.md", "margins", margins_tables.text, ["margins_tables"]),
    (DOCS / "how-to" / "transformers.md", "margins", margins_text.text, ["margins_text"]),
    (DOCS / "how-to" / "report.md", "labels", label_noise_page.text, ["label_noise"]),
]


def pages() -> dict[Path, str]:
    """Return all pages as they should be."""
    found: dict[Path, str] = {}
    for path, mark, text, names in PARTS:
        records = (json.loads((RESULTS / f"{name}.json").read_text()) for name in names)
        found[path] = between(found.get(path) or path.read_text(), mark, text(*records))
    return found


def main() -> int:
    for path, text in pages().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
