"""Random generators from a seed and a path of numbers; no global generator is used."""

from __future__ import annotations

import numpy as np
import torch


def generator(base: int, *path: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator: the same seed and path give the same numbers, any other pair independent ones.

    >>> torch.rand(1, generator=generator(7, 3)), torch.rand(1, generator=generator(7))
    (tensor([0.5874]), tensor([0.4571]))
    """
    (state,) = np.random.SeedSequence(base, spawn_key=path).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(state))
