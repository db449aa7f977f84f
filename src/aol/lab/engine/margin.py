"""The margins by name: which settings each uses, and one line of help. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Margin:
    """A rule for the offsets of logits in training.

    Args:
        settings: names of the settings it uses, in the order in which a method's name shows them.
        signal: what errors count in `aol.Margins`; None for offsets that do not depend on answers.
        help: one line for help texts and documentation.
    """

    settings: tuple[str, ...]
    signal: str | None
    help: str


MARGINS = {
    "none": Margin((), None, "no margins"),
    "counts": Margin(("tau",), None, "from class counts (logit adjustment; --tau 1 is the balanced softmax)"),
    "probability": Margin(
        ("gain", "tau", "margin_steps"),
        "probability",
        "classes that are missed more than they are wrongly named get margin; no counts",
    ),
    "error": Margin(("gain", "margin_steps"), "error", "the same, from wrong answers instead of probabilities"),
    "age": Margin(("gain", "margin_steps"), "age", "the same, from how long answers have been wrong"),
}
