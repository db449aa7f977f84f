"""Checks of single numbers and names, without torch, for settings and the command line."""

from __future__ import annotations

import difflib
import numbers
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

THRESHOLDS = ("median", "positive-median", "mean")  # of class ages on streams

_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxstring, _BRIEF.maxother, _BRIEF.maxlong = 3, 60, 60, 60


def shown(value: object) -> str:
    """Describe a value briefly, for a message."""
    if getattr(value, "shape", ()) and hasattr(value, "dtype"):
        return f"{type(value).__name__} of {value.dtype} with shape {list(value.shape)}"  # type: ignore[attr-defined]
    text = _BRIEF.repr(value)  # nested lists would have a repr of any length
    return text if len(text) <= 60 else f"{text[:57]}..."


def number(name: str, value: Any, low: float, high: float, *, open_below: bool = False) -> float:
    """Return one number between two bounds as a float."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not low <= value <= high or (open_below and value == low):
        # Worded here only: torch.compile does not trace it.
        wanted = f"{name} must be a number in {'(' if open_below else '['}{low:g}, {high:g}], not {shown(value)}."
        raise ValueError(wanted) if real else TypeError(wanted)
    return float(value)


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return one whole number of at least `low`, and at most `high` if that is given, as an int."""
    allowed = f"of {low} or more" if high is None else f"from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number {allowed}, not {shown(value)}.")
    one = int(value)
    if high is None and one >= 2**63:
        raise ValueError(f"{name} must be below 2 ** 63, not {shown(value)}.")
    if one < low or (high is not None and one > high):
        raise ValueError(f"{name} must be a whole number {allowed}, not {shown(value)}.")
    return one


def choice(name: str, value: object, allowed: Sequence[str]) -> str:
    """Return `value` if it is one of the allowed names."""
    if not isinstance(value, str) or value not in allowed:
        hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {shown(value)}.{hint}")
    return value


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion with the closest known name, or an empty text."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def printable(text: str) -> str:
    """Return a text with control characters, as a file's name may have them, written as codes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
