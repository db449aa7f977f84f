"""The style of figures, made without pyplot: column width, colours for the colour-blind, embedded fonts."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from aol._need import need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN = 3.3  # inches: a column of a two-column page
FORMATS = ("png", "pdf", "svg")
# Okabe and Ito's colours, those that show on white, in an order that keeps neighbours apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#767676"
# Names of classes may be in any script; of these, whatever is installed fills in.
_MORE_FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans", "Noto Sans Arabic", "Noto Sans Devanagari")


def matplotlib(part: str | None = None) -> ModuleType:
    """Return matplotlib, or a part of it; where it is missing, an error says how to install it."""
    name = "matplotlib" if part is None else f"matplotlib.{part}"
    return need(name, "drawing figures")


@cache
def _rules() -> dict[str, object]:
    known = {entry.name for entry in matplotlib("font_manager").fontManager.ttflist}
    return {
        "font.family": ["DejaVu Sans", *(name for name in _MORE_FONTS if name in known)],
        "font.size": 7.0, "axes.labelsize": 7.5, "axes.titlesize": 7.5, "legend.fontsize": 6.5,
        "xtick.labelsize": 6.5, "ytick.labelsize": 6.5, "axes.linewidth": 0.6, "lines.linewidth": 1.1,
        "lines.markersize": 3.0, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 2.5,
        "ytick.major.size": 2.5, "xtick.minor.size": 1.5, "ytick.minor.size": 1.5, "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": False, "legend.frameon": False, "legend.handlelength": 1.8,
        "figure.dpi": 100, "savefig.dpi": 400, "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "path",
        "svg.hashsalt": "aol", "text.parse_math": False, "axes.unicode_minus": True,
    }  # fmt: skip


@contextmanager
def styled() -> Iterator[None]:
    """Draw in our style without changing the global one: a context, or the decorator of a function that draws."""
    with matplotlib().rc_context(_rules()):
        yield


def panels(
    height: float, rows: int = 1, columns: int = 1, *, width: float = COLUMN, share_x: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a figure `width` inches wide and its panels, row by row; for functions that are `styled`."""
    figure: Figure = matplotlib("figure").Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharex=share_x).ravel().tolist()


def rendered(figure: Figure, kind: str, *, text: bool = False) -> bytes:
    """Return a figure as bytes, the same in each call. With `text`, an SVG has text in place of shapes of letters."""
    left_out = {"png": ["Software"], "pdf": ["CreationDate", "Producer", "Creator"], "svg": ["Date"]}[kind]
    buffer, rules = io.BytesIO(), _rules() | ({"svg.fonttype": "none"} if text else {})
    with matplotlib().rc_context(rules), warnings.catch_warnings():
        # A name in a script that no font here has is drawn as boxes; a warning a letter would not help.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format=kind, metadata=dict.fromkeys(left_out))
    if text:  # a font that is not on this machine alone
        return re.sub(rb"font-family: [^;\"]*", b"font-family: 'DejaVu Sans', Verdana, sans-serif", buffer.getvalue())
    return buffer.getvalue()


def limit_ticks(axes: Axes, most: int, *, whole: bool = False) -> None:
    """Put at most so many ticks on the horizontal axis, on round numbers."""
    locator, least = matplotlib("ticker").MaxNLocator, 1 if whole else 3
    axes.xaxis.set_major_locator(locator(most, integer=whole, steps=[1, 2, 2.5, 5, 10], min_n_ticks=least))
