"""What a run trains on: which samples, in which order, and their images. All is a function of settings, seed and epoch.

A source returns network input for given samples: here of a set kept on the device as one tensor, in `stored_source.py`
of large images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from aol import _seeds
from aol.lab.data import augment
from aol.lab.data.encoded_images import SIZE, StoredImages
from aol.lab.data.images import Augmentation, ImageSet, Normalisation, Pair, Shortcut, split_per_class
from aol.lab.data.nuisance import change, stratified
from aol.lab.engine.stored_source import Decoded, FromStorage, Reader, keep
from aol.lab.settings import Settings, WrongSettingsError
from aol.longtail import long_tail
from aol.sampling import draw

# Their places in the path of a seed; above every step of a stream.
_ORDER, _AUGMENT, _MIX = 1_000_001, 1_000_002, 1_000_009
AnyPair: TypeAlias = Pair[ImageSet] | Pair[StoredImages]


def data_of(run: Settings, pairs: Mapping[str, AnyPair]) -> AnyPair:
    """Return the data set of a run, with its nuisance and noisy labels; the last such set is kept."""
    pair = pairs[run.data]
    if not run.changes_data:
        return pair
    if not isinstance(pair.train, ImageSet) or not isinstance(pair.test, ImageSet):
        what = f"nuisance={run.nuisance!r}" if run.nuisance != "none" else "noise"
        raise WrongSettingsError(f"{what} needs a data set in memory; {pair.name} is decoded while training.")
    settings = {name: getattr(run, name) for name in ("nuisance", "conflicts", "noise", "validation")}
    if not _changed or _changed[0][0] is not pair or _changed[0][1] != settings:
        _changed[:] = [(pair, settings, change(pair, **settings))]
    return _changed[0][2]


_changed: list[tuple[AnyPair, dict[str, object], AnyPair]] = []  # one at most: a set may need a gigabyte


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


class OnDevice:
    """A set kept on the training device; crop, flip and normalisation happen there.

    The augmentation of a sample depends on its run's seed, the epoch and its place in the order only.
    """

    def __init__(
        self, images: ImageSet, normalisation: Normalisation, augmentation: Augmentation | None, device: torch.device
    ) -> None:
        self.labels, self._pixels = images.labels.to(device), images.images.to(device)
        self.area = images.shape[1] * images.shape[2]
        self._normalisation, self._augmentation = normalisation, augmentation
        self._draws: augment.Draws | None = None  # keeps its memory, which captured batches read
        self._affine = [torch.tensor(values, device=device) for values in (normalisation.scale, normalisation.shift)]
        self._by_kernel = device.type == "cuda" and find_spec("triton") is not None and self._pixels.is_contiguous()

    def names(self, index: Tensor) -> list[str] | None:
        """Return what the samples `index [n]` are called: nothing, they are known by their index."""
        return None

    def prepare(self, size: int, mine: Tensor, *, epoch: int, seeds: Sequence[int]) -> None:
        """Draw the augmentation of all `size` places of an epoch's order; this process trains on the places `mine`."""
        if self._augmentation is None:
            return
        own, device = sorted(set(seeds)), self._pixels.device  # runs of one seed share their draws
        generators = [_seeds.generator(seed, _AUGMENT, epoch, device=device) for seed in own]
        rows = torch.tensor([own.index(seed) for seed in seeds], device=device)
        parts = augment.draw(size, self._augmentation, generator=generators)
        drawn = augment.Draws(*(part[:, mine].index_select(0, rows) for part in parts))
        if self._draws is None or self._draws.row.shape != drawn.row.shape:
            self._draws = drawn
        for old, new in zip(self._draws, drawn, strict=True):
            old.copy_(new)

    def augmented(self, index: Tensor, at: Tensor) -> Tensor:
        """Return samples `index [R, B]` as network input, augmented as drawn for the places `at [B]`."""
        if self._augmentation is None or self._draws is None:
            return self.plain(index)
        drawn = augment.Draws(*(part.index_select(1, at) for part in self._draws))
        return self._batch(index, drawn, self._augmentation.pad)

    def plain(self, index: Tensor) -> Tensor:
        """Return samples without augmentation: `[..., C, H, W]` of `index [...]`."""
        return self._batch(index, None, 0)

    def _batch(self, index: Tensor, draws: augment.Draws | None, pad: int) -> Tensor:
        if self._by_kernel:
            from aol.lab.nets.fused import images  # needs Triton

            scale, shift = self._affine
            batch: Tensor = images.batch(self._pixels, index, draws, pad=pad, scale=scale, shift=shift)
            return batch
        if draws is not None:  # padding is black before normalisation, as in the usual pipeline
            return self._normalisation(augment.crop_flip(self._pixels, index, draws, pad=pad))
        pixels = self._pixels.index_select(0, index.flatten())
        return self._normalisation(pixels.view(*index.shape, *pixels.shape[1:]))


Source: TypeAlias = OnDevice | Decoded | FromStorage


def input_shape(run: Settings, pair: AnyPair) -> tuple[int, int, int]:
    """Return channels, height and width of a run's network input, from its data set before any change."""
    channels, height, width = shape_of(pair, run.image_size)
    return (channels if run.nuisance == "none" else 3, height, width)


def shape_of(pair: AnyPair, image_size: int | None) -> tuple[int, int, int]:
    """Return channels, height and width of network input; `image_size` is for sets that are cropped to any size."""
    own = pair.train.shape
    if isinstance(pair.train, StoredImages):
        return own if image_size is None else (3, image_size, image_size)
    if image_size not in (None, own[1]):
        raise WrongSettingsError(f"image_size is for large images: those of {pair.name} are {own[1]} pixels wide.")
    return own


def source_of(
    pair: AnyPair,
    split: ImageSet | StoredImages,
    *,
    image_size: int | None,
    normalisation: str,
    augment: bool,
    workers: int | None,
    device: torch.device,
) -> Source:
    """Return a split of a data set as a source; `workers` decode large images, which a GPU keeps where they fit."""
    scale = pair.normalisation if normalisation == "centred" else pair.standardised
    if isinstance(split, ImageSet):
        return OnDevice(split, scale, pair.augmentation if augment else None, device)
    reader = Reader(split, image_size or SIZE, workers=workers, device=device)
    images = keep(reader)
    if images is None:
        return FromStorage(reader, scale, augment=augment)
    return Decoded(reader, images, scale, augment=augment)
