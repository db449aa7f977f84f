"""Sources of batches of large images: decoded while training, or decoded once and kept on the device.

What is drawn for a sample depends on (seed, epoch, sample) alone: both sources show the same crops, to a grey level.
"""

from __future__ import annotations

import gc
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from aol.data.crops import RandomResizedCrop, ResizeCenterCrop, resize, sample_generator
from aol.data.decode import decode, open_image, size_of
from aol.data.encoded_images import Records, StoredImages
from aol.data.errors import DataError
from aol.data.images import Normalisation
from aol.data.resample import Ragged, View, centre_view, crop_view, largest_crops, resample

_CHUNK = 32  # images that a worker decodes at a time: fewer start sooner, more cost less to hand over
_AHEAD = 4  # chunks that each worker may be ahead
_SHARE_OF_MEMORY = 0.5  # of what is free on the device, for decoded images
_LARGEST = 1024  # rows or columns of a crop that is resized on the device
_LOOKED_AT = 64  # images whose sizes tell how large a set is


def worker_count(workers: int | None, device: torch.device) -> int:
    """Return how many processes decode: by default one for each core if the device is a GPU, else none.

    >>> worker_count(None, torch.device("cpu")), worker_count(3, torch.device("cpu"))
    (0, 3)
    """
    if workers is not None:
        return workers
    return len(os.sched_getaffinity(0)) if device.type == "cuda" else 0


# Worker processes

Request: TypeAlias = tuple[str, int, int, int]  # what is wanted, sample, seed, epoch
Cuts: TypeAlias = tuple[Tensor, Tensor]  # pixels [M] of cuts one after the other, and `boxes [n, 5]` within them


class _Wanted(Dataset[Tensor]):
    """Serves requests for chunks of images, in a worker process or here: uint8 [n, 3, size, size], or cuts.

    With `cuts`, training images are only cut, and resized and mirrored on the device.
    """

    def __init__(self, train: StoredImages, clean: StoredImages, *, cuts: bool) -> None:
        self._views = {"train": train, "clean": clean}
        self._cuts = train.transform if cuts and isinstance(train.transform, RandomResizedCrop) else None

    def __getitems__(self, requests: Sequence[Request]) -> Tensor | Cuts | DataError:
        try:
            if self._cuts is not None and requests[0][0] == "train":
                return self._cut(self._cuts, requests)
            return torch.stack([self._views[what].image(i, seed=seed, epoch=at) for what, i, seed, at in requests])
        except DataError as error:  # raised in a worker it would come with a long traceback
            return error

    def _cut(self, crop: RandomResizedCrop, requests: Sequence[Request]) -> Cuts:
        records, pixels, boxes = self._views["train"].records, [], []
        for _, index, seed, epoch in requests:
            image = open_image(records.encoded(index), records.source(index))
            generator = sample_generator(seed, epoch, index)
            top, left, height, width = crop.box(image.height, image.width, generator)
            flip = crop.flip and generator.random() < 0.5
            cut = torch.from_numpy(np.array(image.crop((left, top, left + width, top + height))))
            if max(height, width) > _LARGEST:
                cut = resize(cut.permute(2, 0, 1), crop.size, crop.size).permute(1, 2, 0)
            pixels.append(cut.reshape(-1))
            boxes.append((0, 0, *cut.shape[:2], int(flip)))
        return torch.cat(pixels), torch.tensor(boxes)


class _Whole(Dataset[Tensor]):
    """Serves whole images of a set: their sizes `[n, 2]` from the headers, or all their pixels one after the other."""

    def __init__(self, records: Records, *, pixels: bool) -> None:
        self._records, self._pixels = records, pixels

    def __getitems__(self, index: Sequence[int]) -> Tensor | DataError:
        try:
            found = [(self._records.encoded(i), self._records.source(i)) for i in index]
            if not self._pixels:
                return torch.tensor([size_of(*each) for each in found])
            return torch.cat([decode(*each).permute(1, 2, 0).reshape(-1) for each in found])
        except DataError as error:
            return error


class _Batches:
    """The lists of requests of the coming pass: workers stay alive between passes, and the loader asks this again."""

    def __init__(self, batches: Sequence[Sequence[object]] = ()) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Sequence[object]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def _forget(_: int) -> None:
    """Let a worker never collect what it inherits: the workers of other loaders are not its children to end."""
    gc.freeze()


def _itself(chunk: Any) -> Any:
    return chunk


def _loader(wanted: Dataset[Tensor], batches: _Batches, workers: int, device: torch.device) -> DataLoader[Tensor]:
    return DataLoader(
        wanted,
        batch_sampler=batches,  # type: ignore[arg-type]
        num_workers=workers,
        prefetch_factor=_AHEAD if workers else None,
        persistent_workers=workers > 0,
        pin_memory=device.type == "cuda",
        collate_fn=_itself,
        worker_init_fn=_forget,
    )


def _chunks(index: Sequence[int], size: int) -> list[Sequence[int]]:
    return [index[start : start + size] for start in range(0, len(index), size)]


def _received(loader: DataLoader[Tensor]) -> Iterator[Any]:
    for chunk in loader:
        if isinstance(chunk, DataError):
            raise chunk
        yield chunk


# Sources


class FromStorage:
    """A set of any size, decoded on the fly in worker processes. One run at a time.

    Args:
        train: items with the training transform; its draws depend on (seed, epoch, sample), not on the worker.
        clean: the same records with the evaluation transform.
        workers: number of processes that decode.
        cuts: resize training images on the device, not in the workers; by default if the device is a GPU.

    `waited`: seconds of the last pass in which the device had no batch to work on.
    """

    def __init__(
        self,
        train: StoredImages,
        clean: StoredImages,
        scale: Normalisation,
        *,
        workers: int,
        device: torch.device,
        cuts: bool | None = None,
    ) -> None:
        self.labels = train.labels.to(device)
        self.names = clean.names
        assert clean.transform is not None
        self._size = clean.transform.size
        self.area = self._size**2
        self.waited = 0.0
        self._normalisation, self._device = scale, device
        self._batches = _Batches()
        cuts = device.type == "cuda" if cuts is None else cuts
        self._open = partial(_loader, _Wanted(train, clean, cuts=cuts), self._batches, workers, device)
        self._loader: DataLoader[Tensor] | None = None

    def train(self, order: Tensor, mine: Tensor, *, batch: int, epoch: int, seeds: Sequence[int]) -> Iterator[Tensor]:
        """Yield augmented batches `[1, B, C, H, W]` of the places `mine` of `order [1, n]`."""
        (seed,) = seeds
        for images in self._load("train", order[0, mine], batch, seed, epoch):
            yield images[None]

    def clean(self, index: Tensor, *, batch: int) -> Iterator[Tensor]:
        """Yield batches without augmentation, `[B, C, H, W]`, or `[1, B, C, H, W]` of `index [1, n]`."""
        for images in self._load("clean", index.reshape(-1), batch, 0, 0):
            yield images if index.dim() == 1 else images[None]

    def _load(self, what: str, index: Tensor, batch: int, seed: int, epoch: int) -> Iterator[Tensor]:
        sizes = [len(chunk) for chunk in _chunks(range(index.numel()), batch)]
        batches = [_chunks(chunk, _CHUNK) for chunk in _chunks(index.tolist(), batch)]
        self._batches.batches = [[(what, i, seed, epoch) for i in chunk] for chunks in batches for chunk in chunks]
        if self._loader is None:
            self._loader = self._open()
        received = _received(self._loader)
        watch = _Watch(self._device)
        for size, chunks in zip(sizes, batches, strict=True):
            images = watch.fetched(self._moved(size, (next(received) for _ in chunks), watch))
            yield images
            watch.issued()
        self.waited = watch.seconds()

    def close(self) -> None:
        """End the worker processes; the next pass starts others."""
        self._loader = None

    def _moved(self, size: int, chunks: Iterator[Tensor | Cuts], watch: _Watch) -> Tensor:
        """Return chunks as one batch on the device, normalised; copies overlap with the step before."""
        found = list(chunks)
        with watch.beside():
            cuts = [chunk for chunk in found if not isinstance(chunk, Tensor)]
            whole = [chunk for chunk in found if isinstance(chunk, Tensor)]
            images = self._joined(whole, (size, 3, self._size, self._size)) if whole else self._resized(cuts)
            return self._normalisation(images)

    def _resized(self, cuts: Sequence[Cuts]) -> Tensor:
        """Return cuts of any sizes as one batch, `[n, 3, size, size]`."""
        boxes = torch.cat([each for _, each in cuts])
        sides = boxes[:, 2:4]
        rows, columns = (int(-(-side // 32) * 32) for side in sides.amax(0).tolist())  # few shapes
        area = 3 * sides.prod(1)
        pixels = self._joined([each for each, _ in cuts], (int(area.sum()) + 3 * columns,))
        there = boxes.to(self._device, non_blocking=True)
        start = (area.cumsum(0) - area).to(self._device, non_blocking=True)
        images = Ragged(pixels, start, there[:, 2], there[:, 3])
        every = torch.arange(len(boxes), device=self._device)
        return resample(images, every, crop_view(there, self._size), size=self._size, extent=(rows, columns))

    def _joined(self, parts: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
        joined, done = torch.empty(shape, dtype=torch.uint8, device=self._device), 0
        for part in parts:
            joined[done : done + len(part)].copy_(part, non_blocking=True)
            done += len(part)
        return joined


class _Watch:
    """Times how long the device waits for batches, and keeps the host at most two batches ahead of it.

    On CUDA by events around each step: a stream that has nothing left to do passes the next event at once. Elsewhere
    the time in which the host fetches.
    """

    def __init__(self, device: torch.device) -> None:
        self._seconds, self._since = 0.0, time.perf_counter()
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._gaps: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self.issued()

    def beside(self) -> torch.cuda.StreamContext | nullcontext[None]:
        """Return a context for copies that do not wait for the steps issued so far."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def fetched(self, images: Tensor) -> Tensor:
        """Return a batch from `beside` to the next step."""
        if self._stream is None:
            self._seconds += time.perf_counter() - self._since
        else:
            torch.cuda.current_stream().wait_stream(self._stream)
            images.record_stream(torch.cuda.current_stream())
            self._gaps.append((self._last, _event()))
        return images

    def issued(self) -> None:
        """Note that a step was issued."""
        if self._stream is None:
            self._since = time.perf_counter()
        else:
            self._last = _event()
            while len(self._gaps) > 2:
                self._collect()

    def _collect(self) -> None:
        before, after = self._gaps.popleft()
        after.synchronize()
        self._seconds += before.elapsed_time(after) / 1000

    def seconds(self) -> float:
        """Return the seconds of waiting."""
        while self._gaps:
            self._collect()
        return self._seconds


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


class Decoded:
    """A large set that was decoded once and is kept on the device, where batches are cut, resized and mirrored.

    Args:
        images: the whole images.
        train: the set with its training transform.
        clean: the set with its evaluation transform.

    `waited`: seconds of the last pass in which crops were drawn on the host.
    """

    def __init__(
        self, images: Ragged, train: StoredImages, clean: StoredImages, scale: Normalisation, device: torch.device
    ) -> None:
        assert isinstance(clean.transform, ResizeCenterCrop)
        self.labels, self.names = train.labels.to(device), clean.names
        self.area = clean.transform.size**2
        self.waited = 0.0
        self._images, self._normalisation = images, scale
        self._centre = clean.transform
        self._crop = train.transform if isinstance(train.transform, RandomResizedCrop) else None
        self._sizes = torch.stack((images.height, images.width), 1)
        self._host_sizes = self._sizes.T.cpu().numpy()
        kinds = (self._centre,) if self._crop is None else (self._centre, self._crop)
        self._extents = {kind: largest_crops(self._sizes, kind) for kind in kinds}
        self._boxes: Tensor | None = None  # [R, N, 5], of this epoch; keeps its memory, as graphs need

    def prepare(self, size: int, mine: Tensor, *, epoch: int, seeds: Sequence[int]) -> None:
        """Draw the crops of all samples for an epoch."""
        if self._crop is None:
            return
        start = time.perf_counter()
        drawn = [torch.from_numpy(self._crop.boxes(*self._host_sizes, seed=seed, epoch=epoch)) for seed in seeds]
        boxes = torch.stack(drawn)
        if self._boxes is None:
            self._boxes = boxes.to(self.labels.device)
        else:
            self._boxes.copy_(boxes)
        self.waited = time.perf_counter() - start

    def shown(self, index: Tensor, at: Tensor) -> Tensor:
        """Return samples `index [R, B]` as network input, with the crops drawn for this epoch."""
        if self._crop is None or self._boxes is None:
            return self.plain(index)
        runs = torch.arange(len(index), device=index.device)[:, None]
        view = crop_view(self._boxes[runs, index].flatten(0, 1), self._crop.size)
        return self._batch(index, view, self._crop)

    def plain(self, index: Tensor) -> Tensor:
        """Return samples without augmentation: `[..., C, H, W]` of `index [...]`."""
        return self._batch(index, centre_view(self._sizes[index.reshape(-1)], self._centre), self._centre)

    def _batch(self, index: Tensor, view: View, crop: RandomResizedCrop | ResizeCenterCrop) -> Tensor:
        extent = self._extents[crop]
        images = resample(self._images, index.reshape(-1), view, size=crop.size, extent=extent)
        return self._normalisation(images).view(*index.shape, 3, crop.size, crop.size)


def kept(split: StoredImages, *, workers: int, device: torch.device) -> Ragged | None:
    """Return all images of a set, decoded, on the device; None where they do not fit.

    They fit into half of the free memory of a GPU. What was decoded is kept for the next group of runs.
    """
    records = split.records
    if device.type == "cuda" and records not in _decoded and _fits(records, device):
        images = decoded(records, workers=workers, device=device)
        if images is not None:
            _decoded[records] = images
    return _decoded.get(records)


_decoded: WeakKeyDictionary[Records, Ragged] = WeakKeyDictionary()


def room(device: torch.device) -> float:
    """Return how many bytes of decoded images a device keeps."""
    return _SHARE_OF_MEMORY * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else float("inf")


def _fits(records: Records, device: torch.device) -> bool:
    """Return whether the decoded images of a set are likely to fit: all but very large sets are then measured."""
    count = len(records.labels)
    index = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:_LOOKED_AT].tolist()
    sizes = [size_of(records.encoded(i), records.source(i)) for i in index]
    return 3 * count * sum(height * width for height, width in sizes) / len(sizes) < room(device)


def decoded(records: Records, *, workers: int, device: torch.device) -> Ragged | None:
    """Decode all images of a set in worker processes; None where they do not fit on the device, or are very large."""
    batches = _Batches(_chunks(range(len(records.labels)), 8 * _CHUNK))
    sizes = torch.cat(list(_received(_loader(_Whole(records, pixels=False), batches, workers, device))))
    rows, columns = largest_crops(sizes.cpu(), RandomResizedCrop())
    if 3 * int(sizes.prod(1).sum()) > room(device) or max(rows, columns) > _LARGEST:
        return None
    images = Ragged.empty(sizes, device)
    done = 0
    batches = _Batches(_chunks(range(len(records.labels)), _CHUNK))
    for chunk in _received(_loader(_Whole(records, pixels=True), batches, workers, device)):
        images.pixels[done : done + chunk.numel()].copy_(chunk, non_blocking=True)
        done += chunk.numel()
    return images
