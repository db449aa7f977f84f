"""Checks of single numbers and names, without torch, for settings and the command line."""

from __future__ import annotations

import difflib
import numbers
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence

PROFILES = ("exp", "step")  # of long tails
NUISANCES = ("none", "tint", "patch")
THRESHOLDS = ("median", "positive-median", "mean")  # of class ages on streams


_BRIEF = reprlib.Repr()  # of anything: nested lists of a hostile file would have a repr of any length
_BRIEF.maxlevel, _BRIEF.maxstring, _BRIEF.maxother, _BRIEF.maxlong = 3, 60, 60, 60


def shown(value: object) -> str:
    """Describe a value briefly, for a message."""
    kinds = {(base.__module__, base.__name__) for base in type(value).__mro__}
    kind = "a tensor" if ("torch", "Tensor") in kinds else "an array" if ("numpy", "ndarray") in kinds else None
    if kind is not None:
        return f"{kind} of {getattr(value, 'dtype', '')} with shape {list(getattr(value, 'shape', ()))}"
    text = _BRIEF.repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def number(name: str, value: object, low: float, high: float, *, open_below: bool = False) -> float:
    """Return one number between two bounds as a float."""
    wanted = f"a number in {'(' if open_below else '['}{low:g}, {high:g}]"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be {wanted}, not {shown(value)}.")
    try:
        found = float(value)
    except OverflowError:
        found = float("nan")  # out of bounds
    if not low <= found <= high or (open_below and found == low):
        raise ValueError(f"{name} must be {wanted}, not {shown(value)}.")
    return found


def whole(name: str, value: object, low: int, high: int | None = None) -> int:
    """Return one whole number of at least `low`, and at most `high` if that is given, as an int."""
    wanted = f"a whole number of {low} or more" if high is None else f"a whole number from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be {wanted}, not {shown(value)}.")
    if high is None and int(value) >= 2**63:
        raise ValueError(f"{name} must be below 2 ** 63, not {shown(value)}.")
    if int(value) < low or (high is not None and int(value) > high):
        raise ValueError(f"{name} must be {wanted}, not {shown(value)}.")
    return int(value)


def choice(name: str, value: object, allowed: Sequence[str]) -> str:
    """Return `value` if it is one of the allowed names."""
    if not isinstance(value, str) or value not in allowed:
        hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {shown(value)}.{hint}")
    return value


def is_share(name: str) -> bool:
    """Return whether a reading of this name must be a fraction from 0 to 1."""
    return name.endswith("accuracy") or name == "test_precision"


def printable(text: str) -> str:
    r"""Return a text with control characters, as a file's name may have them, written as codes.

    >>> printable("cat\x1b[2J.png")
    'cat\\x1b[2J.png'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def spreadsheet_text(text: str) -> str:
    """Return text that a spreadsheet shows and does not compute; a number stays one.

    >>> spreadsheet_text("=1+2"), spreadsheet_text("cat"), spreadsheet_text("-3")
    ("'=1+2", 'cat', '-3')
    """
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def unlike(names: Iterable[str], form: str = " ({})") -> list[str]:
    """Return unique names: the second of one name gets a number.

    >>> unlike(["cat", "dog", "cat"]), unlike(["a", "a", "a-2"], "-{}")
    (['cat', 'dog', 'cat (2)'], ['a', 'a-2', 'a-2-2'])
    """
    found: dict[str, None] = {}
    number: Counter[str] = Counter()  # the last one given to each name
    for name in names:
        chosen = name
        while chosen in found:
            number[name] = max(2, number[name] + 1)
            chosen = name + form.format(number[name])
        found[chosen] = None
    return list(found)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion with the closest known name, or an empty text.

    >>> did_you_mean("cifar", ["digits", "cifar10"])
    " Did you mean 'cifar10'?"
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
