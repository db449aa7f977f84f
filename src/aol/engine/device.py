"""The device that a word of the command line names."""

from __future__ import annotations

import torch

from aol.engine.launch import local_rank
from aol.engine.settings import WrongSettingsError


def usable_device(name: str) -> torch.device:
    """Return the device that a word names, after checking that it can be used."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise WrongSettingsError(f"--device must be auto, cpu, cuda or cuda:N, not {name!r}.") from error
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise WrongSettingsError(f"--device must be auto, cpu, cuda or cuda:N, not {name!r}.")
    try:
        device = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise WrongSettingsError(f"--device {name} cannot be used here: {str(error).splitlines()[0]}") from error
    if name == "cuda":
        device = torch.device("cuda", local_rank())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device
