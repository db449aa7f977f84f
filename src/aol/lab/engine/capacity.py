"""How many runs fit on a GPU, measured by training one of them for two steps.

Assumes that memory grows linearly with the number of runs; the data set is shared by all.
"""

from __future__ import annotations

import gc

import torch

from aol.lab.engine.learner import Learner
from aol.lab.settings import Settings

# Steps are captured for a full batch and for the last, smaller one, each with its own memory; evaluation batches have a
# fixed number of images whatever the number of runs.
_CAPTURES = 2.2
_SPARE = 0.1


def runs_that_fit(free: int, each: int, most: int) -> int:
    """Return how many runs of `each` bytes fit into `free` bytes, from 1 to `most`.

    >>> runs_that_fit(free=100, each=3, most=64), runs_that_fit(free=100, each=300, most=64)
    (13, 1)
    """
    return max(1, min(most, int((1 - _SPARE) * free / (_CAPTURES * max(each, 1)))))


def step_bytes(run: Settings, shape: tuple[int, int, int], num_classes: int, device: torch.device) -> int:
    """Return the peak memory of one run in a training step, in bytes."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    learner = Learner([run], num_classes=num_classes, shape=shape, device=device)
    images = torch.zeros((1, run.batch_size, *shape), device=device)
    label = torch.zeros((1, run.batch_size), dtype=torch.int64, device=device)
    weight = torch.ones((1, run.batch_size), device=device)
    for _ in range(2):  # the second step includes the optimiser's buffers
        learner.step(images, label, weight, torch.zeros((), device=device))
    peak = torch.cuda.max_memory_allocated(device) - before
    del learner, images, label, weight
    gc.collect()
    torch.cuda.empty_cache()
    return peak
