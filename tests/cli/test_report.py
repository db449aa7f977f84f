from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import pytest

from aol import cli
from aol.cli import main as aol_main
from aol.records.record import write_run
from tests.support.made_runs import make_data, write_data, write_small_run
from tests.support.small_runs import small_run


def main(words: list[str]) -> int:
    return aol_main(["report", *words])


def page_data(path: Path) -> dict[str, object]:
    script = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    assert script is not None
    data: dict[str, object] = json.loads(script[1])
    return data


def test_a_page_is_written_into_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_small_run(tmp_path, epochs=3, finished=True)
    assert cli.main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/report.html\n"
    data = page_data(tmp_path / "report.html")
    assert [run["passed"] for run in data["runs"]] == [3]  # type: ignore[attr-defined]


def test_several_folders_make_one_page_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        write_small_run(tmp_path / name, epochs=2, finished=True)
    assert main(["a", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": ["report.html"]}
    assert len(page_data(tmp_path / "report.html")["runs"]) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "nowhere: no such folder"),
        (["empty"], "empty: there are no runs in it"),
        ([], "required: RUN"),
        (["run", "--write", "page.txt"], "--write must be a file that ends in .html, not 'page.txt'"),
        (["run", "--write", "folder.html"], "--write must be a file that ends in .html, not 'folder.html'"),
        (["run", "--write", "file/page.html"], "--write file/page.html is, or is inside, a file"),
        (["run", "--figures", "file"], "--figures file is, or is inside, a file"),
        (["run", "--export", "table.xls"], "--export must end in .csv, not 'table.xls'"),
        (["begun"], "no epoch has finished yet"),
        (["broken"], "run.json"),
    ],
)
def test_wrong_words_are_one_sentence_and_write_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "folder.html"):
        Path(name).mkdir()
    Path("file").touch()
    write_small_run(Path("run"), epochs=2)
    write_small_run(Path("begun"), epochs=0)
    (write_small_run(Path("broken"), epochs=2) / "run.json").write_text('{"format": 2, "id')
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert sentence in err
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_small_run(tmp_path, epochs=2)
    write_data(tmp_path / "kept", make_data(epochs=3))

    def refused(dir: Path, prefix: str, suffix: str) -> tuple[int, str]:  # noqa: A002
        raise OSError(errno.EROFS, "Read-only file system", f"{dir}/{prefix}0lh7{suffix}")

    monkeypatch.setattr("aol._files.tempfile.mkstemp", refused)
    why = "cannot be written to: read-only file system"
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"aol: --write {tmp_path}/report.html {why}.\n"
    assert main([str(tmp_path / "kept"), "--export", str(tmp_path / "t.csv")]) == 2
    assert capsys.readouterr().err == f"aol: --export {tmp_path}/t.csv {why}.\n"


def test_figures_alone_come_without_a_page(tmp_path: Path) -> None:
    write_small_run(tmp_path / "run", epochs=3, finished=True)
    assert main([str(tmp_path / "run"), "--figures", str(tmp_path / "drawn")]) == 0
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["heatmap-none.pdf", "heatmap-none.png"]
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_full_disk_leaves_the_page_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_small_run(tmp_path, epochs=2)
    (tmp_path / "report.html").write_text("before")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("aol._files.os.fsync", full)
    assert main([str(tmp_path)]) == 1
    assert "the disk is full" in capsys.readouterr().err
    assert (tmp_path / "report.html").read_text() == "before"
    assert not list(tmp_path.glob(".report*"))


def test_without_samples_there_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_small_run(tmp_path, epochs=2)
    assert main([str(tmp_path), "--export", str(tmp_path / "table.csv")]) == 1
    assert "--keep-samples" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_a_real_run_becomes_a_page_figures_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = "train --samples 200 --weighting none,aol --epochs 2 --keep-samples --out"
    assert cli.main([*words.split(), str(out)]) == 0
    capsys.readouterr()
    more = ["--figures", str(tmp_path / "figures"), "--export", str(tmp_path / "table.csv")]
    assert main([str(out), "--write", str(tmp_path / "page.html"), "--json", *more]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["page"] == [str(tmp_path / "page.html")]
    assert len(written["tables"]) == 2
    assert all(Path(path).stat().st_size > 0 for paths in written.values() for path in paths)
    runs = page_data(tmp_path / "page.html")["runs"]
    for run, table in zip(runs, written["tables"], strict=True):  # type: ignore[call-overload]
        rows = Path(table).read_text().splitlines()[1:]
        assert run["samples"]["total"] == len(rows) == sum(run["counts"])


def test_damaged_runs_are_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs" / "good", small_run())
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "run.json").write_text("{")
    assert aol_main(["report", str(tmp_path)]) == 1
    assert (tmp_path / "report.html").is_file()
    assert "bad/run.json" in capsys.readouterr().err
    (tmp_path / "runs" / "good" / "run.json").write_text("{")
    assert aol_main(["report", str(tmp_path)]) == 2  # nothing is left
