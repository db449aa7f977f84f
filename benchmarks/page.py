"""Write the recorded figures into `benchmarks/README.md` and the docs, between their marks."""

from __future__ import annotations

import json
import re
import sys
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


def pages() -> dict[Path, str]:
    """Return all pages as they should be."""
    (
        aged,
        kept,
        named,
        streams,
        trees,
        labels,
        forms,
        shifts,
        offsets,
        texts,
        epochs,
        mapped,
        large,
        shares,
        general,
        timed,
        counted,
    ) = (
        json.loads((RESULTS / f"{name}.json").read_text())
        for name in (
            "sample_ages",
            "reservoir",
            "sample_names",
            "river_streams",
            "tabular",
            "label_noise",
            "forms_of_age",
            "after_a_shift",
            "margins_tables",
            "margins_text",
            "cpu_epoch",
            "mapped_ages",
            "large",
            "large-shares",
            "networks",
            "networks-steps",
            "compiled-bytes",
        )
    )
    here, front, guides = HERE / "README.md", HERE.parent / "docs" / "costs.md", HERE.parent / "docs" / "how-to"
    shapes = HERE.parent / "docs" / "forms.md"
    river, boosted, report = guides / "river.md", guides / "boosted-trees.md", guides / "report.md"
    language = guides / "transformers.md"
    weighted = between(boosted.read_text(), "tabular", tabular.text(trees))
    tables = between(here.read_text(), "ages", sample_ages.text(aged))
    tables = between(tables, "cpu epoch", cpu_epoch.text(epochs))
    tables = between(tables, "mapped ages", mapped_ages.text(mapped))
    tables = between(tables, "large", large_images.text(large))
    tables = between(tables, "measured shares", large_images.text(shares))
    tables = between(between(tables, "networks", networks.text(general)), "steps", networks.steps(timed))
    tables = between(tables, "counts", networks.counts(counted))
    worlds = between(shapes.read_text(), "forms", forms_of_age_page.text(forms))
    return {
        here: between(between(tables, "reservoir", reservoir.text(kept)), "names", sample_names.text(named)),
        front: between(front.read_text(), "costs", costs(aged, kept)),
        river: between(river.read_text(), "river", river_streams.text(streams)),
        boosted: between(weighted, "margins", margins_tables.text(offsets)),
        language: between(language.read_text(), "margins", margins_text.text(texts)),
        shapes: between(worlds, "rests", after_a_shift.text(shifts)),
        report: between(report.read_text(), "labels", label_noise_page.text(labels)),
    }


def main() -> int:
    for path, text in pages().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
