"""`aol show`: runs as a table, the classes that are wrong longest, and what to do next."""

from __future__ import annotations

from aol.cli.parser import Commands


def add(commands: Commands) -> None:
    """Add `aol show`."""
