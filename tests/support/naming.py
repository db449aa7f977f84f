"""Finds an image by its name in the set it comes from, with nothing of the library: an oracle for names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.tiny_sets import encoded, image_folder, lmdb_set, parquet_set, tiny_lmdb

Find = Callable[[Path, str], tuple[bytes, str | int]]


def in_folder(root: Path, name: str) -> tuple[bytes, str]:
    """The bytes and the class of a file."""
    return (root / name).read_bytes(), Path(name).parts[-2]


def in_rows(root: Path, name: str) -> tuple[bytes, int]:
    """The bytes and the label of `FILE#ROW`."""
    import pyarrow.parquet as pq

    file, row = name.split("#")
    found = pq.read_table(root / file).to_pylist()[int(row)]
    return found["image"]["bytes"], found["label"]


def in_column(root: Path, name: str) -> tuple[bytes, int]:
    """The bytes and the label of the one row, in all files, whose path is this."""
    import pyarrow.parquet as pq

    rows = [row for file in (root / "data").iterdir() for row in pq.read_table(file).to_pylist()]
    (found,) = [row for row in rows if row["image"]["path"] == name]
    return found["image"]["bytes"], found["label"]


def in_lmdb(root: Path, name: str) -> tuple[bytes, int]:
    """The bytes and the label of `ENVIRONMENT#KEY`, each environment opened for the one key alone."""
    import lmdb

    environment, key = name.split("#")
    # A copy: one process may open an environment but once, and the library has.
    copy = root.parent / f"{root.name}-copy-{environment}"
    if not copy.exists():
        copy.mkdir()
        (copy / "data.mdb").write_bytes((root / environment / "data.mdb").read_bytes())
    with lmdb.open(str(copy), readonly=True, lock=False) as env, env.begin() as view:
        return bytes(view.get(key.encode())), int(view.get(key.replace("image", "label").encode()))


def parquet_of_two(root: Path) -> Path:
    """Rows in two files a split, whose paths count anew in each: two rows share every one."""
    split = {"train": [shuffled(0, 6), shuffled(6, 5)], "validation": [shuffled(50, 3), shuffled(53, 3)]}
    return parquet_set(root, split, None)


def parquet_with_paths(root: Path) -> Path:
    """Rows in two files whose paths all differ, and do not sort as the rows do."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parquet_set(root, {"train": [shuffled(0, 7), shuffled(7, 6)], "test": [shuffled(50, 4)]}, None)
    for file in sorted((root / "data").iterdir()):
        table = pq.read_table(file)
        rows = table.to_pylist()
        for place, row in enumerate(rows):
            row["image"]["path"] = f"{'zyx'[row['label']]}/{(place * 5) % 11}-{file.stem[-14:]}.jpg"
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), file, row_group_size=2)
    return root


def shuffled(first: int, count: int) -> list[tuple[bytes, int]]:
    """Rows whose labels are in no order."""
    return [(encoded(first + i), (i * 2 + i // 3) % 3) for i in range(count)]


def lmdb_from_nought(root: Path) -> Path:
    return lmdb_set(root, {"train": shuffled(0, 9), "val": shuffled(50, 4)}, ["a", "b", "c"], first=0)


LAYOUTS: dict[str, tuple[Callable[[Path], Path], Find]] = {
    "folder": (image_folder, in_folder),
    "parquet, rows": (parquet_of_two, in_rows),
    "parquet, paths": (parquet_with_paths, in_column),
    "lmdb": (tiny_lmdb, in_lmdb),
    "lmdb from 0": (lmdb_from_nought, in_lmdb),
}
