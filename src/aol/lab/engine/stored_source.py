"""Large sets of any size, whose images are decoded while training.

What is drawn for a sample depends on (seed, epoch, sample) alone: images that are kept on the device
(`kept_images.py`) show the same crops, to a few grey levels.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias
from weakref import finalize

import torch
from torch import Tensor

from aol.lab.data import gpu_decode
from aol.lab.data.encoded_images import StoredImages
from aol.lab.data.images import Normalisation
from aol.lab.data.workers import Asked, Workers, core_share
from aol.lab.engine.image_batches import BatchMaker
from aol.lab.engine.image_requests import GROUP, ImageReader, Request, chunks, has_views, slot_bytes, split
from aol.lab.engine.launch import local_processes
from aol.lab.engine.prefetch import Pass, Passes
from aol.lab.engine.side_streams import SideStreams, WaitTimer

_DEPTH = 3  # batches that are made ahead, on the device


def worker_count(workers: int | None, device: torch.device) -> int:
    """Return how many processes decode: by default one for each core if the device is a GPU, else none.

    The processes of torchrun on one machine divide its cores, unless each has its own. Elsewhere than on Linux
    `Workers` has no processes.

    >>> worker_count(None, torch.device("cpu")), worker_count(3, torch.device("cpu"))
    (0, 3)
    """
    if sys.platform != "linux":
        return 0
    if workers is not None:
        return workers
    return core_share(local_processes()) if device.type == "cuda" else 0


@dataclass(frozen=True)
class _PassRequest:
    """What a pass shows: samples of a set in order, and what their crops are drawn from."""

    what: str
    samples: list[int]
    batch: int
    seed: int = 0
    epoch: int = 0

    def chunks(self) -> list[list[Sequence[int]]]:
        """Return the samples of each batch, in chunks."""
        return [chunks(batch) for batch in split(self.samples, self.batch)]


class FromStorage:
    """A set of any size, decoded on the fly: files are read by worker processes, batches are made beside training.

    On CUDA a thread makes batches ahead of the training step, on streams of their own, so that neither the host nor the
    device waits for them. It goes on with the next pass before the present one ends, where that is known.

    Args:
        train: items with the training transform; its draws depend on (seed, epoch, sample), not on the worker.
        clean: the same records with the evaluation transform.
        workers: number of processes that read or decode.
        cpu_share: of the JPEGs that a GPU could decode, the part that workers decode.
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
        cpu_share: float = 0.0,
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
        encoded = gpu_decode.can_decode(device) and has_views(train, clean)
        reader = ImageReader(train, clean, cuts=cuts, encoded=encoded, share=cpu_share)
        maker = BatchMaker(clean.transform, train.records, scale, device)
        self._feed = _Feed(reader, maker, workers=workers, depth=_DEPTH if ahead else 0)
        finalize(self, self._feed.close)

    def train(
        self, order: Tensor, mine: Tensor, *, batch: int, epoch: int, seeds: Sequence[int], coming: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield augmented batches `[1, B, C, H, W]` of the places `mine` of `order [1, n]`.

        `coming`: the order of the next epoch, where it is known.
        """
        (seed,) = seeds
        shown = _PassRequest("train", order[0, mine].tolist(), batch, seed, epoch)
        after = None if coming is None else _PassRequest("train", coming[0, mine].tolist(), batch, seed, epoch + 1)
        for images in self._load(shown, after):
            yield images[None]

    def clean(self, index: Tensor, *, batch: int) -> Iterator[Tensor]:
        """Yield batches without augmentation, `[B, C, H, W]`, or `[1, B, C, H, W]` of `index [1, n]`."""
        for images in self._load(_PassRequest("clean", index.reshape(-1).tolist(), batch)):
            yield images if index.dim() == 1 else images[None]

    def _load(self, shown: _PassRequest, after: _PassRequest | None = None) -> Iterator[Tensor]:
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

    def __init__(self, reader: ImageReader, maker: BatchMaker, *, workers: int, depth: int) -> None:
        self._reader, self._maker, self._count = reader, maker, workers
        self._streams = {what: SideStreams(maker.device) for what in ("train", "clean")}
        self._passes: dict[str, Passes[_PassRequest, _Made]]
        self._passes = {what: Passes(self._batches, depth=depth) for what in self._streams}
        self._workers: Workers | None = None
        self.spent = (0.0, 0.0)

    def start(self, shown: _PassRequest, after: _PassRequest | None) -> Pass[_Made]:
        """Begin with a pass, or go on with it; `after` follows it, if that is known."""
        if self._workers is None:
            maker, share = self._maker, self._reader.share
            slot = slot_bytes(maker.records, share=share, size=maker.size) if self._count else 0
            self._workers = Workers(
                self._reader,
                workers=self._count,
                together=3 * GROUP,
                slot=slot,
                pin=self._reader.encoded and maker.device.type == "cuda",
                lanes=len(self._passes),
            )
        passes = self._passes[shown.what]
        now = passes.start(shown)
        if after is not None:
            passes.expect(after)
        return now

    def _batches(self, shown: _PassRequest, now: Pass[_Made]) -> Iterator[_Made]:
        """Yield the batches of a pass."""
        assert self._workers is not None
        streams, lane = self._streams[shown.what], self._workers.lanes[shown.what == "clean"]
        spent = [0.0, 0.0]
        streams.enter_thread()
        now.may_ask()
        with closing(lane.answers(_requests(shown, now))) as answers, streams:
            for batch in shown.chunks():
                parts = []
                for group in split(batch, GROUP):
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


def _requests(shown: _PassRequest, now: Pass[_Made]) -> Iterator[list[Request]]:
    for batch in shown.chunks():
        for chunk in batch:
            yield [(shown.what, index, shown.seed, shown.epoch) for index in chunk]
    now.asked.set()
