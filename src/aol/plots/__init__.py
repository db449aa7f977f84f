"""Matplotlib figures from arrays: their style, maps of class ages, curves with bands.

Matplotlib is imported when something is drawn.
"""
