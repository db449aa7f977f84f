"""Errors of data: one sentence that names the file or the argument."""

from __future__ import annotations


class DataError(ValueError):
    """Data that cannot be trained on: the message names the file and what is wrong with it."""
