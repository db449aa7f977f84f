"""Which samples a run trains on, and in which order. All is a function of settings, seed and epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from aol import _seeds
from aol.lab.data.images import Shortcut, split_per_class
from aol.lab.data.nuisance import stratified
from aol.lab.settings import Settings, WrongSettingsError
from aol.longtail import long_tail
from aol.sampling import draw

_ORDER, _MIX = 1_000_001, 1_000_009  # these uses' places in the path of a seed; above every step of a stream


def pool(run: Settings, labels: Tensor, shortcut: Shortcut | None = None) -> tuple[Tensor, Tensor]:
    """Return a run's training samples, ordered by class, and those held out for validation, as places in the data.

    A set with a `shortcut` has a validation split of its own. Its conflicts have their share in `run.samples`, too.
    """
    kept, held = torch.arange(labels.numel()), torch.empty(0, dtype=torch.int64)
    if shortcut is not None:
        kept = shortcut.kept
    elif run.validation:
        kept, held = split_per_class(labels, run.validation, seed=run.seed)
    if run.samples is not None:
        if run.samples > len(kept):
            raise WrongSettingsError(f"samples must be at most {len(kept)}, all of {run.data}, not {run.samples}.")
        strata = 2 * labels[kept] + (0 if shortcut is None else shortcut.train[kept].to(torch.int64))
        kept = kept[stratified(strata, run.samples, seed=run.seed)]
        here, known = (int(torch.bincount(own).count_nonzero()) for own in (labels[kept], labels))
        if run.imbalance is not None and here < known:
            raise WrongSettingsError(f"samples must be enough for one of every class of {run.data}, not {run.samples}.")
    shifting = run.scenario == "stream" and run.stream == "shifting"  # such a stream makes its own long tails
    if run.imbalance is not None and not shifting:
        kept = kept[long_tail(labels[kept], run.imbalance, seed=run.seed)]
    return kept[labels[kept].argsort(stable=True)], held


def orders(runs: Sequence[Settings], weight: Tensor, epoch: int) -> Tensor:
    """Return the order of each run's m samples: shuffled, or drawn by `weight [R, m]` where the run resamples.

    Before its `start`, a run that resamples is shown all samples once, as in deferred re-sampling.
    """
    size = weight.shape[1]

    def generator(run: Settings) -> torch.Generator:
        return _seeds.generator(run.seed, _ORDER, epoch, device=weight.device)

    shuffled: dict[int, Tensor] = {}  # one order a seed: hundreds of runs have few seeds
    rows = []
    for run, own in zip(runs, weight, strict=True):
        if run.mechanism == "resample" and epoch >= run.first_weighted_epoch:
            rows.append(draw(own, size, generator=generator(run)))
        else:
            if run.seed not in shuffled:
                shuffled[run.seed] = torch.randperm(size, generator=generator(run), device=weight.device)
            rows.append(shuffled[run.seed])
    return torch.stack(rows)


def mixtures(runs: Sequence[Settings], real: Tensor, batch: int, epoch: int) -> tuple[Tensor, Tensor]:
    """Return with which place of its batch each of n places is mixed, `[R, n]`, and its own share, `[R, batches]`.

    The share is λ or 1 - λ, whichever is larger, for all of a batch: its mixtures have the same distribution with both.
    The share of runs without mixup is one. The last place of a batch is mixed with itself where it is not `real [n]`.
    """
    size, number = len(real), -(-len(real) // batch)
    starts = batch * torch.arange(number)[:, None]
    partners, shares = [], []
    for run in runs:
        generator = _seeds.generator(run.seed, _MIX, epoch)
        noise = torch.full((number * batch,), 3.0)
        noise[:size] = torch.rand(size, generator=generator).masked_fill(~real, 2.0)
        partners.append((noise.view(number, batch).argsort(1) + starts).flatten()[:size])
        draws = np.random.default_rng(generator.initial_seed()).beta(run.mixup or 1.0, run.mixup or 1.0, number)
        shares.append(torch.from_numpy(np.maximum(draws, 1 - draws)) if run.mixup else torch.ones(number))
    return torch.stack(partners), torch.stack(shares).to(torch.float32)
