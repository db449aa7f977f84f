"""Draw the figure of docs/how-to/report.md: the heatmaps of digits by two methods, side by side.

`.venv/bin/python docs/_figures.py`; takes less than a minute.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from PIL import Image

from aol import cli

WORDS = "train --data digits --margin none,counts --epochs 40"
SHOWN = ("heatmap-none", "heatmap-logit-adjustment-tau-1")
WIDTH = 460  # pixels a figure


def main() -> None:
    """Train, draw, and put the figures side by side."""
    with tempfile.TemporaryDirectory() as folder:
        assert cli.main([*WORDS.split(), "--json", "--out", f"{folder}/digits"]) == 0
        assert cli.main(["report", f"{folder}/digits", "--figures", f"{folder}/figures"]) == 0
        drawn = [Image.open(f"{folder}/figures/{name}.png").convert("RGB") for name in SHOWN]
    small = [image.resize((WIDTH, image.height * WIDTH // image.width), Image.Resampling.LANCZOS) for image in drawn]
    sheet = Image.new("RGB", (len(small) * (WIDTH + 20), max(image.height for image in small)), "white")
    for place, image in enumerate(small):
        sheet.paste(image, (place * (WIDTH + 20), 0))
    sheet.save(Path(__file__).parent / "how-to" / "report-figures.webp", quality=85, method=6)


if __name__ == "__main__":
    main()
