"""A user's loop without a network: answers are a function of the epoch alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import aol
from aol.records.record import read_run
from aol.records.samples import SampleTable, read_samples

LABELS = torch.tensor([i * i % 4 for i in range(30)])  # classes 0 and 1 alone: 2 and 3 are empty
NAMES = ["cat", "<b>dog</b>", "=SUM(A1)", "last"]


def answers(epoch: int, size: int = 30, runs: tuple[int, ...] = ()) -> torch.Tensor:
    """Logits of an epoch: a function of the epoch alone, as a resumed loop would compute them again."""
    return torch.randn(*runs, size, 4, generator=torch.Generator().manual_seed(epoch))


def epoch_of(ages: aol.SampleAges, recorder: aol.Recorder, epoch: int, **figures: object) -> None:
    """One epoch of a user's loop, in batches."""
    runs = tuple(ages.rho.shape)
    recorder.test(LABELS, answers(100 + epoch, runs=runs))
    for index in torch.arange(30).split(8):
        logits = answers(epoch, runs=runs)[..., index, :]
        ages.observe(index, aol.is_correct(logits, LABELS[index].expand(*runs, -1)))
        recorder.observe(index, logits)
    ages.advance()
    recorder.advance(lr=0.1 / (epoch + 1), **figures)  # type: ignore[arg-type]


def samples_of(folder: Path) -> SampleTable:
    """What a recorder wrote about the samples of one run."""
    samples = read_samples(folder / "samples.safetensors", read_run(folder).id)
    assert samples is not None
    return samples


def ages_over_time(samples: SampleTable) -> list[list[int]]:
    """The age of every sample after every epoch."""
    ages: list[list[int]] = samples.answers.ages(np.arange(len(samples))).tolist()
    return ages
