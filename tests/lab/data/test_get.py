from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aol.lab import data
from aol.lab.data import DataError, UnreachableError, download, named
from aol.lab.data.named import Download, Member, Official
from tests.support.tiny_sets import cifar10_files, fashion_files


class _Server(http.server.ThreadingHTTPServer):
    files: dict[str, bytes]
    asked: list[tuple[str, str | None]]
    break_after: int | None  # break off the next transfers after so many bytes
    breaks: int
    ranges: bool


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        name = self.path.strip("/")
        wanted = self.headers.get("Range")
        self.server.asked.append((name, wanted))
        content = self.server.files.get(name)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        if self.server.breaks > 0 and self.server.break_after is not None:
            self.server.breaks -= 1
            body = body[: self.server.break_after]
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    server = _Server(("127.0.0.1", 0), _Handler)
    server.files, server.asked, server.break_after, server.breaks, server.ranges = {}, [], None, 0, True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def _address(server: _Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def _archive(folder: Path, extra: list[tuple[tarfile.TarInfo, bytes]] = []) -> bytes:  # noqa: B006
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, content in extra:
            tar.addfile(info, io.BytesIO(content))
        for path in sorted(folder.iterdir()):
            tar.add(path, f"cifar-10-batches-py/{path.name}")
    return buffer.getvalue()


def _known(monkeypatch: pytest.MonkeyPatch, folder: Path, archive: bytes) -> Official:
    """State tiny files as the official ones."""
    members = tuple(
        Member(p.name, p.stat().st_size, hashlib.sha256(p.read_bytes()).hexdigest()) for p in sorted(folder.iterdir())
    )
    known = replace(
        named.OFFICIAL["cifar10"],
        addresses=("http://127.0.0.1:9/",),
        members=members,
        downloads=(Download("c.tar.gz", len(archive), hashlib.md5(archive).hexdigest()),),
    )
    monkeypatch.setitem(named.OFFICIAL, "cifar10", known)  # type: ignore[arg-type]
    return known


def test_an_archive_is_fetched_checked_and_unpacked(
    tmp_path: Path, server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cifar10_files(tmp_path / "made")
    archive = _archive(made)
    _known(monkeypatch, made, archive)
    server.files["c.tar.gz"] = archive
    seen: list[tuple[str, int, int]] = []
    dest = tmp_path / "dest"
    folder = data.get("cifar10", dest, progress=lambda *p: seen.append(p), mirror=_address(server))
    assert folder == dest / "cifar-10-batches-py"
    assert seen[-1] == ("c.tar.gz", len(archive), len(archive))
    assert len(data.load("cifar10", data_dir=dest).train) == 20
    assert data.check("cifar10", data_dir=dest).ok
    assert sorted(p.name for p in dest.iterdir()) == ["cifar-10-batches-py"]
    asked = len(server.asked)
    data.get("cifar10", dest, mirror=_address(server))
    assert len(server.asked) == asked  # all there: nothing is fetched again


def test_a_broken_transfer_goes_on_where_it_stopped(
    tmp_path: Path, server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cifar10_files(tmp_path / "made")
    archive = _archive(made)
    _known(monkeypatch, made, archive)
    server.files["c.tar.gz"] = archive
    monkeypatch.setattr(download, "_PAUSE", 0.0)
    server.break_after, server.breaks = 1000, 4
    dest = tmp_path / "dest"
    with pytest.raises(UnreachableError, match=r"the transfer broke off\); run the same command again"):
        data.get("cifar10", dest, mirror=_address(server))
    assert (dest / "c.tar.gz.part").stat().st_size == 3000  # what came in three tries stays
    assert not (dest / "c.tar.gz").exists()
    assert data.get("cifar10", dest, mirror=_address(server)) is not None
    assert [r for _, r in server.asked] == [None, *(f"bytes={n}000-" for n in range(1, 5))]
    assert data.check("cifar10", data_dir=dest).ok


def test_a_file_that_was_fetched_and_not_checked_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cifar10_files(tmp_path / "made")
    archive = _archive(made)
    _known(monkeypatch, made, archive)
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest/c.tar.gz.part").write_bytes(archive)
    assert data.get("cifar10", tmp_path / "dest") is not None


def test_a_planted_link_or_too_large_a_part_is_not_continued(
    tmp_path: Path, server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cifar10_files(tmp_path / "made")
    archive = _archive(made)
    known = _known(monkeypatch, made, archive)
    server.files["c.tar.gz"] = archive
    for size in (6, len(archive), len(archive) + 1):
        elsewhere, dest = tmp_path / f"elsewhere{size}", tmp_path / f"dest{size}"
        elsewhere.write_bytes((archive + b"0")[:size])
        dest.mkdir()
        (dest / "c.tar.gz.part").symlink_to(elsewhere)
        assert data.get("cifar10", dest, mirror=_address(server)) is not None
        assert elsewhere.stat().st_size == size
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest/c.tar.gz.part").write_bytes(archive + b"0")
    assert data.get("cifar10", tmp_path / "dest", mirror=_address(server)) is not None
    assert server.asked == [("c.tar.gz", None)] * 4
    assert all(problem is None for _, problem in known.state(tmp_path / "dest" / known.folder))


def test_the_second_address_is_asked_where_the_first_does_not_answer(
    tmp_path: Path, server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cifar10_files(tmp_path / "made")
    archive = _archive(made)
    known = _known(monkeypatch, made, archive)
    server.files["c.tar.gz"] = archive
    both = replace(known, addresses=(*known.addresses, _address(server)))
    monkeypatch.setitem(named.OFFICIAL, "cifar10", both)  # type: ignore[arg-type]
    assert data.get("cifar10", tmp_path / "dest") is not None


def test_a_server_without_ranges_starts_the_file_over(
    tmp_path: Path, server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cifar10_files(tmp_path / "made")
    archive = _archive(made)
    _known(monkeypatch, made, archive)
    server.files["c.tar.gz"], server.ranges = archive, False
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest/c.tar.gz.part").write_bytes(b"half of another file")
    assert data.get("cifar10", tmp_path / "dest", mirror=_address(server)) is not None


def test_a_wrong_checksum_is_refused_and_removed(
    tmp_path: Path, server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cifar10_files(tmp_path / "made")
    archive = _archive(made)
    _known(monkeypatch, made, archive)
    server.files["c.tar.gz"] = archive[:-1] + bytes([archive[-1] ^ 1])
    with pytest.raises(DataError, match=r"c.tar.gz: the file fetched has md5 .* it was removed"):
        data.get("cifar10", tmp_path / "dest", mirror=_address(server))
    assert not list((tmp_path / "dest").glob("c.tar.gz*"))
    assert data.find("cifar10", data_dir=tmp_path / "dest") is None


def test_without_a_network_one_sentence_says_which_file_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cifar10_files(tmp_path / "made")
    archive = _archive(made)
    _known(monkeypatch, made, archive)
    dest = tmp_path / "dest"
    with pytest.raises(UnreachableError) as caught:
        data.get("cifar10", dest)
    message = str(caught.value)
    assert "\n" not in message
    assert "could not be fetched ([Errno 111] Connection refused)" in message
    assert "run the same command again" in message
    assert f"put c.tar.gz from http://127.0.0.1:9/c.tar.gz into {dest}" in message
    (dest / "c.tar.gz").write_bytes(archive)  # the user did
    assert data.get("cifar10", dest) is not None
    assert data.check("cifar10", data_dir=dest).ok


def test_a_missing_file_on_the_server_is_said(tmp_path: Path, server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cifar10_files(tmp_path / "made")
    _known(monkeypatch, made, _archive(made))
    with pytest.raises(UnreachableError, match="the server answered 404"):
        data.get("cifar10", tmp_path / "dest", mirror=_address(server))


def test_only_expected_members_leave_an_archive(
    tmp_path: Path, server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cifar10_files(tmp_path / "made")
    outside = tarfile.TarInfo("../outside")
    outside.size = 1
    absolute = tarfile.TarInfo(str(tmp_path / "absolute"))
    absolute.size = 1
    link = tarfile.TarInfo("cifar-10-batches-py/test_batch")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    stranger = tarfile.TarInfo("cifar-10-batches-py/readme.html")
    stranger.size = 1
    archive = _archive(made, [(outside, b"x"), (absolute, b"x"), (link, b""), (stranger, b"x")])
    _known(monkeypatch, made, archive)
    server.files["c.tar.gz"] = archive
    folder = data.get("cifar10", tmp_path / "dest", mirror=_address(server))
    assert folder is not None
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in made.iterdir())
    assert not (folder / "test_batch").is_symlink()
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "absolute").exists()


def test_an_archive_that_lacks_a_member_or_holds_another_is_refused(
    tmp_path: Path, server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cifar10_files(tmp_path / "made")
    known = _known(monkeypatch, made, _archive(made))
    (made / "test_batch").unlink()
    for archive, said in (
        (_archive(made), "test_batch: missing"),
        (_archive(cifar10_files(tmp_path / "other", label=1)), "data_batch_1: sha256 .* instead of"),
    ):
        there = replace(known.downloads[0], size=len(archive), md5=hashlib.md5(archive).hexdigest())
        monkeypatch.setitem(named.OFFICIAL, "cifar10", replace(known, downloads=(there,)))  # type: ignore[arg-type]
        server.files["c.tar.gz"] = archive
        with pytest.raises(DataError, match=said):
            data.get("cifar10", tmp_path / "dest", mirror=_address(server))
        with pytest.raises((DataError, FileNotFoundError)):
            data.load("cifar10", data_dir=tmp_path / "dest")


def test_gzipped_files_are_fetched_one_by_one(tmp_path: Path, server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fashion_files(tmp_path / "made")
    members, downloads = [], []
    for path in sorted(made.iterdir()):
        content = path.read_bytes()
        raw = gzip.decompress(content)
        members.append(Member(path.stem, len(raw), hashlib.sha256(raw).hexdigest()))
        downloads.append(Download(path.name, len(content), hashlib.md5(content).hexdigest()))
        server.files[path.name] = content
    known = replace(named.OFFICIAL["fashion-mnist"], members=tuple(members), downloads=tuple(downloads), system=())
    monkeypatch.setitem(named.OFFICIAL, "fashion-mnist", known)  # type: ignore[arg-type]
    assert data.get("fashion-mnist", tmp_path / "dest", mirror=_address(server)) is not None
    report = data.check("fashion-mnist", data_dir=tmp_path / "dest")
    assert report.ok
    assert report.shape == (1, 28, 28)
