"""A large set that was decoded once and is kept on the device."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from aol.lab.data import gpu_decode
from aol.lab.data.crops import RandomResizedCrop, ResizeCenterCrop
from aol.lab.data.decode import decode, plain_jpeg_size, size_of
from aol.lab.data.encoded_images import Records, StoredImages, typical_bytes
from aol.lab.data.images import Normalisation
from aol.lab.data.resample import Ragged, View, centre_view, crop_view, largest_crops
from aol.lab.data.workers import Workers
from aol.lab.engine.image_batches import Crops, decode_files
from aol.lab.engine.image_requests import GROUP, LARGEST, Images, Part, chunks, joined, slot_bytes

_SHARE_OF_MEMORY = 0.5  # of what is free on the device, for decoded images


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
        self._images, self._crops = images, Crops(scale, device)
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

    def augmented(self, index: Tensor, at: Tensor) -> Tensor:
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
    if device.type != "cuda":
        return None
    if records not in _decoded and _fits(records, device):
        images = decoded(records, workers=workers, device=device)
        if images is not None:
            _decoded[records] = images
    return _decoded.get(records)


_decoded: WeakKeyDictionary[Records, Ragged] = WeakKeyDictionary()


def memory_limit(device: torch.device) -> float:
    """Return how many bytes of decoded images a device keeps."""
    return _SHARE_OF_MEMORY * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else float("inf")


def _fits(records: Records, device: torch.device) -> bool:
    """Return whether the decoded images of a set are likely to fit: all but very large sets are then measured."""
    return len(records.labels) * typical_bytes(records, decoded=True) < memory_limit(device)


class _Sizes(NamedTuple):
    """Heights and widths of images."""

    sizes: Tensor  # [n, 2]


class _Whole:
    """Answers requests for whole images of a set: sizes from the headers, or the images, plain JPEGs as they are."""

    def __init__(self, records: Records, *, encoded: bool) -> None:
        self._records, self._encoded = records, encoded

    def __call__(self, requests: Sequence[tuple[str, int]]) -> _Sizes | Images:
        index = [index for _, index in requests]
        if requests[0][0] == "sizes":
            sizes = [size_of(self._records.encoded(each), self._records.source(each)) for each in index]
            return _Sizes(torch.tensor(sizes))
        return joined([self._part(each) for each in index], index)

    def _part(self, index: int) -> Part:
        content = self._records.encoded(index)
        if self._encoded and (size := plain_jpeg_size(content)) is not None:
            return Part(content, size)
        pixels = decode(content, self._records.source(index)).contiguous()  # as it is kept: colour by colour
        return Part(pixels.numpy(), (pixels.shape[1], pixels.shape[2]))


def decoded(records: Records, *, workers: int, device: torch.device) -> Ragged | None:
    """Decode all images of a set in worker processes; None where they do not fit on the device, or are very large."""
    every, by_device = range(len(records.labels)), gpu_decode.can_decode(device)
    count = min(workers, len(chunks(every)))
    slot = slot_bytes(records, share=0.0 if by_device else 1.0) if count else 0
    pool = Workers(_Whole(records, encoded=by_device), workers=count, together=2 * GROUP, slot=slot, pin=False)
    try:
        sizes = torch.cat([each.sizes for group in _answers(pool, "sizes", every) for each in group])
        rows, columns = largest_crops(sizes, RandomResizedCrop())
        if 3 * int(sizes.prod(1).sum()) > memory_limit(device) or max(rows, columns) > LARGEST:
            return None
        images, done = Ragged.empty(sizes, device)._replace(planar=True), 0
        for group in _answers(pool, "images", every):
            files = iter(decode_files(group, device, records))
            for each in group:
                areas = 3 * each.sizes[~each.encoded].prod(1)
                others = iter(torch.split(each.divided()[1].to(device), areas.tolist()))
                whole = [next(files if encoded else others) for encoded in each.encoded.tolist()]
                pixels = torch.cat([image.reshape(-1) for image in whole])
                images.pixels[done : done + len(pixels)].copy_(pixels)
                done += len(pixels)
        return images
    finally:
        pool.close()


def _answers(pool: Workers, what: str, index: Sequence[int]) -> Iterator[list[Any]]:
    """Yield answers about images in order, a group at a time; each is released when the next is asked for."""
    requests = [[(what, each) for each in chunk] for chunk in chunks(index)]
    with closing(pool.lanes[0].answers(requests)) as answers:
        while asked := list(islice(answers, GROUP)):
            yield [each.get() for each in asked]
            for each in asked:
                each.release()
