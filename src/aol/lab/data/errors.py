"""Errors of data: one sentence that names the file or the argument."""

from __future__ import annotations


class DataError(ValueError):
    """Data that cannot be trained on: the message names the file and what is wrong with it.

    >>> raise DataError("cat/3.png: not an image")
    Traceback (most recent call last):
    ...
    aol.lab.data.errors.DataError: cat/3.png: not an image
    """

    exit_status = 1  # of the command line; wrong words have 2
