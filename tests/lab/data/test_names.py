from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from aol.cli import main
from aol.lab import data
from aol.lab.data import DataError, StoredImages
from tests.support.naming import LAYOUTS, in_folder
from tests.support.tiny_sets import encoded, image_folder, parquet_set, tiny_lmdb, tiny_parquet


def _split(root: Path, split: str = "train") -> StoredImages:
    found = getattr(data.open_data(root), split)
    assert isinstance(found, StoredImages)
    return found


def _every_name(split: StoredImages) -> list[str] | None:
    return split.names(torch.arange(len(split)))


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_name_leads_to_the_bytes_and_the_label_of_its_sample(tmp_path: Path, layout: str, split: str) -> None:
    make, find = LAYOUTS[layout]
    root = make(tmp_path / "source")
    data.pack(root, tmp_path / "packed", shard_records=4, workers=2)
    data.pack(tmp_path / "packed", tmp_path / "again", shard_records=3, workers=2)
    random = np.random.default_rng(0)
    for place in (root, tmp_path / "packed", tmp_path / "again"):
        whole = _split(place, split)
        index = torch.from_numpy(random.integers(0, len(whole), 20))
        names = whole.names(index)
        assert names is not None
        for at, name in zip(index.tolist(), names, strict=True):
            content, label = find(root, name)
            assert content == whole.records.encoded(at)
            assert label in (int(whole.labels[at]), whole.classes[int(whole.labels[at])])
        every = _every_name(whole)
        assert every is not None
        assert len(set(every)) == len(whole)


def test_names_are_paths_rows_and_keys_inside_the_set(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set")
    assert _split(root).names(torch.tensor([11, 0])) == [
        "train/n01484850/n01484850_3.JPEG", "train/n01440764/n01440764_0.JPEG"
    ]  # fmt: skip
    assert _split(root, "test").names(torch.tensor([0])) == ["val/n01440764/n01440764_0.JPEG"]
    assert _split(tiny_parquet(tmp_path / "parquet")).names(torch.tensor([7])) == [
        "data/train-00001-of-00002.parquet#1"
    ]
    assert _split(tiny_lmdb(tmp_path / "lmdb")).names(torch.tensor([0])) == ["train.lmdb#image-000000001"]
    assert _split(root).names(torch.tensor([], dtype=torch.int64)) == []
    with pytest.raises(IndexError, match="index must lie in 0 to 9, got 10 to 10"):
        _split(tmp_path / "parquet").names(torch.tensor([10]))


def test_class_folders_alone_are_split_and_packed_by_their_own_names(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set") / "train"
    data.pack(root, tmp_path / "packed", shard_records=2)
    for place in (root, tmp_path / "packed"):
        every = [*(_every_name(_split(place)) or []), *(_every_name(_split(place, "test")) or [])]
        assert sorted(every) == sorted(str(path.relative_to(root)) for path in root.rglob("*.JPEG"))
        for split in (_split(place), _split(place, "test")):
            for at, name in enumerate(_every_name(split) or []):
                assert in_folder(root, name)[0] == split.records.encoded(at)


def test_images_in_memory_keep_their_names_through_every_choice(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for split, count in (("train", 5), ("val", 2)):
        for label in "ab":
            (root / split / label).mkdir(parents=True)
            for i in range(count):
                seed = (split == "val") * 100 + (label == "b") * 10 + i
                (root / split / label / f"{9 - i}.png").write_bytes(encoded(seed, "PNG", 16, 16))
    train = data.load(root).train
    some = train.subset(torch.tensor([8, 1, 3])).subset(torch.tensor([2, 0]))
    for at, name in enumerate(some.names(torch.arange(2)) or []):
        from PIL import Image

        with Image.open(root / name) as image:
            assert np.array_equal(some.images[at].permute(1, 2, 0).numpy(), np.asarray(image))
    assert some.names(torch.tensor([1])) == ["train/b/8.png"]
    assert data.load("digits").train.names(torch.tensor([0])) is None
    with pytest.raises(DataError, match="toy: 1 names for 2 images"):
        data.ImageSet(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]), ("a", "b"), "toy", ["one"])


# Parquet columns


def _with_columns(root: Path, columns: dict[str, Callable[[int], object]], *, last: bool = True) -> Path:
    """Two training files with more columns, of which the second may lack them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [(encoded(i), i % 2) for i in range(7)]
    parquet_set(root, {"train": [rows[:4], rows[4:]], "test": [rows[:2]]}, None)
    first = 0
    for file in sorted((root / "data").glob("train*")):
        table = pq.read_table(file)
        for name, value in columns.items() if last or first == 0 else ():
            values = pa.array([value(first + row) for row in range(len(table))])
            table = table.append_column(name, values)
        first += len(table)
        pq.write_table(table, file, row_group_size=2)
    return root


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"filename": lambda i: f"cat/{i}.jpg"}, "cat/5.jpg"),
        ({"id": lambda i: 1000 - i}, "id=995"),
        ({"image_id": lambda i: f"00{i}"}, "image_id=005"),
        ({"id": lambda i: i, "file_name": lambda i: f"{i}.jpg"}, "5.jpg"),  # a path says more than a number
        ({"path": lambda i: f"{i % 4}.jpg", "id": lambda i: i}, "id=5"),  # a path that two rows share does not
        ({"path": lambda i: None if i == 2 else f"{i}.jpg"}, "data/train-00001-of-00002.parquet#1"),
        ({"path": lambda i: " " if i == 2 else f"{i}.jpg"}, "data/train-00001-of-00002.parquet#1"),
        ({"id": lambda i: i / 2}, "data/train-00001-of-00002.parquet#1"),
        ({"path": lambda i: {"dir": str(i)}}, "data/train-00001-of-00002.parquet#1"),
        ({"path": lambda i: f"\udcff{i}".encode("utf-8", "surrogateescape")}, "data/train-00001-of-00002.parquet#1"),
    ],
)
def test_rows_go_by_the_first_column_that_names_each_differently(
    columns: dict[str, Callable[[int], object]], name: str, tmp_path: Path
) -> None:
    split = _split(_with_columns(tmp_path / "set", columns))
    assert split.names(torch.tensor([5])) == [name]
    every = _every_name(split)
    assert every is not None
    assert every[5] == name
    assert len(set(every)) == 7
    assert split.names(torch.tensor([6, 0, 6])) == [every[6], every[0], every[6]]


def test_a_column_of_categories_names_rows_and_one_that_some_files_lack_does_not(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = _with_columns(tmp_path / "set", {"filename": lambda i: f"{i}.jpg"})
    for file in (root / "data").glob("train*"):
        table = pq.read_table(file)
        place = table.schema.get_field_index("filename")
        coded = table.column("filename").cast(pa.string()).dictionary_encode()
        pq.write_table(table.set_column(place, "filename", coded), file)
    assert _split(root).names(torch.tensor([5])) == ["5.jpg"]
    lacking = _with_columns(tmp_path / "other", {"filename": lambda i: f"{i}.jpg"}, last=False)
    assert _split(lacking).names(torch.tensor([5])) == ["data/train-00001-of-00002.parquet#1"]


def test_a_damaged_column_of_names_is_one_sentence(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    root = _with_columns(tmp_path / "set", {"filename": lambda i: f"{i}.jpg"})
    split = _split(root)
    file = root / "data" / "train-00000-of-00002.parquet"
    column = pq.ParquetFile(file).metadata.row_group(0).column(3)
    assert column.path_in_schema == "filename"
    content = bytearray(file.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"train-00000-of-00002.parquet: column 'filename' cannot be read \(.*\)$"):
        split.names(torch.tensor([0]))


# Packed sets


def test_the_names_of_shards_that_are_not_needed_any_more_go_with_them(tmp_path: Path) -> None:
    root, packed = image_folder(tmp_path / "set"), tmp_path / "packed"
    data.pack(root, packed, shard_records=4)
    assert len(list(packed.glob("*.names"))) == 5
    data.pack(root, packed)
    assert sorted(path.name for path in packed.glob("*.names")) == ["test-00000.names", "train-00000.names"]


def test_a_packing_without_names_is_not_known_and_packed_again(tmp_path: Path) -> None:
    root, packed = image_folder(tmp_path / "set"), tmp_path / "packed"
    data.pack(root, packed)
    for path in packed.glob("*.json"):
        kept = json.loads(path.read_text())
        for shard in [s for shards in kept.get("splits", {}).values() for s in shards] or [kept]:
            del shard["names_crc32"]
        path.write_text(json.dumps(kept))
    with pytest.raises(DataError, match="not the manifest of a packed data set"):
        data.open_data(packed)
    assert data.pack(root, packed).written == 2


def test_a_folder_that_was_renamed_gives_its_packing_new_names(tmp_path: Path) -> None:
    root, packed = image_folder(tmp_path / "set"), tmp_path / "packed"
    data.pack(root, packed)
    (root / "val").rename(root / "test")
    assert data.pack(root, packed).kept == 2
    assert _split(packed, "test").names(torch.tensor([0])) == ["test/n01440764/n01440764_0.JPEG"]
    assert data.check(packed).ok


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _exchange(path: Path) -> None:
    other = path.with_name("train-00001.names")
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def _accepted(content: bytes) -> Callable[[Path], None]:
    """Put something else in the table's place, with a checksum that fits."""

    def put(path: Path) -> None:
        path.write_bytes(content)
        manifest = path.with_name("manifest.json")
        kept = json.loads(manifest.read_text())
        kept["splits"]["train"][0]["names_crc32"] = zlib.crc32(content)
        manifest.write_text(json.dumps(kept))

    return put


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (Path.unlink, "no such file; pack the set again for the names of its samples"),
        (_flip, "damaged, its checksum is not the manifest's; pack the set again"),
        (_exchange, "damaged, its checksum is not the manifest's; pack the set again"),
        (_accepted(b""), "not a table of names; pack the set again"),
        (_accepted(zlib.compress(b"{")), "not a table of names; pack the set again"),
        (_accepted(zlib.compress(b'"abcd"')), "not the names of 4 records; pack the set again"),
        (_accepted(zlib.compress(b'["a", "b", "c"]')), "not the names of 4 records; pack the set again"),
        (_accepted(zlib.compress(b'["a", "b", "c", 4]')), "not the names of 4 records; pack the set again"),
    ],
)
def test_a_table_that_is_wrong_is_one_sentence_and_packing_again_repairs_it(
    damage: Callable[[Path], None], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, packed = image_folder(tmp_path / "set"), tmp_path / "packed"
    data.pack(root, packed, shard_records=4)
    names = _every_name(_split(packed))
    damage(packed / "train-00000.names")
    split = _split(packed)
    assert len(split[0]) == 3  # images need no names
    with pytest.raises(DataError) as caught:
        split.names(torch.tensor([0]))
    assert str(caught.value) == f"{packed / 'train-00000.names'}: {said}"
    for words in (["data", "check", str(packed)], ["data", "check", str(packed), "--decode"]):
        assert main(words) == 1
        heard = capsys.readouterr()
        assert f"train-00000.names: {said}" in heard.out
        assert heard.err.count("\n") == 1
    assert data.pack(root, packed, shard_records=4).written == 0
    assert _every_name(_split(packed)) == names
    assert data.check(packed).ok
