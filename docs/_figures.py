"""Draw the figures of docs/how-to/report.md: digits by three methods and three seeds, four figures in one picture.

`.venv/bin/python docs/_figures.py`; takes about a minute.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from PIL import Image

from aol import cli

WORDS = "train --data digits --weighting none,cb,aol --seed 0-2 --epochs 40 --keep-samples"
SHOWN = ("heatmap-none", "survival-none", "accuracy", "observation-none")
WIDTH = 560  # pixels a figure


def main() -> None:
    """Train, draw, and put the figures side by side."""
    with tempfile.TemporaryDirectory() as folder:
        assert cli.main([*WORDS.split(), "--json", "--out", f"{folder}/digits"]) == 0
        assert cli.main(["report", f"{folder}/digits", "--figures", f"{folder}/figures"]) == 0
        found = [Image.open(f"{folder}/figures/{name}.png").convert("RGB") for name in SHOWN]
        small = [each.resize((WIDTH, each.height * WIDTH // each.width), Image.Resampling.LANCZOS) for each in found]
    rows = [small[:2], small[2:]]
    sheet = Image.new("RGB", (2 * WIDTH + 20, sum(max(each.height for each in row) + 20 for row in rows)), "white")
    top = 0
    for row in rows:
        for place, each in enumerate(row):
            sheet.paste(each, (place * (WIDTH + 20), top))
        top += max(each.height for each in row) + 20
    sheet.save(Path(__file__).parent / "how-to" / "report-figures.webp", quality=85, method=6)


if __name__ == "__main__":
    main()
