"""Cost of sample names in a packed set: bytes on disk, and time to open the set and to read names.

Paths are made up in ImageNet's form and number; images are of one byte each, as nothing here decodes them.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
from measuring import Record, in_words, machine, options, seconds, summary, table, write

from aol.lab.data.packed import (
    FORMAT,
    MANIFEST,
    NAMES,
    ROW,
    VERSION,
    Manifest,
    PackedRecords,
    Shard,
    open_packed,
    packed_names,
)

CLASSES, SHARD = 1000, 8192


def paths(samples: int) -> list[str]:
    """Return paths as ImageNet's training set has them, in their order: numbers inside a class have gaps."""
    random = np.random.default_rng(0)
    classes = np.sort(random.choice(np.arange(1_440_764, 15_075_141), CLASSES, replace=False))
    found: list[str] = []
    for place, members in zip(classes.tolist(), np.array_split(np.arange(samples), CLASSES), strict=True):
        numbers = random.choice(40_000, len(members), replace=False)
        found += sorted(f"train/n{place:08}/n{place:08}_{number}.JPEG" for number in numbers)
    return found


def write_set(root: Path, names: list[str], *, named: bool) -> int:
    """Write a packed set whose splits both hold these records; return the bytes of its tables of names."""
    shards: list[Shard] = []
    size = 0
    for start in range(0, len(names), SHARD):
        file, part = f"train-{start // SHARD:05}", names[start : start + SHARD]
        rows = np.zeros(len(part), ROW)
        rows["offset"], rows["length"] = np.arange(len(part)), 1
        np.save(root / f"{file}.npy", rows)
        (root / f"{file}.bin").write_bytes(bytes(len(part)))
        index = zlib.crc32((root / f"{file}.npy").read_bytes())
        content = packed_names(part) if named else b""
        (root / f"{file}{NAMES}").write_bytes(content)
        size += len(content)
        checksums = {"index_crc32": index, "names_crc32": zlib.crc32(content)}
        shards.append(Shard(file=file, records=len(part), bytes=len(part), fingerprint="", **checksums))
    splits = {"train": shards, "test": shards[:1]}
    manifest = Manifest(format=FORMAT, version=VERSION, classes=["all"], size=None, quality=None, splits=splits)
    (root / MANIFEST).write_text(json.dumps(manifest))
    return size


def measure(samples: int, repeats: int) -> dict[str, object]:
    """Measure a set with names, and one without."""
    names = paths(samples)
    found: dict[str, object] = {"samples": samples, "plain_bytes": sum(len(name) for name in names)}
    for named in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            found["bytes"] = write_set(root, names, named=named)
            found["open" if named else "open_without"] = summary(seconds(lambda: open_packed(root), repeats))  # noqa: B023
            if named:
                records = open_packed(root)["train"]
                assert isinstance(records, PackedRecords)
                assert records.names(range(samples)) == names
                found["one"] = summary(seconds(lambda: records.names([samples // 2]), repeats))  # noqa: B023
                found["all"] = summary(seconds(lambda: records.names(range(samples)), repeats))  # noqa: B023
    found["packing"] = summary(
        seconds(lambda: [packed_names(names[s : s + SHARD]) for s in range(0, samples, SHARD)], 1)
    )
    return found


def main(words: list[str] | None = None) -> int:
    parser = options("Measure the names of a packed set.", "sample_names.json")
    parser.add_argument("--samples", type=int, default=1_281_167, help="how many; at least one a class")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of each case; the median counts")
    given = parser.parse_args(words)
    record: Record = {"machine": machine(), "repeats": given.repeats, **measure(given.samples, given.repeats)}
    print(text(record))
    write(record, given.out)
    return 0


def text(record: Record) -> str:
    """Return the table of a record."""

    def took(name: str) -> str:
        return f"{record[name]['median_s'] * 1e3:,.0f} ms"

    row = {
        "samples": f"{record['samples']:,}",
        "names as text": f"{record['plain_bytes'] / 1e6:.1f} MB",
        "on disk": f"{record['bytes'] / 1e6:.1f} MB, {record['bytes'] / record['samples']:.1f} bytes each",
        "made in": took("packing"),
        "opening without names": took("open_without"),
        "opening with names": took("open"),
        "one name": took("one"),
        "all names": took("all"),
    }
    return in_words(record["machine"], record["repeats"]) + "\n\n" + table([row])


if __name__ == "__main__":
    sys.exit(main())
