"""Archives and folders of strangers: what is a record is taken, what is not is named, nothing else happens."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aol.cli import main
from aol.lab.settings import Settings
from aol.lab.study.gather import Gathered, gather
from aol.records.record import LARGEST, Run, encode
from aol.records.store import Store
from tests.support.made_up import record, write

RUNS = [record(Settings(epochs=3, seed=seed), 0.5) for seed in range(4)]
PACKED = {"tar": bytes, "tgz": gzip.compress, "tbz": bz2.compress, "txz": lzma.compress}


def tar(*members: tarfile.TarInfo | Run, name: str = "{}/run.json") -> bytes:
    """An archive of records, and of members without content."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for each in members:
            if isinstance(each, Run):
                content = encode(each)
                info = tarfile.TarInfo(name.format(each.id))
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                archive.addfile(each)
    return made.getvalue()


def member(name: str, kind: bytes, link: str = "", **more: object) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    for key, value in more.items():
        setattr(found, key, value)
    return found


def taken(tmp_path: Path, content: bytes, name: str = "some.tar") -> tuple[Gathered, list[str]]:
    """Gather from an archive; return what is said, the archive left out, and check that all that came is a record."""
    source, out = tmp_path / name, tmp_path / "out"
    source.write_bytes(content)
    found = gather([source], Store(out))
    assert [run.id for run in Store(out)] == Store(out).ids()
    assert len(Store(out).ids()) == found.new
    there = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert there - {out / ".lock"} == {source, *(Store(out).path(each.id) / "run.json" for each in Store(out))}
    return found, [f"{name.removeprefix(str(source))}: {why}" for name, why in found.refused]


@pytest.mark.parametrize(
    "name", ["{}/run.json", "./runs/{}/run.json", "out/runs/{}/run.json", "/etc/{}/run.json", "../../../{}/run.json"]
)
def test_records_are_taken_from_wherever_they_lie_in_an_archive_into_the_folder(name: str, tmp_path: Path) -> None:
    found, said = taken(tmp_path, tar(*RUNS, name=name))
    assert (found.new, found.known, said) == (4, 0, [])
    assert gather([tmp_path / "some.tar"], Store(tmp_path / "out")) == Gathered(new=0, known=4)


@pytest.mark.parametrize("kind", PACKED)
def test_archives_are_known_by_what_is_in_them(kind: str, tmp_path: Path) -> None:
    found, said = taken(tmp_path, PACKED[kind](tar(*RUNS)), name="records")
    assert (found.new, said) == (4, [])


def test_links_folders_and_devices_are_named_and_the_rest_is_taken(tmp_path: Path) -> None:
    link = "it is a link, and only regular files are copied"
    strange = [
        (member("a/run.json", tarfile.SYMTYPE, "nowhere"), link),
        (member("b/run.json", tarfile.LNKTYPE, "nowhere"), link),
        (member("c/run.json", tarfile.SYMTYPE, "c/run.json"), link),
        (member("d/run.json", tarfile.LNKTYPE, "d/run.json"), link),
        (member("e/run.json", tarfile.SYMTYPE, "/etc/passwd"), link),
        (member("f/run.json", tarfile.DIRTYPE), "it is a folder"),
        (member("g/run.json", tarfile.FIFOTYPE), "it is not a regular file"),
        (member("h/run.json", tarfile.CHRTYPE), "it is not a regular file"),
        (member("i/run.json", tarfile.REGTYPE), "it is incomplete or not JSON"),
    ]
    found, said = taken(tmp_path, tar(RUNS[0], *(each for each, _ in strange), RUNS[1]))
    assert found.new == 2
    assert said == [f": {each.name}: {why}" for each, why in strange]


def test_names_that_would_write_on_a_terminal_are_spelled_out(tmp_path: Path) -> None:
    _, said = taken(tmp_path, tar(member("\x1b[31m\n/run.json", tarfile.REGTYPE)))
    assert said == [r": '\x1b[31m\n/run.json': it is incomplete or not JSON"]


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("part", [0.2, 0.6, 0.95])
def test_an_archive_that_was_cut_short_says_so_and_gives_what_came_before(
    kind: str, part: float, tmp_path: Path
) -> None:
    whole = PACKED[kind](tar(*RUNS).rstrip(b"\0"))
    found, said = taken(tmp_path, whole[: int(part * len(whole))], name=f"cut.{kind}")
    assert found.new < 4
    assert len(said) == 1
    assert said[0].startswith(": it is not a complete archive of runs (")
    assert said[0].endswith("); the runs before the damage were copied")


@pytest.mark.parametrize("more", [0, 1, 100])
def test_a_plain_archive_that_was_cut_between_two_members_says_so(more: int, tmp_path: Path) -> None:
    header, content = 1, -(-len(encode(RUNS[0])) // tarfile.BLOCKSIZE)
    found, said = taken(tmp_path, tar(*RUNS)[: (header + content) * tarfile.BLOCKSIZE + more])
    assert found.new == 1
    assert said[0].startswith(": it is not a complete archive of runs (no mark of its end)")


def test_a_header_that_was_damaged_ends_an_archive_with_a_word(tmp_path: Path) -> None:
    whole = bytearray(tar(*RUNS))
    place = whole.index(f"{RUNS[2].id}/run.json".encode())
    whole[place] ^= 1
    found, said = taken(tmp_path, bytes(whole))
    assert found.new == 2
    assert said == [": it is not a complete archive of runs (no header); the runs before the damage were copied"]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_an_archive_that_was_packed_in_parts_is_read_to_its_end(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    content = tar(*RUNS)  # pbzip2 packs so, and whoever appends to a packed file
    found, _ = taken(tmp_path, pack(content[:3000]) + pack(content[3000:]))
    assert (found.new, found.refused) == (len(RUNS), [])


@pytest.mark.parametrize("kind", ["tgz", "tbz", "txz"])
def test_a_packed_archive_with_a_changed_byte_never_raises(kind: str, tmp_path: Path) -> None:
    whole = PACKED[kind](tar(*RUNS))
    for place in range(6, len(whole), len(whole) // 40):
        source = tmp_path / "changed"
        source.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        store = Store(tmp_path / f"out{place}")
        found = gather([source], store)
        assert [run.id for run in store] == store.ids()
        assert found.new == 4 or found.refused


def _bomb(kind: bytes) -> bytes:
    """A member of 600 MB, packed into a few."""
    made = io.BytesIO()
    with gzip.open(made, "wb", compresslevel=1) as file:
        file.write(member("0123456789ab/run.json", kind, size=600 * 2**20).tobuf())
        for _ in range(600):
            file.write(b" " * 2**20)
        file.write(bytes(2 * tarfile.BLOCKSIZE))
    return made.getvalue()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (tarfile.REGTYPE, "0123456789ab/run.json: it has 629,145,600 bytes; a record has at most 268,435,456"),
        (tarfile.XHDTYPE, "it is not a complete archive of runs (a header of 629,145,600 bytes); the runs before"),
    ],
)
def test_a_bomb_costs_little_memory(kind: bytes, reason: str, tmp_path: Path) -> None:
    bomb = _bomb(kind)
    tracemalloc.start()
    try:
        found, said = taken(tmp_path, bomb)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.new == 0
    assert len(said) == 1
    assert reason in said[0]
    assert most < LARGEST


def test_an_archive_that_leads_back_comes_to_an_end(tmp_path: Path) -> None:
    first = tar(RUNS[0]).rstrip(b"\0")
    first += bytes(-len(first) % tarfile.BLOCKSIZE)
    back = member("other", tarfile.REGTYPE, size=-tarfile.BLOCKSIZE).tobuf(tarfile.GNU_FORMAT)  # to its own header
    found, said = taken(tmp_path, first + back + bytes(2 * tarfile.BLOCKSIZE))
    assert found.new == 1
    assert said[0].startswith(": it is not a complete archive of runs (")


def _folder(path: Path) -> None:
    path.mkdir()


def _dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_folder, "it is not a regular file"),
        (_dangling, "it is a link to nothing"),
        (os.mkfifo, "it is not a regular file"),
        (_large, "it has 268,435,457 bytes; the largest allowed is 268,435,456"),
    ],
)
def test_what_is_not_a_file_in_a_folder_is_named_and_the_rest_is_copied(
    make: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    there = write(tmp_path / "there", [RUNS[0]])
    strange = there.path("0000") / "run.json"
    strange.parent.mkdir()
    make(strange)
    found = gather([there.folder], Store(tmp_path / "out"))
    assert (found.new, found.refused) == (1, [(str(strange), reason)])


def test_unfinished_runs_and_runs_of_other_programs_are_not_copied(tmp_path: Path) -> None:
    foreign = replace(RUNS[1], settings={"colour": "red"})
    there = write(tmp_path / "there", [replace(RUNS[0], finished=False), foreign])
    found = gather([there.folder], Store(tmp_path / "out"))
    assert (found.new, found.unfinished, [why for _, why in found.refused]) == (0, 1, ["it has no settings of a study"])


def test_a_record_with_the_settings_of_another_run_is_refused(tmp_path: Path) -> None:
    there = write(tmp_path / "there", [replace(RUNS[0], settings=RUNS[1].settings)])
    ((_, why),) = gather([there.folder], Store(tmp_path / "out")).refused
    assert why.startswith(f"its id is {RUNS[0].id}")


def test_one_run_or_one_file_can_be_given(tmp_path: Path) -> None:
    there = write(tmp_path / "there", RUNS)
    sources = [there.path(RUNS[0].id), there.path(RUNS[1].id) / "run.json"]
    assert gather(sources, Store(tmp_path / "out")) == Gathered(new=2)


@pytest.mark.parametrize("content", [b"", b"hello", b"hello " * 1000, b"{", bytes(700)])
def test_what_is_neither_record_nor_archive_is_named(content: bytes, tmp_path: Path) -> None:
    source = tmp_path / "what"
    source.write_bytes(content)
    found = gather([source], Store(tmp_path / "out"))
    assert found.new == 0
    if content != bytes(700):  # which is an archive without members
        ((name, _),) = found.refused
        assert name == str(source)


def test_nothing_is_taken_where_one_of_the_sources_is_not_there(tmp_path: Path) -> None:
    there = write(tmp_path / "there", [RUNS[0]])
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder or file"):
        gather([there.folder, tmp_path / "nowhere"], Store(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_command_takes_an_archive_made_in_the_folder_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "x.tar"
    archive.write_bytes(tar(*RUNS))
    assert main(["study", "gather", str(archive), "--out", str(tmp_path / "new"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"new": 4, "known": 0, "unfinished": 0, "refused": []}
    archive.write_bytes(gzip.compress(tar(*RUNS))[:-2000])
    assert main(["study", "gather", str(archive), "--out", str(tmp_path / "cut")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
