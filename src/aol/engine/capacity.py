"""How many runs a GPU has room for, found by training one of them for a step.

Assumes that memory grows with the number of runs: maps and networks do, and the data set is common to all.
"""

from __future__ import annotations

import gc

import torch

from aol.engine.learner import Learner
from aol.engine.settings import Settings

# A step is captured for a full batch and for the last, smaller one, each with memory of its own; then there is
# evaluation, in batches of a fixed number of images whatever the number of runs.
_CAPTURES = 2.2
_SPARE = 0.1


def runs_that_fit(free: int, each: int, most: int) -> int:
    """Return how many runs of `each` bytes a step go into `free` bytes, one at least and `most` at most.

    >>> runs_that_fit(free=100, each=3, most=64), runs_that_fit(free=100, each=300, most=64)
    (13, 1)
    """
    return max(1, min(most, int((1 - _SPARE) * free / (_CAPTURES * max(each, 1)))))


def step_bytes(run: Settings, shape: tuple[int, int, int], num_classes: int, device: torch.device) -> int:
    """Return the most memory that one run takes in a training step."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    learner = Learner([run], num_classes=num_classes, shape=shape, device=device)
    images = torch.zeros((1, run.batch_size, *shape), device=device)
    label = torch.zeros((1, run.batch_size), dtype=torch.int64, device=device)
    weight = torch.ones((1, run.batch_size), device=device)
    for _ in range(2):  # the second step has the optimiser's buffers too
        learner.step(images, label, weight, torch.zeros((), device=device))
    found = torch.cuda.max_memory_allocated(device) - before
    del learner, images, label, weight
    gc.collect()
    torch.cuda.empty_cache()
    return found
