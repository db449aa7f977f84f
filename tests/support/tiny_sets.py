"""Makes tiny data sets of every layout the library reads."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
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


def parquet_set(
    root: Path, splits: dict[str, list[list[tuple[bytes, int]]]], names: list[str] | None, group: int = 3
) -> Path:
    """Hugging Face's layout: root/data/SPLIT-00000-of-00002.parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (root / "data").mkdir(parents=True)
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image), ("label", pa.int64())])
    if names is not None:
        features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    for split, shards in splits.items():
        for number, rows in enumerate(shards):
            table = pa.Table.from_pylist(
                [{"image": {"bytes": b, "path": f"{i}.jpg"}, "label": n} for i, (b, n) in enumerate(rows)],
                schema=schema,
            )
            path = root / "data" / f"{split}-{number:05d}-of-{len(shards):05d}.parquet"
            pq.write_table(table, path, row_group_size=group)
    return root


def tiny_parquet(root: Path) -> Path:
    train = [(encoded(i), i % 3) for i in range(10)]
    held = [(encoded(100 + i), i % 3) for i in range(4)]
    return parquet_set(root, {"train": [train[:6], train[6:]], "validation": [held]}, ["tench", "goldfish", "shark"])


def lmdb_set(root: Path, splits: dict[str, list[tuple[bytes, int]]], names: list[str] | None, first: int = 1) -> Path:
    import lmdb

    root.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        env = lmdb.open(str(root / f"{split}.lmdb"), map_size=1 << 24)
        with env.begin(write=True) as view:
            view.put(b"num-samples", str(len(rows)).encode())
            if names is not None:
                view.put(b"classes", json.dumps(names).encode())
            for i, (content, label) in enumerate(rows, first):
                view.put(b"image-%09d" % i, content)
                view.put(b"label-%09d" % i, str(label).encode())
        env.close()
    return root


def tiny_lmdb(root: Path) -> Path:
    train = [(encoded(i), i % 3) for i in range(8)]
    held = [(encoded(100 + i), i % 3) for i in range(4)]
    return lmdb_set(root, {"train": train, "val": held}, ["a", "b", "c"])


def stated_as_official(monkeypatch: pytest.MonkeyPatch, name: str, folder: Path) -> Path:
    """Let the checksums of a set be those of made-up files; return their folder."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    members = tuple(
        named.Member(path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files
    )
    monkeypatch.setitem(named.OFFICIAL, name, replace(named.OFFICIAL[name], members=members))  # type: ignore[arg-type]
    return folder


def cifar10_files(folder: Path, per_batch: int = 4, label: int | None = None) -> Path:
    """The layout of cifar-10-batches-py, with few images."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    names = [f"class{c}".encode() for c in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=2))
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        batch = {
            b"data": rng.integers(0, 256, (per_batch, 3072), dtype=np.uint8),
            b"labels": [int(rng.integers(10)) if label is None else label for _ in range(per_batch)],
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


def fashion_files(folder: Path, *, zipped: bool = True, count: int = 5) -> Path:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for prefix in ("train", "t10k"):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = np.arange(count) % 10
        for name, content in (
            (f"{prefix}-images-idx3-ubyte", idx(images)),
            (f"{prefix}-labels-idx1-ubyte", idx(labels)),
        ):
            path = folder / (f"{name}.gz" if zipped else name)
            path.write_bytes(gzip.compress(content) if zipped else content)
    return folder
