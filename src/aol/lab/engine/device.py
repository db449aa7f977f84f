"""The device that a word of the command line names, its memory and threads, and which of several processes this is.

Imports torch only when a device is asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING

from aol.lab.settings import WrongSettingsError

if TYPE_CHECKING:
    import torch

# Of glibc's malloc.h. 32 MiB is the most that every version accepts, and what malloc itself grows to.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = (-1, 512 << 20), (-3, 32 << 20)
# What torchrun, or a person, has put into the environment.
_TOGETHER, _MEETING = ("RANK", "WORLD_SIZE"), ("MASTER_ADDR", "MASTER_PORT")


def launched() -> tuple[int, int]:
    """Return rank and number of the processes that torchrun started; refuse variables that are set by halves.

    >>> launched()
    (0, 1)
    """
    given = [name for name in _TOGETHER if name in os.environ]
    if not given:
        return 0, 1
    rank, world = _whole("RANK"), _whole("WORLD_SIZE")
    missing = [name for name in (*_TOGETHER, *(_MEETING if world > 1 else ())) if not os.environ.get(name)]
    if missing:
        raise WrongSettingsError(
            f"the environment sets {' and '.join(given)}, but not {' and '.join(missing)}: start several processes by "
            "torchrun, which sets all of them, or unset them to train with one."
        )
    if not 0 <= rank < world:
        raise WrongSettingsError(f"RANK must lie in 0 to WORLD_SIZE - 1 = {world - 1}, not {rank}.")
    return rank, world


def local_rank() -> int:
    """Return which of the processes on this machine this is, counted from zero."""
    return _whole("LOCAL_RANK")


def local_processes() -> int:
    """Return how many processes torchrun has started on this machine; one without torchrun."""
    return max(1, _whole("LOCAL_WORLD_SIZE"))


def _whole(name: str) -> int:
    text = os.environ.get(name) or "0"
    if not text.isdecimal() or len(text) > 9:
        raise WrongSettingsError(f"the environment variable {name} must be a whole number of 0 or more, not {text!r}.")
    return int(text)


def keep_freed_memory() -> bool:
    """Let malloc keep up to 512 MiB that tensors free, for the next ones; return whether it does.

    By default glibc returns memory at the end of a training step, and each page is faulted in and zeroed again in the
    next one. Other C libraries are left as they are.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(*setting) for setting in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))


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
    try:
        device = torch.device("cuda", local_rank()) if name == "cuda" else torch.device(name)
    except RuntimeError as error:
        raise WrongSettingsError(f"--device must be auto, cpu, cuda or cuda:N, not {name!r}.") from error
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise WrongSettingsError(f"--device must be auto, cpu, cuda or cuda:N, not {name!r}.")
    try:
        device = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise WrongSettingsError(f"--device {name} cannot be used here: {str(error).splitlines()[0]}") from error
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        keep_freed_memory()
    return device
