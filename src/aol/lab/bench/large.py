"""Training on large JPEG images: the network alone, a plain loop, and the engine from files, packed and kept.

`make_images` makes images with the spectrum of natural ones (amplitude 1/f), of ImageNet's sizes, about 500 × 375
pixels and 110 kB each, and a packed copy. Times are those of whole training passes after the first, which includes the
start of workers, the choice of kernels and the capture of the step.
"""

from __future__ import annotations

import functools
import io
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torch.utils.flop_counter import FlopCounterMode

from aol._files import write_atomically
from aol.lab import nets
from aol.lab.bench.measure import Figures, Row
from aol.lab.data import StoredImages, open_data, pack
from aol.lab.data.images import IMAGENET
from aol.lab.data.workers import cores
from aol.lab.engine.capture import Captured
from aol.lab.engine.learner import Learner
from aol.lab.engine.offline import OfflineLoop
from aol.lab.engine.source import AnyPair, Decoding, sources
from aol.lab.engine.stored_source import FromStorage
from aol.lab.settings import Settings, WrongSettingsError

SIZE, PACKED, CLASSES = 224, 256, 100
_SIDES = ((375, 500), (375, 500), (333, 500), (500, 375), (400, 500))  # height and width, before a random factor
_CANVAS, _CANVASES, _QUALITY = 1024, 4, 90
_ABOUT = "set.json"  # of a folder with a whole set: what it is


# The images


def photos(folder: Path, count: int, *, workers: int, seed: int = 0) -> Path:
    """Write an image folder of `count` JPEGs, a twentieth of them for testing, in parallel processes; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    classes = min(CLASSES, max(1, count // 4))
    canvases = folder.parent / "canvases.npy"
    np.save(canvases, _painted(seed))
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:  # spawned ones would import torch first
        for split, images in (("train", count), ("val", max(classes, count // 20))):
            for label in range(classes):
                (folder / split / f"class{label:03}").mkdir(parents=True, exist_ok=True)
            list(pool.map(partial(_photo, canvases, folder / split, classes, seed), range(images), chunksize=64))
    return folder


def _painted(seed: int) -> npt.NDArray[np.uint8]:
    """Return canvases to cut photos from, [n, side, side, 3]: sums of waves of random phase with amplitude 1/f."""
    random = np.random.default_rng(seed)
    square = np.fft.fftfreq(_CANVAS)[:, None] ** 2 + np.fft.rfftfreq(_CANVAS)[None] ** 2
    amplitude = (1 / np.sqrt(np.maximum(square, _CANVAS**-2.0))).astype(np.float32)
    canvases = []
    for _ in range(_CANVASES):
        phases = np.exp(np.complex64(2j * np.pi) * random.random((4, *square.shape), dtype=np.float32))
        waves = [np.fft.irfft2(amplitude * phase, (_CANVAS, _CANVAS)) for phase in phases]
        grey, *colours = (wave / wave.std() for wave in waves)
        canvases.append(128 + 45 * np.stack([0.9 * grey + 0.4 * colour for colour in colours], axis=2))
    found: npt.NDArray[np.uint8] = np.clip(np.stack(canvases), 0, 255).astype(np.uint8)
    return found


_opened = functools.cache(partial(np.load, mmap_mode="r"))


def _photo(canvases: Path, folder: Path, classes: int, seed: int, number: int) -> None:
    from PIL import Image

    random = np.random.default_rng([seed, number, folder.name == "val"])
    factor = np.exp(random.normal(0, 0.1))
    height, width = (min(_CANVAS, round(side * factor)) for side in _SIDES[random.integers(len(_SIDES))])
    top, left = (int(random.integers(_CANVAS - side + 1)) for side in (height, width))
    canvas = _opened(canvases)[random.integers(_CANVASES), top : top + height, left : left + width]
    label = number % classes
    tint = np.random.default_rng([seed, label]).normal(0, 12, 3).astype(np.int16)  # something to learn
    buffer = io.BytesIO()
    Image.fromarray(np.clip(canvas + tint, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=_QUALITY)
    (folder / f"class{label:03}" / f"{number:07}.jpg").write_bytes(buffer.getvalue())


def make_images(place: Path, count: int, *, size: int, workers: int) -> list[Row]:
    """Make JPEGs in `place/photos` and a packed copy in `place/packed`; return how long that took.

    A set that is there and whole is used again. Needs no GPU.
    """
    about, wanted = place / _ABOUT, {"images": count, "size": size}
    if about.is_file():
        found = json.loads(about.read_text())
        if (has := {name: found[name] for name in wanted}) != wanted:
            raise WrongSettingsError(f"{place} has another set, {has}, not {wanted}: choose another folder.")
        return [Row(**row) for row in found["rows"]]
    start = time.perf_counter()
    photos(place / "photos", count, workers=workers)
    rows = [Row(f"{count:,} JPEGs made, {workers} processes", time.perf_counter() - start, "s", 1)]
    files = [path.stat().st_size for path in place.glob("photos/train/*/*.jpg")]
    rows.append(Row("a JPEG, mean", statistics.fmean(files) / 1e3, "kB", len(files)))
    start, side = time.perf_counter(), round(size * PACKED / SIZE)
    small = pack(place / "photos", place / "packed", size=side, workers=workers)
    rows.append(Row(f"packed to {side} pixels", time.perf_counter() - start, "s", 1))
    rows.append(Row("a packed image, mean", small.bytes / small.records / 1e3, "kB", small.records))
    write_atomically(about, json.dumps(wanted | {"rows": [vars(row) for row in rows]}).encode())  # it is whole
    return rows


# The network alone, and what bounds it


def floors(name: str, device: torch.device, *, size: int = SIZE) -> dict[str, float]:
    """Return the FLOPs of a training step, and the bytes that its layers read and write in bf16, for each image.

    Bytes are those of all activations and their gradients that enter or leave an operator: layers that are not fused.
    """
    net = nets.make(name, num_classes=CLASSES, image_size=size, seed=0).to(device)
    images = torch.zeros((_COUNTED, 3, size, size), device=device)
    with FlopCounterMode(display=False) as flops, _Activations() as moved:  # type: ignore[no-untyped-call]
        net(images).sum().backward()
    return {"FLOPs": flops.get_total_flops() / _COUNTED, "bytes": 2 * moved.numbers / _COUNTED}


_COUNTED = 3  # images of a batch that is counted: no layer has as many channels


class _Activations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the numbers of a batch that operators read and write; views move none."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            moved = [each for each in tree_leaves((args, kwargs, out)) if isinstance(each, Tensor) and each.dim() > 1]
            self.numbers += sum(each.numel() for each in moved if each.shape[0] == _COUNTED)
        return out


def _run(name: str, batch: int, **more: Any) -> Settings:
    given: dict[str, Any] = {"data": "photos", "net": name, "imbalance": None, "batch_size": batch, "epochs": 90}
    return Settings(**given | {"precision": "bf16", "eval_every": 1000, "signal": "none"} | more)


def random_tensors(name: str, batch: int, device: torch.device, *, size: int, steps: int) -> float:
    """Return images a second of the engine's training step on one batch of random tensors on the device."""
    learner = Learner([_run(name, batch)], num_classes=CLASSES, shape=(3, size, size), device=device)
    images = torch.randn((1, batch, 3, size, size), device=device)
    label = torch.randint(CLASSES, (1, batch), device=device)
    weight, rate = torch.ones((1, batch), device=device), torch.full((), 0.01, device=device)

    def step() -> None:
        learner.step(images, label, weight, rate)

    captured = Captured(step, device=device, touched=learner.tensors)
    for number in range(2 + steps):
        if number == 2:
            _wait(device)
            start = time.perf_counter()
        captured()
    _wait(device)
    return steps * batch / (time.perf_counter() - start)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# The plain loop


class _Plain(Dataset[tuple[Tensor, int]]):
    """What torchvision's `ImageFolder` gives, where torchvision is missing: float32, normalised, one at a time."""

    def __init__(self, records: StoredImages) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label, _ = self._records[index]
        return IMAGENET(image), label


def _plain_set(folder: Path, size: int) -> Dataset[tuple[Tensor, int]]:
    if find_spec("torchvision") is None:
        train = open_data(folder, size=size).train
        assert isinstance(train, StoredImages)
        return _Plain(train)
    datasets, transforms = (import_module(f"torchvision.{name}") for name in ("datasets", "transforms"))
    steps = [
        transforms.RandomResizedCrop(size),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
    found: Dataset[tuple[Tensor, int]] = datasets.ImageFolder(str(folder / "train"), transforms.Compose(steps))
    return found


def plain_loop(
    folder: Path, name: str, batch: int, device: torch.device, *, size: int, workers: int, batches: int
) -> float:
    """Return images a second of a plain PyTorch loop: a `DataLoader`, channels last, bf16 autocast, SGD.

    `batches` are timed, after all those that workers have ready when the first step is done: a steady state.
    """
    torch.backends.cudnn.benchmark, before = True, torch.backends.cudnn.benchmark
    net: nn.Module = nets.make(name, num_classes=CLASSES, image_size=size, seed=0)
    net = net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    data, ready = _plain_set(folder, size), 1 + _PREFETCHED * workers
    shown = RandomSampler(data, replacement=True, num_samples=(ready + batches) * batch)  # type: ignore[arg-type]
    loader = DataLoader(
        data,
        batch,
        sampler=shown,
        num_workers=workers,
        prefetch_factor=_PREFETCHED if workers else None,
        persistent_workers=workers > 0,
        pin_memory=device.type == "cuda",
    )
    for number, (images, label) in enumerate(loader):
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(net(images), label.to(device, non_blocking=True))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if number == ready - 1:
            _wait(device)
            start = time.perf_counter()
    _wait(device)
    torch.backends.cudnn.benchmark = before
    return batches * batch / (time.perf_counter() - start)


_PREFETCHED = 3  # batches that each worker of the plain loop may have ready


# The engine


@dataclass(frozen=True)
class Sizes:
    """Sizes of a measurement that takes a few minutes."""

    images: int
    batch: int
    size: int
    nets: tuple[str, ...]
    steps: int  # on random tensors
    batches: int  # of the plain loop

    @property
    def about(self) -> str:
        """The data, for the head of the table."""
        return f"{self.images:,} JPEGs, batches of {self.batch} × {self.size} pixels"


SIZES = {
    "cuda": Sizes(20_000, 256, SIZE, ("resnet34", "resnet50"), steps=40, batches=64),
    "cpu": Sizes(64, 16, 64, ("resnet34",), steps=2, batches=1),
}


class Large:
    """Times all ways to train on large images.

    What matters most is measured first: the network alone, images decoded while training, and the plain loop, for each
    network; then images that are kept on the device; then what ages cost. With `shares`, only JPEGs that are decoded
    while training, with each of these shares decoded by workers.

    Args:
        figures: what was measured.
        sizes: how many JPEGs to make, and of what size batches and images are.
        workers: processes that decode, of the plain loop and of the engine; by default one a core.
        epochs: to time, after one that is not timed.
        shares: of the JPEGs, that workers decode and not the GPU.
    """

    def __init__(
        self, figures: Figures, sizes: Sizes, *, workers: int | None, epochs: int, shares: Sequence[float] = ()
    ) -> None:
        self.device, self.add, self._sizes = figures.device, figures.add, sizes
        self.batch, self.size, self.epochs, self._shares = sizes.batch, sizes.size, epochs, shares
        self.workers = cores() if workers is None else workers
        self._speeds: dict[str, float] = {}

    def measure(self, names: Sequence[str], folder: Path | None = None) -> None:
        """Make a set, or use the one in a folder, and time some networks on it."""
        with tempfile.TemporaryDirectory() as own:
            place = Path(own) if folder is None else folder
            for row in make_images(place, self._sizes.images, size=self.size, workers=max(1, self.workers)):
                self.add(row.what, row.value, row.unit, row.n)
            photos, packed = place / "photos", place / "packed"
            pairs = {"JPEG": open_data(photos, size=self.size), "packed": open_data(packed, size=self.size)}
            streamed = {what: (pair, Decoding(keep=False)) for what, pair in pairs.items()}
            if self._shares:
                streamed = {by_workers(each): (pairs["JPEG"], Decoding(False, each)) for each in self._shares}
            for what, (pair, decoding) in streamed.items():
                self._decoding(what, pair, decoding)
            for name in names:
                self._streamed(name, photos, streamed)
            if self._shares:
                return
            if self.device.type == "cuda":
                for name in names:
                    self._kept(name, pairs)
            for name in names:
                self._add_costs(name, pairs["packed"])

    def _decoding(self, what: str, pair: AnyPair, decoding: Decoding) -> None:
        """Time a pass over the images without training."""
        given: dict[str, Any] = {"image_size": self.size, "normalisation": "standardised", "augment": True}
        source, _ = sources(pair, **given, workers=self.workers, device=self.device, decoding=decoding)
        assert isinstance(source, FromStorage)
        order = torch.randperm(source.labels.numel(), device=self.device)[None]
        mine = torch.arange(source.labels.numel(), device=self.device)
        for epoch in range(2):
            start = time.perf_counter()
            for _ in source.train(order, mine, batch=self.batch, epoch=epoch, seeds=[0]):
                pass
            _wait(self.device)
        self.add(f"{what}, decoded without training", order.numel() / (time.perf_counter() - start), "images/s")
        source.close()

    def _streamed(self, name: str, folder: Path, ways: Mapping[str, tuple[AnyPair, Decoding]]) -> None:
        """Time a network on random tensors, on images that are decoded while training, and in the plain loop."""
        for what, value in floors(name, self.device, size=self.size).items():
            self.add(f"{name}, {what} of a training step, an image", value / 1e9, "G")
        steps, batches = self._sizes.steps, self._sizes.batches
        alone = random_tensors(name, self.batch, self.device, size=self.size, steps=steps)
        self._speeds[f"{name}, alone"] = alone
        self.add(f"{name}, random tensors on the device", alone, "images/s", steps)
        for what, (pair, decoding) in ways.items():
            self._way(name, f"{what}, decoded while training", pair, decoding)
        plain = plain_loop(folder, name, self.batch, self.device, size=self.size, workers=self.workers, batches=batches)
        self._speeds[f"{name}, plain"] = plain
        kind = "torchvision" if find_spec("torchvision") else "Pillow"
        self.add(f"{name}, plain loop ({kind}, {self.workers} workers)", plain, "images/s", batches)
        for what in ways:
            self._add_ratio(name, f"{what}, decoded while training")

    def _kept(self, name: str, pairs: Mapping[str, AnyPair]) -> None:
        """Time a network on images that were decoded once."""
        for what, pair in pairs.items():
            self._way(name, f"{what}, kept on the device", pair)
            self._add_ratio(name, f"{what}, kept on the device")

    def _way(self, name: str, way: str, pair: AnyPair, decoding: Decoding | None = None) -> None:
        """Time a network on images that come in some way."""
        loop, began = self._trained(pair, _run(name, self.batch), decoding)
        what = f"{name}, {way}"
        took, waited = (self._median(loop, name) for name in ("train_seconds", "data_seconds"))
        speed = self._speeds[what] = loop.labels.numel() / took
        self.add(what, speed, "images/s", self.epochs)
        self.add(f"{what}, of random tensors", 100 * speed / self._speeds[f"{name}, alone"], "%", self.epochs)
        self.add(f"{what}, waiting for images", 100 * waited / took, "%", self.epochs)
        if isinstance(loop.train, FromStorage):
            for part, seconds in zip(("waits for files", "decodes"), loop.train.spent, strict=True):
                self.add(f"{what}, the thread that makes batches {part}", 100 * seconds / took, "%")
        self.add(f"{what}, before the first epoch", began, "s")

    def _add_ratio(self, name: str, way: str) -> None:
        ratio = self._speeds[f"{name}, {way}"] / self._speeds[f"{name}, plain"]
        self.add(f"{name}, {way}, over the plain loop", ratio, "×", self.epochs)

    def _add_costs(self, name: str, pair: AnyPair) -> None:
        """Add what ages cost over training without them."""
        base = self._median(self._trained(pair, _run(name, self.batch))[0], "seconds")
        signals: dict[str, dict[str, Any]] = {
            "train": {"signal": "train"},
            "eval": {"signal": "eval"},
            "eval, a tenth of the samples": {"signal": "eval", "clean_part": 0.1},
        }
        for what, more in signals.items():
            loop, _ = self._trained(pair, _run(name, self.batch, weighting="aol", **more))
            cost = 100 * (self._median(loop, "seconds") / base - 1)
            self.add(f"{name}, cost of ages over plain training, signal {what}", cost, "%", self.epochs)
            if "clean_part" in more:
                error = loop.history.last("train_accuracy_error").item()
                self.add(f"{name}, standard error of the training accuracy, signal {what}", 100 * error, "%")

    def _trained(self, pair: AnyPair, run: Settings, decoding: Decoding | None = None) -> tuple[OfflineLoop, float]:
        """Train for some epochs; return the loop, and the seconds before its first epoch."""
        start = time.perf_counter()
        loop = OfflineLoop([run], pair, device=self.device, workers=self.workers, decoding=decoding)
        began = time.perf_counter() - start
        for _ in range(1 + self.epochs):
            loop.run_epoch()
        loop.close()
        return loop, began

    def _median(self, loop: OfflineLoop, name: str) -> float:
        return float(loop.history.epoch(name)[1:, 0].median())


def by_workers(share: float) -> str:
    """Return what JPEGs are called of which workers decode a share.

    >>> by_workers(0.25)
    'JPEG, 25 % by workers'
    """
    return f"JPEG, {100 * share:g} % by workers"


def share_table(rows: Sequence[Row], shares: Sequence[float]) -> list[str]:
    """Return what each share that workers decode gives, as lines of a Markdown table."""
    found = {row.what: f"{row.value:,.4g} {row.unit}" for row in rows}
    names = dict.fromkeys(what.partition(", JPEG, ")[0] for what in found if ", JPEG, " in what)
    figures = ("", ", of random tensors", ", over the plain loop", ", waiting for images")
    lines = ["| network | by workers | speed | of random tensors | of the plain loop | waiting for images |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for name, share in product(names, shares):
        what = f"{name}, {by_workers(share)}, decoded while training"
        cells = [name, f"{100 * share:g} %", *(found[what + figure] for figure in figures)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
