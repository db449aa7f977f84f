"""The table of any network: floors, what was measured, and ratios, from the record of `aol bench --nets`."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest


def rows_of(text: str) -> list[dict[str, str]]:
    """Every row of every Markdown table, by the heads of its columns."""
    found: list[dict[str, str]] = []
    for part in text.split("\n\n")[1:]:
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines())
        found += [dict(zip(head, row, strict=True)) for row in rows]
    return found


def test_floors_and_gaps_follow_from_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    networks = importlib.import_module("networks")
    figures = {
        "vit, straightforward loop, one run": 8.0,
        "vit, one run, ages from a clean pass": 2.0,
        "vit, one run, straightforward loop over engine": 4.0,
        "vit, one run × 200 epochs, from that epoch": 400.0,
        "vit, one run, FLOPs of an epoch": networks.FLOPS / 1e12 / 2,
        "vit, one run, bytes of an epoch": networks.BYTES / 1e9 / 2,
        "vit, 16 runs, one after the other": 32.0,
        "vit, 16 runs, a training step of one of them, vmap": 1.0,
        "vit, 16 runs as one (vmap)": 8.0,
        "vit, 16 runs as one, over one after the other": 4.0,
        "vit, 16 runs as one, straightforward loop over engine": 16.0,
        "vit, 8 runs, one after the other": 16.0,
        "vit, 8 runs, quickest one after the other: that is quicker here": 1.0,
    }
    rows = [{"what": what, "value": value, "unit": "", "n": 3, "memory_gib": 1.5} for what, value in figures.items()]
    record = {"versions": {"torch": "2.11", "device": "H200"}, "cores": 16, "data": "all of it", "rows": rows}
    text = networks.text(record)
    assert text.startswith("torch 2.11, device H200, 16 CPU cores; all of it; epochs timed: 3.")
    one, many, alone = rows_of(text)
    assert (one["floor by FLOPs"], one["floor by bytes"]) == ("0.500 s", "0.500 s")
    assert (one["gap to the sum"], one["200 epochs"], one["ratio"]) == ("2.0 ×", "400 s", "4.0 ×")
    assert (many["by"], many["measured epoch"], many["ratio"], many["memory"]) == ("vmap", "8.00 s", "4.0 ×", "1.5 GiB")
    assert (alone["by"], alone["measured epoch"], alone["ratio"]) == ("alone", "16.00 s", "1.0 ×")


def test_counted_bytes_are_shown_as_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    networks = importlib.import_module("networks")
    row = {
        "network": "vit",
        "flops": networks.FLOPS / 1e3,
        "kernels": {"vmap": 9},
        "bytes": {"vmap": networks.BYTES / 500},
    }
    (shown,) = rows_of(networks.counts({"torch": "2.13", "batch": 128, "rows": [row]}))
    assert shown == {"a step of one run": "`vit`", "FLOPs": "1.00 ms", "vmap": "9 kernels, 8.48 GB: 2.00 ms"}
