"""What a run trains on: which samples, in which order, and their images. All is a function of settings, seed and epoch.

A source returns network input for given samples: of a set kept on the device as one tensor, or of large images, decoded
once and kept there, or decoded while training. These are decoded by Pillow in the worker processes of a DataLoader.
What training shows of a large image depends on (seed, epoch, sample) alone: both ways show the same crops, to a few
grey levels.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from aol import _seeds
from aol.lab.data import augment
from aol.lab.data.encoded_images import SIZE, Ragged, StoredImages, centre_boxes, crop_boxes, draw_crops
from aol.lab.data.images import Augmentation, DataError, ImageSet, Normalisation, Pair, Shortcut, split_per_class
from aol.lab.data.nuisance import change, stratified
from aol.lab.settings import Settings, WrongSettingsError
from aol.longtail import long_tail
from aol.sampling import draw

# Their places in the path of a seed; above every step of a stream.
_ORDER, _AUGMENT, _MIX = 1_000_001, 1_000_002, 1_000_009
_CHUNK = 32  # images of a request: the first batch comes soon, and answers are small in shared memory
AnyPair: TypeAlias = Pair[ImageSet] | Pair[StoredImages]
AnySplit: TypeAlias = ImageSet | StoredImages

# Samples and their order


def data_of(run: Settings, pairs: Mapping[str, AnyPair]) -> AnyPair:
    """Return the data set of a run, with its nuisance and noisy labels; the last such set is kept."""
    pair = pairs[run.data]
    if not run.changes_data:
        return pair
    if not isinstance(pair.train, ImageSet) or not isinstance(pair.test, ImageSet):
        what = f"nuisance={run.nuisance!r}" if run.nuisance != "none" else "noise"
        raise WrongSettingsError(f"{what} needs a data set in memory; {pair.name} is decoded while training.")
    settings = {name: getattr(run, name) for name in ("nuisance", "conflicts", "noise", "validation")}
    return _changed(pair, **settings)


_changed = lru_cache(maxsize=1)(change)  # a set may need a gigabyte


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


# Their images


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


class Reader:
    """Reads images of a split in the worker processes of a DataLoader, which stay from pass to pass until `close`.

    `size` is the side of their views. By default there are as many `workers` as cores if the device is a GPU, else
    none. The processes of torchrun on one machine divide its cores.
    """

    def __init__(self, split: StoredImages, size: int, *, workers: int | None, device: torch.device) -> None:
        if workers is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            workers = max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))) if device.type == "cuda" else 0
        self.split, self.size, self.device, self._workers = split, size, device, workers
        self._requests: list[Any] = []
        self._loader: DataLoader[Any] | None = None

    def answers(self, what: str, places: Sequence[Tensor], draws: Sequence[Tensor] = ()) -> Iterator[Tensor]:
        """Yield "sizes", "whole" images or "view"s of samples, for each of `places`; `draws` are those of their crops.

        `DataError` and `OSError` of a worker are raised here.
        """
        # Arrays go to the workers as plain bytes; each tensor would need a file descriptor.
        drawn: list[Any] = [part.numpy() for part in draws] or [None] * len(places)
        self._requests[:] = [(what, part.tolist(), own) for part, own in zip(places, drawn, strict=True)]
        if self._loader is None:
            self._loader = DataLoader(
                _Answers(self.split, self.size),
                batch_size=None,
                sampler=self._requests,
                num_workers=self._workers,
                persistent_workers=self._workers > 0,
                worker_init_fn=_begin,
                pin_memory=self.device.type == "cuda",
                generator=torch.Generator(),  # the global one is the network's
            )
        try:
            for answer in self._loader:
                if isinstance(answer, Exception):
                    raise answer
                yield answer
        except BaseException:  # what is under way belongs to no later pass
            self.close()
            raise

    def close(self) -> None:
        """End the worker processes; the next request starts others."""
        self._loader = None


class _Answers(Dataset[Any]):
    """Answers requests, in a worker process or here."""

    def __init__(self, split: StoredImages, size: int) -> None:
        self._split, self._size = split, size

    def __getitem__(self, request: tuple[str, list[int], Any]) -> Tensor | Exception:
        (what, places, draws), split = request, self._split
        try:
            if what == "sizes":
                return torch.tensor([split.size_of(place) for place in places])
            if what == "whole":
                return torch.cat([split.whole(place).reshape(-1) for place in places])
            drawn = [None] * len(places) if draws is None else torch.from_numpy(draws)
            return torch.stack([split.view(place, own, self._size) for place, own in zip(places, drawn, strict=True)])
        except (DataError, OSError) as error:  # DataLoader would put a traceback into its message
            return error


def _begin(_: int) -> None:
    """Set up a worker process: the parent ends it, and it ends with the parent, whose locks it would hold."""
    gc.freeze()  # never collect what is inherited: the processes of others are not this one's to end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class FromStorage:
    """A set of any size, decoded while training."""

    def __init__(self, reader: Reader, scale: Normalisation, *, augment: bool) -> None:
        self._reader, self._scale, self._augment = reader, scale, augment
        self.labels, self.names = reader.split.labels.to(reader.device), reader.split.names
        self.area = reader.size**2

    def train(self, order: Tensor, mine: Tensor, *, batch: int, epoch: int, seeds: Sequence[int]) -> Iterator[Tensor]:
        """Yield augmented batches `[1, B, C, H, W]` of the places `mine` of `order [1, n]`."""
        draws = draw_crops(self.labels.numel(), seed=seeds[0], epoch=epoch) if self._augment else None
        for images in self._load(order[0, mine].cpu(), batch, draws):
            yield images[None]

    def clean(self, index: Tensor, *, batch: int) -> Iterator[Tensor]:
        """Yield batches without augmentation, `[B, C, H, W]`, or `[1, B, C, H, W]` of `index [1, n]`."""
        for images in self._load(index.reshape(-1).cpu(), batch):
            yield images if index.dim() == 1 else images[None]

    def _load(self, places: Tensor, batch: int, draws: Tensor | None = None) -> Iterator[Tensor]:
        chunks = [torch.split(part, _CHUNK) for part in torch.split(places, batch)]
        every = [chunk for parts in chunks for chunk in parts]
        answers = self._reader.answers("view", every, () if draws is None else [draws[chunk] for chunk in every])
        for parts in chunks:
            pixels = islice(answers, len(parts))
            moved = torch.cat([part.to(self._reader.device, non_blocking=True) for part in pixels])
            yield self._scale(moved.permute(0, 3, 1, 2).contiguous())
        next(answers, None)  # its end: the processes then wait for the next pass

    def close(self) -> None:
        """End the worker processes; another pass would start them again."""
        self._reader.close()


class Decoded:
    """A set that was decoded once and is kept on a GPU, where batches are cut, resized and mirrored."""

    def __init__(self, reader: Reader, images: Ragged, scale: Normalisation, *, augment: bool) -> None:
        self.labels, self.names = reader.split.labels.to(reader.device), reader.split.names
        self.area = reader.size**2
        self._images, self._augment, self._size = images, augment, reader.size
        self._sizes = torch.stack((images.height, images.width), 1)
        self._centre = centre_boxes(self._sizes).to(torch.float32)
        self._boxes: Tensor | None = None  # [R, N, 5], of this epoch; keeps its memory, as graphs need
        self._affine = [torch.tensor(values, device=reader.device) for values in (scale.scale, scale.shift)]

    def prepare(self, size: int, mine: Tensor, *, epoch: int, seeds: Sequence[int]) -> None:
        """Draw the crops of all samples for an epoch."""
        if not self._augment:
            return
        drawn = [draw_crops(len(self._sizes), seed=seed, epoch=epoch).to(self._sizes.device) for seed in seeds]
        boxes = torch.stack([crop_boxes(self._sizes, draws).to(torch.float32) for draws in drawn])
        self._boxes = boxes if self._boxes is None else self._boxes.copy_(boxes)

    def augmented(self, index: Tensor, at: Tensor) -> Tensor:
        """Return samples `index [R, B]` as network input, with the crops drawn for this epoch."""
        if self._boxes is None:
            return self.plain(index)
        runs = torch.arange(len(index), device=index.device)[:, None]
        return self._batch(index, self._boxes[runs, index].flatten(0, 1))

    def plain(self, index: Tensor) -> Tensor:
        """Return samples without augmentation: `[..., C, H, W]` of `index [...]`."""
        return self._batch(index, self._centre[index.reshape(-1)])

    def _batch(self, index: Tensor, boxes: Tensor) -> Tensor:
        from aol.lab.nets.fused.resample import batch  # needs Triton

        flat, size, (scale, shift) = index.reshape(-1), self._size, self._affine
        images: Tensor = batch(self._images, flat, boxes, size=size, scale=scale, shift=shift)
        return images.view(*index.shape, 3, size, size)


_kept: WeakKeyDictionary[StoredImages, Ragged] = WeakKeyDictionary()  # for the next group of runs


def keep(reader: Reader) -> Ragged | None:
    """Return all images of a split, decoded, on the device; None where they do not fit half of a GPU's free memory."""
    split, room, every = reader.split, room_on(reader.device), torch.arange(len(reader.split))
    if not room:
        return None
    if split not in _kept:
        # First of some, so that a large set is not read for nothing.
        for some in (every[:: len(every) // 64 + 1], every):
            sizes = torch.cat(list(reader.answers("sizes", torch.split(some, _CHUNK))))
            if 3 * int(sizes.prod(1).sum()) * len(every) / len(some) > room:
                return None
        images, done = Ragged.empty(sizes, reader.device), 0
        for pixels in reader.answers("whole", torch.split(every, _CHUNK)):
            images.pixels[done : done + len(pixels)].copy_(pixels)
            done += len(pixels)
        _kept[split] = images
    reader.close()
    return _kept[split]


def room_on(device: torch.device) -> int:
    """Return how many bytes of decoded images a device keeps; none on a CPU: its network is slower than decoding."""
    usable = device.type == "cuda" and find_spec("triton") is not None
    return torch.cuda.mem_get_info(device)[0] // 2 if usable else 0


Source: TypeAlias = OnDevice | Decoded | FromStorage


def input_shape(run: Settings, pair: AnyPair) -> tuple[int, int, int]:
    """Return channels, height and width of a run's network input; `image_size` is for sets of images of any size."""
    channels, height, width = pair.train.shape
    if isinstance(pair.train, StoredImages):
        height = width = run.image_size or SIZE
    elif run.image_size not in (None, height):
        raise WrongSettingsError(f"image_size is for large images: those of {pair.name} are {height} pixels wide.")
    return (channels if run.nuisance == "none" else 3, height, width)


def source_of(
    pair: AnyPair, split: AnySplit, *, run: Settings, augment: bool, workers: int | None, device: torch.device
) -> Source:
    """Return a split of a data set as a source; `workers` decode large images, which a GPU keeps where they fit."""
    scale = pair.normalisation if run.normalisation == "centred" else pair.standardised
    if isinstance(split, ImageSet):
        return OnDevice(split, scale, pair.augmentation if augment else None, device)
    reader = Reader(split, run.image_size or SIZE, workers=workers, device=device)
    images = keep(reader)
    if images is None:
        return FromStorage(reader, scale, augment=augment)
    return Decoded(reader, images, scale, augment=augment)
