"""Which of several processes this is: what torchrun, or a person, has put into the environment."""

from __future__ import annotations

import os

from aol.lab.settings import WrongSettingsError

_TOGETHER = ("RANK", "WORLD_SIZE")
_MEETING = ("MASTER_ADDR", "MASTER_PORT")


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
