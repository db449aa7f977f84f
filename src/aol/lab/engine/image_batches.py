"""Network input from large images, on the training device: decoded there or not, cut, resized, mirrored, normalised."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from aol.lab.data import gpu_decode
from aol.lab.data.crops import ResizeCenterCrop, Transform
from aol.lab.data.decode import decode
from aol.lab.data.encoded_images import Records
from aol.lab.data.images import Normalisation
from aol.lab.data.resample import Ragged, View, centre_view, crop_view, resample
from aol.lab.engine.image_requests import LARGEST, Images, Pixels
from aol.lab.engine.side_streams import SideStreams

_SPARE = 3 * (2 * LARGEST + 32)  # bytes behind the last image of a batch


class Crops:
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
        from aol.lab.nets.fused.resample import batch  # needs Triton

        views: Tensor = batch(images, index, view, size=size, scale=self._scale, shift=self._shift)
        return views


def decode_files(chunks: Sequence[Images], device: torch.device, records: Records) -> list[Tensor]:
    """Decode the files of chunks on the device: uint8 [3, H, W] each."""
    encoded = [file for each in chunks for file in each.divided()[0]]
    try:
        return gpu_decode.decode_jpegs(encoded, device) if encoded else []
    except RuntimeError:  # Pillow's decoder knows more, or names the damaged file
        names = [records.source(index) for each in chunks for index in each.sample[each.encoded].tolist()]
        return [decode(bytes(file.numpy()), name).to(device) for file, name in zip(encoded, names, strict=True)]


class BatchMaker:
    """Makes network input on the device of what workers have read."""

    def __init__(self, centre: Transform, records: Records, scale: Normalisation, device: torch.device) -> None:
        self.device, self.records, self.size, self._centre = device, records, centre.size, centre
        self._crops = Crops(scale, device)

    def __call__(self, answers: Sequence[Pixels | Images], streams: SideStreams) -> Tensor:
        """Return chunks as one batch, normalised."""
        chunks = [each for each in answers if isinstance(each, Images)]
        if not chunks:
            with streams.making():
                shape = (sum(len(each[0]) for each in answers), 3, self.size, self.size)
                return self._crops.normalisation(self._joined([each[0] for each in answers], shape))
        encoded = torch.cat([each.encoded for each in chunks])
        sizes, boxes = torch.cat([each.sizes for each in chunks]), torch.cat([each.boxes for each in chunks])
        parts = []
        # Cuts first: while the decoder blocks this thread, they are copied and resized.
        for own, make in ((~encoded, self._resized), (encoded, self._decoded)):
            if own.any():
                parts.append((own, make(chunks, sizes[own], boxes[own], streams)))
        if len(parts) == 1:
            return parts[0][1]
        with streams.making():
            images = torch.empty((len(encoded), 3, self.size, self.size), device=self.device)
            for own, part in parts:
                images[own.nonzero()[:, 0].to(self.device, non_blocking=True)] = part
        return images

    def _resized(self, chunks: Sequence[Images], sizes: Tensor, boxes: Tensor, streams: SideStreams) -> Tensor:
        """Return cuts of any sizes as one batch."""
        with streams.making():
            pixels = self._joined([each.divided()[1] for each in chunks], (3 * int(sizes.prod(1).sum()) + _SPARE,))
            return self._viewed(pixels, _starts(sizes), sizes, crop_view(boxes, self.size), planar=False)

    def _decoded(self, chunks: Sequence[Images], sizes: Tensor, boxes: Tensor, streams: SideStreams) -> Tensor:
        """Return JPEG files as one batch, decoded on the device."""
        with streams.decoding():
            images = decode_files(chunks, self.device, self.records)
        streams.reads(images)
        assert isinstance(self._centre, ResizeCenterCrop)
        view = crop_view(boxes, self.size) if boxes.any() else centre_view(sizes, self._centre)
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
        return self._crops(images, every, there, size=self.size, extent=(rows, columns))

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
