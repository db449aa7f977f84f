"""`aol bench`: speed and memory of the engine on this machine."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aol.cli.execution import DEVICE
from aol.cli.output import check_place, tell
from aol.cli.parser import command, count, counts, positive, shares, switch, value
from aol.lab.settings import WrongSettingsError

if TYPE_CHECKING:
    import torch

    from aol.lab.bench.measure import Figures


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
def _bench(args: argparse.Namespace) -> None:
    from aol.lab.engine.device import usable_device

    of_large = {
        "--images": args.images,
        "--folder": args.folder,
        "--make": args.make,
        "--cpu-share": args.cpu_share,
    }
    if not args.large and (stray := [flag for flag, given in of_large.items() if given]):
        raise WrongSettingsError(f"{stray[0]} needs --large.")
    if args.out:
        try:
            Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WrongSettingsError(f"--out: {Path(args.out).parent}: {error.strerror}.") from error
    check_place(args.out, "--out")
    if args.make:
        _make(args)
        return
    device = usable_device(args.device)
    figures, more = _large(args, device) if args.large else _random(args, device)
    tell(args, figures.as_dict(), [*figures.table(), *more])


def _random(args: argparse.Namespace, device: torch.device) -> tuple[Figures, list[str]]:
    """Measure on random images of CIFAR-10's size."""
    from aol.lab.bench import measure, networks

    runs: tuple[int, ...]
    runs, scale, epochs = ((1, 16, 64), 1.0, 3) if device.type == "cuda" else ((1, 2), 0.01, 1)
    runs, scale = runs[1:2] if args.nets else runs, args.scale or scale
    imbalance = networks.IMBALANCE if args.nets else measure.IMBALANCE
    figures = measure.Figures(device, measure.about(scale, imbalance), Path(args.out) if args.out else None)
    workers = 2 if args.workers is None else args.workers
    given: dict[str, Any] = {
        "runs": args.runs or runs,
        "scale": scale,
        "epochs": args.epochs or epochs,
        "workers": workers,
    }
    if args.nets:
        networks.measure(figures, names=args.nets.split(","), **given)
    else:
        measure.measure(figures, **given)
    return figures, []


def _make(args: argparse.Namespace) -> None:
    from aol.lab.bench import large
    from aol.lab.data.workers import cores

    if not args.folder:
        raise WrongSettingsError("--make needs --folder DIR.")
    sizes = large.SIZES["cuda"]
    count, workers = args.images or sizes.images, args.workers or cores()
    rows = large.make_images(Path(args.folder), count, size=sizes.size, workers=workers)
    lines = [f"{row.what}: {row.value:,.4g} {row.unit}" for row in rows]
    tell(args, {"folder": args.folder, "rows": [vars(row) for row in rows]}, lines)


def _large(args: argparse.Namespace, device: torch.device) -> tuple[Figures, list[str]]:
    """Measure on large JPEGs."""
    from aol.lab.bench import large, measure
    from aol.lab.data import gpu_decode

    shares = args.cpu_share or ()
    if shares and not gpu_decode.can_decode(device):
        raise WrongSettingsError("--cpu-share needs a GPU and torchvision with nvJPEG, which decodes the other images.")
    sizes = large.SIZES[device.type]
    sizes = replace(sizes, images=args.images or sizes.images)
    figures = measure.Figures(device, sizes.about, Path(args.out) if args.out else None)
    bench = large.Large(figures, sizes, workers=args.workers, epochs=args.epochs or 1, shares=shares)
    names = args.nets.split(",") if args.nets else sizes.nets
    bench.measure(names, Path(args.folder) if args.folder else None)
    return figures, ["", *large.share_table(figures.rows, shares)] if shares else []
