"""Makes tiny data sets in the layouts that the library reads."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aol.lab.data import named


def pixels(seed: int, height: int = 40, width: int = 48) -> np.ndarray:
    """A smooth, distinct image: JPEG keeps it nearly as it is."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


def encoded(seed: int, kind: str = "JPEG", height: int = 40, width: int = 48) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels(seed, height, width)).save(buffer, kind)
    return buffer.getvalue()


def image_folder(
    root: Path,
    *,
    classes: tuple[str, ...] = ("n01440764", "n01443537", "n01484850"),
    per_class: dict[str, int] | None = None,
    suffix: str = ".JPEG",
    side: int = 40,
) -> Path:
    """ImageNet's layout: root/train/CLASS/NAME.JPEG and root/val/CLASS/NAME.JPEG."""
    kind = "PNG" if suffix == ".png" else "JPEG"
    for s, (split, count) in enumerate((per_class or {"train": 4, "val": 2}).items()):
        for c, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                content = encoded(1000 * s + 100 * c + i, kind, side, side + 8 * (i % 3))
                (folder / f"{name}_{i}{suffix}").write_bytes(content)
    return root


def stated_as_official(monkeypatch: pytest.MonkeyPatch, name: str, folder: Path) -> Path:
    """Let the checksums of a set be those of made-up files; return their folder."""
    sums = {}
    for path in sorted(folder.iterdir()):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        sums[path.name.removesuffix(".gz")] = hashlib.sha256(content).hexdigest()
    monkeypatch.setitem(named.OFFICIAL, name, replace(named.OFFICIAL[name], files=sums))  # type: ignore[arg-type]
    return folder


def cifar10_files(folder: Path, per_batch: int = 4) -> Path:
    """The layout of cifar-10-batches-py, with few images."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    names = [f"class{c}".encode() for c in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=2))
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        batch = {
            b"data": rng.integers(0, 256, (per_batch, 3072), dtype=np.uint8),
            b"labels": [int(rng.integers(10)) for _ in range(per_batch)],
            b"filenames": [b"x.png"] * per_batch,
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def cifar100_files(folder: Path, count: int = 6) -> Path:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    names = [f"fine{c}".encode() for c in range(100)]
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": names}, protocol=2))
    for name in ("train", "test"):
        batch = {
            b"data": rng.integers(0, 256, (count, 3072), dtype=np.uint8),
            b"fine_labels": [int(n) for n in rng.integers(0, 100, count)],
            b"coarse_labels": [0] * count,
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def idx(values: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in values.shape)
    return header + values.astype(np.uint8).tobytes()


def fashion_files(folder: Path, *, count: int = 5) -> Path:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for prefix in ("train", "t10k"):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = np.arange(count) % 10
        for name, content in (
            (f"{prefix}-images-idx3-ubyte", idx(images)),
            (f"{prefix}-labels-idx1-ubyte", idx(labels)),
        ):
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    return folder
