"""Sources of batches of large images: decoded while training, or decoded once and kept on the device.

What is drawn for a sample depends on (seed, epoch, sample) alone: both sources show the same crops, to a few
grey levels.
"""

from __future__ import annotations

import gc
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from aol.data.crops import RandomResizedCrop, ResizeCenterCrop, resize, sample_generator
from aol.data.decode import decode, open_image, plain_jpeg_size, size_of
from aol.data.encoded_images import Records, StoredImages
from aol.data.errors import DataError
from aol.data.gpu_decode import can_decode, decode_jpegs
from aol.data.images import Normalisation
from aol.data.resample import Ragged, View, centre_view, crop_view, largest_crops, resample

_CHUNK = 32  # images that a worker decodes at a time: fewer start sooner, more cost less to hand over
_AHEAD = 4  # chunks that each worker may be ahead
_SHARE_OF_MEMORY = 0.5  # of what is free on the device, for decoded images
_LARGEST = 1024  # rows or columns of a crop that is resized on the device
_SPARE = 3 * (2 * _LARGEST + 32)  # bytes behind the last image of a batch
_LOOKED_AT = 64  # images whose sizes tell how large a set is


def worker_count(workers: int | None, device: torch.device) -> int:
    """Return how many processes decode: by default one for each core if the device is a GPU, else none.

    >>> worker_count(None, torch.device("cpu")), worker_count(3, torch.device("cpu"))
    (0, 3)
    """
    if workers is not None:
        return workers
    return len(os.sched_getaffinity(0)) if device.type == "cuda" else 0


def has_views(train: StoredImages, clean: StoredImages) -> bool:
    """Return whether a device can do what the transforms do: those of `crops_for`, not another's."""
    shown = train.transform
    known = isinstance(shown, RandomResizedCrop) or shown == clean.transform
    return isinstance(clean.transform, ResizeCenterCrop) and known


# Worker processes

Request: TypeAlias = tuple[str, int, int, int]  # what is wanted, sample, seed, epoch


class Cuts(NamedTuple):
    """Cuts of images one after the other, `pixels [M]`, and their `boxes [n, 5]`, each from 0."""

    pixels: Tensor
    boxes: Tensor


class Encoded(NamedTuple):
    """JPEG files one after the other."""

    content: Tensor  # [M]
    length: Tensor  # [n]: bytes
    sample: Tensor  # [n]
    sizes: Tensor  # [n, 2]
    boxes: Tensor  # [n, 5]; [0, 5] for the central view


class _Wanted(Dataset[Tensor]):
    """Serves requests for chunks of images, in a worker process or here: uint8 [n, 3, size, size], or less work.

    With `cuts`, training images are only cut, to be resized and mirrored on the device. With `encoded`, plain JPEGs are
    only read.
    """

    def __init__(self, train: StoredImages, clean: StoredImages, *, cuts: bool, encoded: bool) -> None:
        self._views, self._records, self._encoded = {"train": train, "clean": clean}, train.records, encoded
        self._crop = train.transform if isinstance(train.transform, RandomResizedCrop) else None
        self._cuts = cuts

    def __getitems__(self, requests: Sequence[Request]) -> Tensor | Cuts | Encoded | DataError:
        try:
            crop = self._crop if requests[0][0] == "train" else None
            if self._encoded and (files := self._read(crop, requests)) is not None:
                return files
            if self._cuts and crop is not None:
                return self._cut(crop, requests)
            return torch.stack([self._views[what].image(i, seed=seed, epoch=at) for what, i, seed, at in requests])
        except DataError as error:  # raised in a worker it would come with a long traceback
            return error

    def _read(self, crop: RandomResizedCrop | None, requests: Sequence[Request]) -> Encoded | None:
        """Return the files, if all of them are plain JPEGs that are not too large."""
        files = _files(self._records, [index for _, index, _, _ in requests])
        if files is None or int(files.sizes.max()) > 2 * _LARGEST:
            return None
        if crop is None:
            return files
        drawn = [
            _drawn(crop, height, width, sample_generator(seed, epoch, index))
            for (height, width), (_, index, seed, epoch) in zip(files.sizes.tolist(), requests, strict=True)
        ]
        return files._replace(boxes=torch.tensor(drawn))

    def _cut(self, crop: RandomResizedCrop, requests: Sequence[Request]) -> Cuts:
        pixels, boxes = [], []
        for _, index, seed, epoch in requests:
            image = open_image(self._records.encoded(index), self._records.source(index))
            top, left, height, width, flip = _drawn(
                crop, image.height, image.width, sample_generator(seed, epoch, index)
            )
            cut = torch.from_numpy(np.array(image.crop((left, top, left + width, top + height))))
            if max(height, width) > _LARGEST:
                cut = resize(cut.permute(2, 0, 1), crop.size, crop.size).permute(1, 2, 0)
            pixels.append(cut.reshape(-1))
            boxes.append((0, 0, *cut.shape[:2], flip))
        return Cuts(torch.cat(pixels), torch.tensor(boxes))


def _files(records: Records, index: Sequence[int]) -> Encoded | None:
    """Return files as they are, if all of them are plain JPEGs."""
    contents = [records.encoded(i) for i in index]
    sizes = [plain_jpeg_size(content) for content in contents]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    content = torch.frombuffer(bytearray(b"".join(contents)), dtype=torch.uint8)
    length, none = torch.tensor([len(each) for each in contents]), torch.zeros((0, 5), dtype=torch.int64)
    return Encoded(content, length, torch.tensor(index), torch.tensor(known), none)


def _pixels(files: Sequence[Encoded], device: torch.device, records: Records) -> list[Tensor]:
    """Decode files on the device: uint8 [3, H, W] each."""
    encoded = [file for each in files for file in torch.split(each.content, each.length.tolist())]
    try:
        return decode_jpegs(encoded, device)
    except RuntimeError:  # Pillow's decoder knows more, or names the damaged file
        names = [records.source(index) for each in files for index in each.sample.tolist()]
        return [decode(bytes(file.numpy()), name).to(device) for file, name in zip(encoded, names, strict=True)]


def _drawn(
    crop: RandomResizedCrop, height: int, width: int, generator: np.random.Generator
) -> tuple[int, int, int, int, int]:
    """Draw a box and whether to mirror it, as `RandomResizedCrop.boxes`."""
    box = crop.box(height, width, generator)
    return (*box, int(crop.flip and generator.random() < 0.5))


class _Whole(Dataset[Tensor]):
    """Serves whole images of a set: sizes `[n, 2]` from the headers, files, or pixels [3, H, W] one after the other."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def __getitems__(self, requests: Sequence[tuple[str, int]]) -> Tensor | Encoded | DataError:
        what, index = requests[0][0], [index for _, index in requests]
        try:
            if what == "files" and (files := _files(self._records, index)) is not None:
                return files
            found = [(self._records.encoded(i), self._records.source(i)) for i in index]
            if what == "sizes":
                return torch.tensor([size_of(*each) for each in found])
            return torch.cat([decode(*each).reshape(-1) for each in found])
        except DataError as error:
            return error


class _Batches:
    """The lists of requests of the coming pass: workers stay alive between passes, and the loader asks this again."""

    batches: Iterable[Sequence[object]] = ()

    def __iter__(self) -> Iterator[Sequence[object]]:
        return iter(self.batches)


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


def _count(chunk: Tensor | Cuts | Encoded) -> int:
    """Return how many images a chunk has."""
    return len(chunk if isinstance(chunk, Tensor) else chunk.boxes if isinstance(chunk, Cuts) else chunk.length)


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
        self._centre, self._size = clean.transform, clean.transform.size
        self.area = self._size**2
        self.waited = 0.0
        self._crops, self._device = _Crops(scale, device), device
        self._batches = _Batches()
        self._records = train.records
        cuts = device.type == "cuda" if cuts is None else cuts
        wanted = _Wanted(train, clean, cuts=cuts, encoded=can_decode(device) and has_views(train, clean))
        self._open = partial(_loader, wanted, self._batches, workers, device)
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
        order = _chunks(index.tolist(), batch)
        chunks = (chunk for each in order for chunk in _chunks(each, _CHUNK))
        self._batches.batches = ([(what, i, seed, epoch) for i in chunk] for chunk in chunks)
        if self._loader is None:
            self._loader = self._open()
        received = _received(self._loader)
        watch = _Watch(self._device)
        for each in order:
            fetched = [next(received) for _ in range(-(-len(each) // _CHUNK))]
            yield watch.fetched(self._moved(len(each), fetched, watch))
            watch.issued()
        self.waited = watch.seconds()

    def close(self) -> None:
        """End the worker processes; the next pass starts others."""
        self._loader = None

    def _moved(self, size: int, found: Sequence[Tensor | Cuts | Encoded], watch: _Watch) -> Tensor:
        """Return chunks as one batch on the device, normalised; copies overlap with the step before."""
        ends = torch.tensor([0, *(_count(chunk) for chunk in found)]).cumsum(0).tolist()
        with watch.beside():
            parts: list[tuple[list[int], Tensor]] = []
            ways: dict[type, Callable[[Any], Tensor]]
            ways = {Tensor: self._whole, Cuts: self._resized, Encoded: self._decoded}
            for kind, made in ways.items():
                own = [at for at, chunk in enumerate(found) if isinstance(chunk, kind)]
                if own:
                    places = [place for at in own for place in range(ends[at], ends[at + 1])]
                    parts.append((places, made([found[at] for at in own])))
            if len(parts) == 1:
                return parts[0][1]
            images = torch.empty((size, 3, self._size, self._size), device=self._device)
            for places, part in parts:
                images[torch.tensor(places, device=self._device)] = part
            return images

    def _whole(self, chunks: Sequence[Tensor]) -> Tensor:
        size = sum(len(chunk) for chunk in chunks)
        return self._crops.normalisation(self._joined(chunks, (size, 3, self._size, self._size)))

    def _resized(self, cuts: Sequence[Cuts]) -> Tensor:
        """Return cuts of any sizes as one batch."""
        boxes = torch.cat([each.boxes for each in cuts])
        area = 3 * boxes[:, 2:4].prod(1)
        pixels = self._joined([each.pixels for each in cuts], (int(area.sum()) + _SPARE,))
        return self._viewed(pixels, boxes[:, 2:4], crop_view(boxes, self._size), planar=False)

    def _decoded(self, files: Sequence[Encoded]) -> Tensor:
        """Return JPEG files as one batch, decoded on the device."""
        images = _pixels(files, self._device, self._records)
        sizes, boxes = (torch.cat(each) for each in zip(*((each.sizes, each.boxes) for each in files), strict=True))
        assert isinstance(self._centre, ResizeCenterCrop)
        view = crop_view(boxes, self._size) if len(boxes) else centre_view(sizes, self._centre)
        spare = torch.zeros(_SPARE, dtype=torch.uint8, device=self._device)
        pixels = torch.cat([*(image.reshape(-1) for image in images), spare])
        return self._viewed(pixels, sizes, view, planar=True)

    def _viewed(self, pixels: Tensor, sizes: Tensor, view: View, *, planar: bool) -> Tensor:
        """Return views of images of `sizes [n, 2]`, one after the other in `pixels`; sizes and view are on the CPU."""
        area = 3 * sizes.prod(1)
        extents = ((view.high - view.low).amax(0) + 31) // 32 * 32  # few shapes
        rows, columns = extents.tolist()
        table = (area.cumsum(0) - area, sizes[:, 0], sizes[:, 1])
        start, height, width = (each.to(self._device, non_blocking=True) for each in table)
        images = Ragged(pixels, start, height, width, planar)
        there = View(*(each.to(self._device, non_blocking=True) for each in view))
        every = torch.arange(len(sizes), device=self._device)
        return self._crops(images, every, there, size=self._size, extent=(rows, columns))

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
        self._images, self._crops = images, _Crops(scale, device)
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
        images = self._crops(self._images, index.reshape(-1), view, size=crop.size, extent=self._extents[crop])
        return images.view(*index.shape, 3, crop.size, crop.size)


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
    every, batches = range(len(records.labels)), _Batches()
    loader = _loader(_Whole(records), batches, min(workers, -(-len(every) // _CHUNK)), device)
    batches.batches = [[("sizes", index) for index in chunk] for chunk in _chunks(every, 8 * _CHUNK)]
    sizes = torch.cat(list(_received(loader))).cpu()
    rows, columns = largest_crops(sizes, RandomResizedCrop())
    if 3 * int(sizes.prod(1).sum()) > room(device) or max(rows, columns) > _LARGEST:
        return None
    images, done = Ragged.empty(sizes, device)._replace(planar=True), 0
    what = "files" if can_decode(device) else "pixels"
    batches.batches = [[(what, index) for index in chunk] for chunk in _chunks(every, 2 * _CHUNK)]
    for chunk in _received(loader):
        if isinstance(chunk, Encoded):
            chunk = torch.cat([each.reshape(-1) for each in _pixels([chunk], device, records)])
        images.pixels[done : done + chunk.numel()].copy_(chunk, non_blocking=True)
        done += chunk.numel()
    return images


class _Crops:
    """Makes network input of views of images: by one kernel on CUDA with Triton, else by matrix products."""

    def __init__(self, normalisation: Normalisation, device: torch.device) -> None:
        self.normalisation = normalisation
        self._scale = torch.tensor(normalisation.scale, device=device)
        self._shift = torch.tensor(normalisation.shift, device=device)
        self._by_kernel = device.type == "cuda" and find_spec("triton") is not None

    def __call__(self, images: Ragged, index: Tensor, view: View, *, size: int, extent: tuple[int, int]) -> Tensor:
        """Return views of the images `index [n]`, normalised: float32 `[n, 3, size, size]`."""
        if not self._by_kernel:
            return self.normalisation(resample(images, index, view, size=size, extent=extent))
        from aol.nets.fused.resample import batch  # needs Triton

        found: Tensor = batch(images, index, view, size=size, scale=self._scale, shift=self._shift)
        return found
