"""The sentences under the tables of a study. Their text is in `templates/notes.j2` and `templates/legend.j2`."""

from __future__ import annotations

import re

from jinja2 import Environment, PackageLoader, StrictUndefined

from aol.runs.metrics import figure_text
from aol.study.comparisons import StudyResults
from aol.study.correlations import NOT_JUDGED, described
from aol.study.spec import cell_name
from aol.study.verdict import points

PARTS = ("verdicts", "runs", "method", "legend", "hardware")


def runs_text(count: int) -> str:
    """Return a number of runs in words."""
    return "1 run" if count == 1 else f"{count} runs"


ENVIRONMENT = Environment(
    loader=PackageLoader("aol.study"),
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
    autoescape=False,
)
ENVIRONMENT.filters |= {
    "cell_name": cell_name,
    "described": described,
    "runs_text": runs_text,
    "points": points,
    "line": lambda text: " ".join(text.split()),
}


def notes(results: StudyResults, *parts: str, optimistic: bool = False) -> list[str]:
    """Return the sentences of some of the `PARTS`, by default of all; the verdicts come first."""
    given = {
        "results": results,
        "optimistic": optimistic,
        "figure_text": figure_text,
        "NOT_JUDGED": NOT_JUDGED,
    }
    macros = ENVIRONMENT.get_template("notes.j2").make_module(given)
    text = "".join(getattr(macros, part)() for part in parts or PARTS)
    return [" ".join(each.split()) for each in re.split("^- ", text, flags=re.MULTILINE) if each.strip()]
