"""Sources of batches of large images: decoded while training, or decoded once and kept on the device.

What is drawn for a sample depends on (seed, epoch, sample) alone: both sources show the same crops, to a few
grey levels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, finalize

import numpy as np
import torch
from torch import Tensor

from aol.data.crops import RandomResizedCrop, ResizeCenterCrop, Transform, resize, sample_generator
from aol.data.decode import decode, open_image, plain_jpeg_size, size_of
from aol.data.encoded_images import Records, StoredImages, some, typical_bytes
from aol.data.errors import DataError
from aol.data.gpu_decode import can_decode, decode_jpegs
from aol.data.images import Normalisation
from aol.data.resample import Ragged, View, centre_view, crop_view, largest_crops, resample
from aol.data.workers import Asked, Workers, cores
from aol.engine.prefetch import Pass, Passes
from aol.engine.side_streams import SideStreams, WaitTimer

T = TypeVar("T")
_CHUNK = 32  # images that a worker decodes at a time: fewer start sooner, more cost less to hand over
_GROUP = 8  # chunks that the device decodes at a time
_DEPTH = 3  # batches that are made ahead, on the device
_SHARE_OF_MEMORY = 0.5  # of what is free on the device, for decoded images
_LARGEST = 1024  # rows or columns of a crop that is resized on the device
_SPARE = 3 * (2 * _LARGEST + 32)  # bytes behind the last image of a batch


def worker_count(workers: int | None, device: torch.device) -> int:
    """Return how many processes decode: by default one for each core if the device is a GPU, else none.

    >>> worker_count(None, torch.device("cpu")), worker_count(3, torch.device("cpu"))
    (0, 3)
    """
    if workers is not None:
        return workers
    return cores() if device.type == "cuda" else 0


def has_views(train: StoredImages, clean: StoredImages) -> bool:
    """Return whether a device can do what the transforms do: those of `crops_for`, not another's."""
    shown = train.transform
    known = isinstance(shown, RandomResizedCrop) or shown == clean.transform
    return isinstance(clean.transform, ResizeCenterCrop) and known


# Worker processes

Request: TypeAlias = tuple[str, int, int, int]  # what is wanted, sample, seed, epoch


class Pixels(NamedTuple):
    """Decoded images: as the network takes them, `pixels [n, 3, size, size]`, or whole, one after the other, `[M]`."""

    pixels: Tensor


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


class _Wanted:
    """Answers requests for chunks of images, in a worker process or here: as the network takes them, or less work.

    With `cuts`, training images are only cut, to be resized and mirrored on the device. With `encoded`, plain JPEGs are
    only read.
    """

    def __init__(self, train: StoredImages, clean: StoredImages, *, cuts: bool, encoded: bool) -> None:
        self._views, self._records, self.encoded = {"train": train, "clean": clean}, train.records, encoded
        self._crop = train.transform if isinstance(train.transform, RandomResizedCrop) else None
        self._cuts = cuts

    def __call__(self, requests: Sequence[Request]) -> Pixels | Cuts | Encoded | DataError:
        try:
            crop = self._crop if requests[0][0] == "train" else None
            if self.encoded and (files := self._read(crop, requests)) is not None:
                return files
            if self._cuts and crop is not None:
                return self._cut(crop, requests)
            found = [self._views[what].image(i, seed=seed, epoch=at) for what, i, seed, at in requests]
            return Pixels(torch.stack(found))
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


class Sizes(NamedTuple):
    """Heights and widths of images, `[n, 2]`."""

    sizes: Tensor


class _Whole:
    """Answers requests for whole images of a set: sizes from the headers, files, or pixels one after the other."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def __call__(self, requests: Sequence[tuple[str, int]]) -> Pixels | Sizes | Encoded | DataError:
        what, index = requests[0][0], [index for _, index in requests]
        try:
            if what == "files" and (files := _files(self._records, index)) is not None:
                return files
            found = [(self._records.encoded(i), self._records.source(i)) for i in index]
            if what == "sizes":
                return Sizes(torch.tensor([size_of(*each) for each in found]))
            return Pixels(torch.cat([decode(*each).reshape(-1) for each in found]))
        except DataError as error:
            return error


def _chunks(index: Sequence[T], size: int) -> list[Sequence[T]]:
    return [index[start : start + size] for start in range(0, len(index), size)]


def _count(chunk: Pixels | Cuts | Encoded) -> int:
    """Return how many images a chunk has."""
    return len(chunk.pixels if isinstance(chunk, Pixels) else chunk.boxes if isinstance(chunk, Cuts) else chunk.length)


def _slot(records: Records, *, files: bool) -> int:
    """Return bytes that hold most chunks of a set: of files, or of decoded images."""
    return int(_CHUNK * (1.5 * typical_bytes(records) if files else 1.2 * typical_bytes(records, decoded=True)))


# Sources


@dataclass(frozen=True)
class _Shown:
    """What a pass shows: samples of a set in order, and what their crops are drawn from."""

    what: str
    samples: list[int]
    batch: int
    seed: int = 0
    epoch: int = 0

    def chunks(self) -> list[list[Sequence[int]]]:
        """Return the samples of each batch, in chunks."""
        return [_chunks(batch, _CHUNK) for batch in _chunks(self.samples, self.batch)]


class FromStorage:
    """A set of any size, decoded on the fly: files are read by worker processes, batches are made beside training.

    On CUDA a thread makes batches ahead of the training step, on streams of their own, so that neither the host nor the
    device waits for them. It goes on with the next pass before the present one ends, where that is known.

    Args:
        train: items with the training transform; its draws depend on (seed, epoch, sample), not on the worker.
        clean: the same records with the evaluation transform.
        workers: number of processes that read or decode.
        cuts: resize training images on the device, not in the workers; by default if the device is a GPU.
        ahead: make batches ahead in a thread; by default if the device is a GPU.

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
        ahead: bool | None = None,
    ) -> None:
        self.labels = train.labels.to(device)
        self.names = clean.names
        assert clean.transform is not None
        self.area = clean.transform.size**2
        self.waited = 0.0
        self._device = device
        cuts, ahead = (device.type == "cuda" if each is None else each for each in (cuts, ahead))
        wanted = _Wanted(train, clean, cuts=cuts, encoded=can_decode(device) and has_views(train, clean))
        maker = _Maker(clean.transform, train.records, scale, device)
        self._feed = _Feed(wanted, maker, workers=workers, depth=_DEPTH if ahead else 0)
        finalize(self, self._feed.close)

    def train(
        self,
        order: Tensor,
        mine: Tensor,
        *,
        batch: int,
        epoch: int,
        seeds: Sequence[int],
        coming: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """Yield augmented batches `[1, B, C, H, W]` of the places `mine` of `order [1, n]`.

        `coming`: the order of the next epoch, where it is known.
        """
        (seed,) = seeds
        shown = _Shown("train", order[0, mine].tolist(), batch, seed, epoch)
        after = None if coming is None else _Shown("train", coming[0, mine].tolist(), batch, seed, epoch + 1)
        for images in self._load(shown, after):
            yield images[None]

    def clean(self, index: Tensor, *, batch: int) -> Iterator[Tensor]:
        """Yield batches without augmentation, `[B, C, H, W]`, or `[1, B, C, H, W]` of `index [1, n]`."""
        for images in self._load(_Shown("clean", index.reshape(-1).tolist(), batch)):
            yield images if index.dim() == 1 else images[None]

    def _load(self, shown: _Shown, after: _Shown | None = None) -> Iterator[Tensor]:
        timer = WaitTimer(self._device)
        try:
            for images, ready in self._feed.start(shown, after):
                yield timer.fetched(images, ready)
                timer.issued()
        except Exception:
            self.close()  # what is under way may fail in the same way, though the cause is mended
            raise
        self.waited = timer.seconds()

    @property
    def spent(self) -> tuple[float, float]:
        """Return seconds of the last pass for which batches waited for workers, and in which they were made."""
        return self._feed.spent

    def close(self) -> None:
        """End threads and worker processes; the next pass starts others."""
        self._feed.close()


_Made: TypeAlias = tuple[Tensor, "torch.cuda.Event | None"]  # a batch, and when it is there


class _Feed:
    """Makes the batches of the passes of a source: training passes and clean ones, side by side."""

    def __init__(self, wanted: _Wanted, maker: _Maker, *, workers: int, depth: int) -> None:
        self._wanted, self._maker, self._count = wanted, maker, workers
        self._streams = {what: SideStreams(maker.device) for what in ("train", "clean")}
        self._passes: dict[str, Passes[_Shown, _Made]]
        self._passes = {what: Passes(self._batches, depth=depth) for what in self._streams}
        self._workers: Workers | None = None
        self.spent = (0.0, 0.0)

    def start(self, shown: _Shown, after: _Shown | None) -> Pass[_Made]:
        """Begin with a pass, or go on with it; `after` follows it, if that is known."""
        if self._workers is None:
            slot = _slot(self._maker.records, files=self._wanted.encoded) if self._count else 0
            self._workers = Workers(
                self._wanted,
                workers=self._count,
                together=3 * _GROUP,
                slot=slot,
                pin=self._wanted.encoded and self._maker.device.type == "cuda",
                lanes=len(self._passes),
            )
        passes = self._passes[shown.what]
        now = passes.start(shown)
        if after is not None:
            passes.expect(after)
        return now

    def _batches(self, shown: _Shown, now: Pass[_Made]) -> Iterator[_Made]:
        """Yield the batches of a pass."""
        assert self._workers is not None
        streams, lane = self._streams[shown.what], self._workers.lanes[shown.what == "clean"]
        spent = [0.0, 0.0]
        streams.enter_thread()
        now.may_ask()
        with closing(lane.answers(_requests(shown, now))) as answers, streams:
            for batch in shown.chunks():
                parts = []
                for group in _chunks(batch, _GROUP):
                    asked = list(islice(answers, len(group)))
                    now.may_make()
                    parts.append(self._images(asked, streams, spent))
                    ready = streams.made()
                if len(parts) > 1:
                    with streams.making():
                        parts = [torch.cat(parts)]
                    ready = streams.made()
                yield parts[0], ready
        self.spent = spent[0], spent[1]

    def _images(self, asked: list[Asked], streams: SideStreams, spent: list[float]) -> Tensor:
        """Return the images of some chunks; `spent` are the seconds of waiting for the chunks, and of making images."""
        streams.reads(asked)
        start = time.monotonic()
        chunks = [each.get() for each in asked]
        spent[0] += (read := time.monotonic()) - start
        images = self._maker(chunks, streams)
        spent[1] += time.monotonic() - read
        return images

    def close(self) -> None:
        """End threads and worker processes."""
        for passes in self._passes.values():
            passes.stop()
        if self._workers is not None:
            self._workers.close()
        self._workers = None


def _requests(shown: _Shown, now: Pass[_Made]) -> Iterator[list[Request]]:
    for batch in shown.chunks():
        for chunk in batch:
            yield [(shown.what, index, shown.seed, shown.epoch) for index in chunk]
    now.asked.set()


class _Maker:
    """Makes network input on the device of what workers have read."""

    def __init__(self, centre: Transform, records: Records, scale: Normalisation, device: torch.device) -> None:
        self.device, self.records, self._centre, self._size = device, records, centre, centre.size
        self._crops = _Crops(scale, device)

    def __call__(self, found: Sequence[Pixels | Cuts | Encoded], streams: SideStreams) -> Tensor:
        """Return chunks as one batch, normalised."""
        ends = torch.tensor([0, *(_count(chunk) for chunk in found)]).cumsum(0).tolist()
        ways: dict[type, Callable[[Any], Tensor]]
        ways = {Pixels: self._whole, Cuts: self._resized, Encoded: partial(self._decoded, streams=streams)}
        parts: list[tuple[list[int], Tensor]] = []
        for kind, made in ways.items():
            own = [at for at, chunk in enumerate(found) if isinstance(chunk, kind)]
            if own:
                places = [place for at in own for place in range(ends[at], ends[at + 1])]
                with streams.making():
                    parts.append((places, made([found[at] for at in own])))
        if len(parts) == 1:
            return parts[0][1]
        with streams.making():
            images = torch.empty((ends[-1], 3, self._size, self._size), device=self.device)
            for places, part in parts:
                images[torch.tensor(places, device=self.device)] = part
        return images

    def _whole(self, chunks: Sequence[Pixels]) -> Tensor:
        shape = (sum(len(each.pixels) for each in chunks), 3, self._size, self._size)
        return self._crops.normalisation(self._joined([each.pixels for each in chunks], shape))

    def _resized(self, cuts: Sequence[Cuts]) -> Tensor:
        """Return cuts of any sizes as one batch."""
        boxes = torch.cat([each.boxes for each in cuts])
        area = 3 * boxes[:, 2:4].prod(1)
        pixels = self._joined([each.pixels for each in cuts], (int(area.sum()) + _SPARE,))
        sizes = boxes[:, 2:4]
        return self._viewed(pixels, _starts(sizes), sizes, crop_view(boxes, self._size), planar=False)

    def _decoded(self, files: Sequence[Encoded], streams: SideStreams) -> Tensor:
        """Return JPEG files as one batch, decoded on the device."""
        with streams.decoding():
            images = _pixels(files, self.device, self.records)
        streams.reads(images)
        sizes, boxes = (torch.cat(each) for each in zip(*((each.sizes, each.boxes) for each in files), strict=True))
        assert isinstance(self._centre, ResizeCenterCrop)
        view = crop_view(boxes, self._size) if len(boxes) else centre_view(sizes, self._centre)
        with streams.making():
            if self._crops.by_kernel:  # it finds each image where it is, by its distance from the first
                first = images[0].data_ptr()
                return self._viewed(images[0], [each.data_ptr() - first for each in images], sizes, view, planar=True)
            spare = torch.zeros(_SPARE, dtype=torch.uint8, device=self.device)
            pixels = torch.cat([*(image.reshape(-1) for image in images), spare])
            return self._viewed(pixels, _starts(sizes), sizes, view, planar=True)

    def _viewed(self, pixels: Tensor, starts: list[int], sizes: Tensor, view: View, *, planar: bool) -> Tensor:
        """Return views of images of `sizes [n, 2]`, which begin at `starts` in `pixels`; sizes and view are here."""
        extents = ((view.high - view.low).amax(0) + 31) // 32 * 32  # few shapes
        rows, columns = extents.tolist()
        table = (torch.tensor(starts), sizes[:, 0], sizes[:, 1])
        start, height, width = (each.to(self.device, non_blocking=True) for each in table)
        images = Ragged(pixels, start, height, width, planar)
        there = View(*(each.to(self.device, non_blocking=True) for each in view))
        every = torch.arange(len(sizes), device=self.device)
        return self._crops(images, every, there, size=self._size, extent=(rows, columns))

    def _joined(self, parts: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
        joined, done = torch.empty(shape, dtype=torch.uint8, device=self.device), 0
        for part in parts:
            joined[done : done + len(part)].copy_(part, non_blocking=True)
            done += len(part)
        return joined


def _starts(sizes: Tensor) -> list[int]:
    """Return where images of `sizes [n, 2]` begin that lie one after the other."""
    area = 3 * sizes.prod(1)
    return (area.cumsum(0) - area).tolist()


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
    sizes = [size_of(records.encoded(i), records.source(i)) for i in some(records)]
    return 3 * len(records.labels) * sum(height * width for height, width in sizes) / len(sizes) < room(device)


def decoded(records: Records, *, workers: int, device: torch.device) -> Ragged | None:
    """Decode all images of a set in worker processes; None where they do not fit on the device, or are very large."""
    every = range(len(records.labels))
    count, by_device = min(workers, -(-len(every) // _CHUNK)), can_decode(device)
    slot = _slot(records, files=by_device) if count else 0
    pool = Workers(_Whole(records), workers=count, together=2 * _GROUP, slot=slot, pin=False)
    try:
        sizes = torch.cat([each.sizes for group in _answers(pool, "sizes", every) for each in group])
        rows, columns = largest_crops(sizes, RandomResizedCrop())
        if 3 * int(sizes.prod(1).sum()) > room(device) or max(rows, columns) > _LARGEST:
            return None
        images, done = Ragged.empty(sizes, device)._replace(planar=True), 0
        for group in _answers(pool, "files" if by_device else "pixels", every):
            files = [each for each in group if isinstance(each, Encoded)]
            decoded = iter(_pixels(files, device, records) if files else ())
            for each in group:
                whole = list(islice(decoded, len(each.length))) if isinstance(each, Encoded) else [each.pixels]
                pixels = torch.cat([image.reshape(-1) for image in whole])
                images.pixels[done : done + len(pixels)].copy_(pixels)
                done += len(pixels)
        return images
    finally:
        pool.close()


def _answers(pool: Workers, what: str, index: Sequence[int]) -> Iterator[list[Any]]:
    """Yield answers about images in order, a group at a time; each is released when the next is asked for."""
    requests = [[(what, each) for each in chunk] for chunk in _chunks(index, _CHUNK)]
    with closing(pool.lanes[0].answers(requests)) as answers:
        while asked := list(islice(answers, _GROUP)):
            yield [each.get() for each in asked]
            for each in asked:
                each.release()


class _Crops:
    """Makes network input of views of images: by one kernel on CUDA with Triton, else by matrix products."""

    def __init__(self, normalisation: Normalisation, device: torch.device) -> None:
        self.normalisation = normalisation
        self._scale = torch.tensor(normalisation.scale, device=device)
        self._shift = torch.tensor(normalisation.shift, device=device)
        self.by_kernel = device.type == "cuda" and find_spec("triton") is not None

    def __call__(self, images: Ragged, index: Tensor, view: View, *, size: int, extent: tuple[int, int]) -> Tensor:
        """Return views of the images `index [n]`, normalised: float32 `[n, 3, size, size]`."""
        if not self.by_kernel:
            return self.normalisation(resample(images, index, view, size=size, extent=extent))
        from aol.nets.fused.resample import batch  # needs Triton

        found: Tensor = batch(images, index, view, size=size, scale=self._scale, shift=self._shift)
        return found
