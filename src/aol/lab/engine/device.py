"""The device that a word of the command line names, its threads, and which of several processes this is.

Imports torch only when a device is asked for.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from aol.lab.settings import WrongSettingsError

if TYPE_CHECKING:
    import torch


def launched() -> tuple[int, int]:
    """Return rank and number of the processes that torchrun started.

    >>> launched()
    (0, 1)
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    return int(os.environ.get("RANK", "0")) if world > 1 else 0, world


@contextlib.contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Compute with one thread, if that is wanted and the user has not chosen a number.

    Threads wait for each other after every operation. Of small ones, two threads save little on idle cores, and wait
    many times as long as they compute where other programs use the cores.
    """
    if not wanted or os.environ.get("OMP_NUM_THREADS"):
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_device(name: str) -> torch.device:
    """Return the device that a word names, made ready, after checking that it can be used."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu(:0)?|cuda(:(0|[1-9]\d*))?", name):
        raise WrongSettingsError(f"--device must be auto, cpu, cuda or cuda:N, not {name!r}.")
    try:
        own = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" else name
        device = torch.empty(0, device=torch.device(own)).device
    except (RuntimeError, AssertionError) as error:
        raise WrongSettingsError(f"--device {name} cannot be used here: {str(error).splitlines()[0]}") from error
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device
