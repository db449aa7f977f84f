"""Sources of large images: decoded once and kept on the device, or decoded while training.

Decoding is by Pillow in the worker processes of a DataLoader. What training shows of a sample depends on (seed, epoch,
sample) alone: both sources show the same crops, to a few grey levels.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from aol.lab.data.encoded_images import Ragged, StoredImages, centre_boxes, crop_boxes, draw_crops
from aol.lab.data.images import DataError, Normalisation

_CHUNK = 32  # images of a request: the first batch comes soon, and answers are small in shared memory


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
