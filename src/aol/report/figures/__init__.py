"""Figures with matplotlib, at the width of a column: `style.py` is the look of all, `heatmap.py` draws class ages."""
