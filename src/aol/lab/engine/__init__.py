"""Trains R runs at once. An epoch reads on one screen in `offline.py` and `stream.py`; they share `loop.py`."""
