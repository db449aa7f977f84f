"""Checkpoints that are replaced as a whole and safe to load."""

from __future__ import annotations

import io
from pathlib import Path

import torch

from aol._files import write_atomically

FORMAT = 3


class DamagedCheckpointError(RuntimeError):
    """A checkpoint that cannot be used."""


def save_checkpoint(path: Path, state: dict[str, object]) -> None:
    """Write tensors and primitives as a checkpoint."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path) -> dict[str, object]:
    """Read a checkpoint onto the CPU; nothing in it is ever executed."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes the reader raise
        raise DamagedCheckpointError(f"{path} is damaged") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise DamagedCheckpointError(f"{path} was written by another version of aol")
    return state
