"""Checkpoints that are whole or not there, and safe to load."""

from __future__ import annotations

import io
from pathlib import Path

import torch

from aol.records.files import write_atomically

FORMAT = 2


class DamagedCheckpointError(RuntimeError):
    """A checkpoint that cannot be read."""


def save_checkpoint(path: Path, state: dict[str, object]) -> None:
    """Write tensors and primitives as a checkpoint."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    write_atomically(path, buffer.getbuffer())  # type: ignore[arg-type]


def load_checkpoint(path: Path) -> dict[str, object]:
    """Read a checkpoint, onto the CPU; nothing in it is ever executed."""
    again = "delete it and add --resume: its runs then start again, those that are over stay"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes the reader raise
        raise DamagedCheckpointError(f"{path} is damaged and cannot be resumed from; {again}.") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise DamagedCheckpointError(f"{path} is no checkpoint of this version of aol; {again}.")
    return state
