"""`aol bench`: speed and memory of the engine on this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aol.cli.execution import DEVICE
from aol.cli.output import check_place, tell
from aol.cli.parser import command, count, counts, positive, shares, switch, value
from aol.engine.settings import WrongSettingsError

if TYPE_CHECKING:
    import torch


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@command(
    "bench",
    "Measure speed and memory of training on this machine.",
    (
        "aol bench",
        "aol bench --runs 1,16 --out bench.json",
        "aol bench --nets vit,timm:resnet18 --runs 16",
        "aol bench --large --nets resnet50",
        "aol bench --large --folder photos --cpu-share 0,0.25,0.5",
        "aol bench --large --folder photos --make --images 20000",
    ),
    value("--runs", "VALUES", "numbers of runs trained together (default: 1,16,64; CPU: 1,2)", type=counts),
    value("--scale", "S", "size of the data, 1 is CIFAR-10 (default: 1; CPU: 0.01)", type=positive),
    value("--epochs", "N", "epochs to time (default: 3; CPU: 1)", type=count(1)),
    value("--workers", "N", "worker processes of the reference loop (default: 2; --large: cores)", type=count(0)),
    switch("--large", "measure training on large JPEG images instead, which are made for it"),
    value("--images", "N", "with --large: number of images (default: 20000; CPU: 64)", type=count(1)),
    value("--folder", "DIR", "with --large: make the images here, or use those of an earlier call"),
    switch("--make", "with --large --folder: only make the images; needs no GPU"),
    value("--cpu-share", "VALUES", "with --large: only compare shares of the JPEGs that the CPU decodes", type=shares),
    value("--nets", "NAMES", "measure these networks, one run and several as one; with --large: on large images"),
    DEVICE,
    value("--out", "FILE", "also write the figures to this file, as JSON"),
)
def _bench(words: argparse.Namespace) -> None:
    from aol.bench import measure, networks
    from aol.engine.device import usable_device

    of_large = {
        "--images": words.images,
        "--folder": words.folder,
        "--make": words.make,
        "--cpu-share": words.cpu_share,
    }
    if not words.large and (stray := [flag for flag, given in of_large.items() if given]):
        raise WrongSettingsError(f"{stray[0]} needs --large.")
    if words.out:
        try:
            Path(words.out).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WrongSettingsError(f"--out: {Path(words.out).parent}: {error.strerror}.") from error
    check_place(words.out, "--out")
    if words.make:
        _make(words)
        return
    device = usable_device(words.device)
    if words.large:
        _large(words, device)
        return
    usual = measure.usual(device)
    scale = usual.scale if words.scale is None else words.scale
    given: dict[str, Any] = {
        "scale": scale,
        "epochs": words.epochs or usual.epochs,
        "workers": 2 if words.workers is None else words.workers,
        "say": _say,
    }
    about: float | str = scale
    if words.nets:
        about = f"{measure.size_text(scale)}, imbalance {networks.IMBALANCE:g}"
        rows = networks.measure(device, names=words.nets.split(","), runs=words.runs or usual.runs[1:2], **given)
    else:
        rows = measure.measure(device, runs=words.runs or usual.runs, **given)
    if words.out:
        measure.write(rows, device, about, Path(words.out))
    result = {"scale": scale, "rows": [vars(row) for row in rows]}
    tell(words, result, measure.table(rows, device, about).splitlines())


def _make(words: argparse.Namespace) -> None:
    from aol.bench import large
    from aol.data.workers import cores

    if not words.folder:
        raise WrongSettingsError("--make needs --folder DIR.")
    usual = large.usual("cuda")
    count, workers = words.images or usual.images, words.workers or cores()
    rows = large.made(Path(words.folder), count, size=usual.size, workers=workers)
    lines = [f"{row.what}: {row.value:,.4g} {row.unit}" for row in rows]
    tell(words, {"folder": words.folder, "rows": [vars(row) for row in rows]}, lines)


def _large(words: argparse.Namespace, device: torch.device) -> None:
    from aol.bench import large, measure
    from aol.data import gpu_decode

    if words.cpu_share and not gpu_decode.can_decode(device):
        raise WrongSettingsError("--cpu-share needs a GPU and torchvision with nvJPEG, which decodes the other images.")
    usual = large.usual(device.type)
    images = words.images or usual.images
    about = f"{images:,} JPEGs, batches of {usual.batch} × {usual.size} pixels"

    def write(rows: Sequence[measure.Row]) -> None:
        if words.out:
            measure.write(rows, device, about, Path(words.out))

    bench = large.Large(
        device,
        images=images,
        batch=usual.batch,
        size=usual.size,
        workers=words.workers,
        epochs=words.epochs or 1,
        shares=words.cpu_share or (),
        say=_say,
        write=write,
    )
    names = tuple(words.nets.split(",")) if words.nets else usual.nets
    rows = bench.measure(names, Path(words.folder) if words.folder else None)
    lines = measure.table(rows, device, about).splitlines()
    if words.cpu_share:
        lines += ["", *large.share_table(rows, words.cpu_share)]
    tell(words, {"data": about, "rows": [vars(row) for row in rows]}, lines)
