"""`aol data get`: archives from a server on this machine, checked and unpacked."""

from __future__ import annotations

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
from aol.lab.data import DataError, named
from tests.support.tiny_sets import cifar10_files, fashion_files, stated_as_official


class Server(http.server.ThreadingHTTPServer):
    folder: Path
    asked: list[str]


class _Handler(http.server.SimpleHTTPRequestHandler):
    server: Server

    def translate_path(self, path: str) -> str:
        self.server.asked.append(path.strip("/"))
        return str(self.server.folder / path.strip("/"))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server(("127.0.0.1", 0), _Handler) as server:
        server.folder, server.asked = tmp_path / "server", []
        server.folder.mkdir()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def archive(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, "cifar-10-batches-py")
        tar.addfile(tarfile.TarInfo("cifar-10-batches-py/readme.html"))
    return buffer.getvalue()


def offered(monkeypatch: pytest.MonkeyPatch, server: Server, name: str, files: dict[str, bytes]) -> None:
    """Let a set be downloaded from the server."""
    for file, content in files.items():
        (server.folder / file).write_bytes(content)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    sums = {f"{address}/{file}": hashlib.md5(content).hexdigest() for file, content in files.items()}
    known = replace(named.OFFICIAL[name], downloads=sums, system=())
    monkeypatch.setitem(named.OFFICIAL, name, known)  # type: ignore[arg-type]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return stated_as_official(monkeypatch, "cifar10", cifar10_files(tmp_path / "made"))


def test_an_archive_is_fetched_checked_and_unpacked(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, made: Path
) -> None:
    offered(monkeypatch, server, "cifar10", {"c.tar.gz": archive(made)})
    dest = tmp_path / "dest"
    folder = data.get("cifar10", dest)
    assert folder == dest / "cifar-10-batches-py"
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in made.iterdir())
    assert [path.name for path in dest.iterdir()] == ["cifar-10-batches-py"]
    assert len(data.open_data("cifar10", dest).train) == 20
    assert data.get("cifar10", dest) == folder
    assert server.asked == ["c.tar.gz"]  # all there: nothing is fetched again


def test_an_archive_that_was_put_there_by_hand_is_used(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, made: Path
) -> None:
    content = archive(made)
    offered(monkeypatch, server, "cifar10", {"c.tar.gz": content})
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest/c.tar.gz").write_bytes(content)
    assert data.get("cifar10", tmp_path / "dest") is not None
    assert server.asked == []


def test_a_wrong_checksum_is_refused_and_leaves_nothing(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, made: Path
) -> None:
    offered(monkeypatch, server, "cifar10", {"c.tar.gz": archive(made)})
    (server.folder / "c.tar.gz").write_bytes(b"another file")
    with pytest.raises(DataError, match=r"c\.tar\.gz: MD5 hash of downloaded file"):
        data.get("cifar10", tmp_path / "dest")
    assert list((tmp_path / "dest").iterdir()) == []


def test_an_archive_that_holds_other_files_is_refused(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, made: Path
) -> None:
    (made / "data_batch_1").write_bytes(b"other")
    offered(monkeypatch, server, "cifar10", {"c.tar.gz": archive(made)})
    with pytest.raises(DataError, match="data_batch_1: not the published file"):
        data.get("cifar10", tmp_path / "dest")
    with pytest.raises(DataError, match="data_batch_1: not the published file"):
        data.open_data("cifar10", tmp_path / "dest")


def test_without_a_network_one_sentence_says_which_file_to_put_where(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, made: Path
) -> None:
    offered(monkeypatch, server, "cifar10", {"c.tar.gz": archive(made)})
    (server.folder / "c.tar.gz").unlink()
    with pytest.raises(OSError, match=r"could not be fetched \(404.*first put c\.tar\.gz into .*dest$") as caught:
        data.get("cifar10", tmp_path / "dest")
    assert "\n" not in str(caught.value)


def test_gzipped_files_are_fetched_one_by_one(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stated_as_official(monkeypatch, "fashion-mnist", fashion_files(tmp_path / "made"))
    files = {path.name: path.read_bytes() for path in sorted(made.iterdir())}
    offered(monkeypatch, server, "fashion-mnist", files)
    folder = tmp_path / "dest" / "fashion-mnist"
    folder.mkdir(parents=True)
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(files["t10k-labels-idx1-ubyte.gz"])
    assert data.get("fashion-mnist", tmp_path / "dest") == folder
    assert sorted(server.asked) == sorted(name for name in files if name != "t10k-labels-idx1-ubyte.gz")
    assert data.open_data("fashion-mnist", tmp_path / "dest").train.shape == (1, 28, 28)
