from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aol.report.run_data import RunData, load
from aol.report.write import all_finished, follow_runs, record_states
from tests.support.made_runs import write_small_run


class Stage:
    """Plays a run to a watcher: each look is followed by the next act."""

    def __init__(self, *acts: object) -> None:
        self.acts = list(acts)
        self.written: list[tuple[list[int], bool]] = []
        self.said: list[str] = []

    def sleep(self, _: float) -> None:
        if not self.acts:
            raise KeyboardInterrupt
        self.acts.pop(0)()  # type: ignore[operator]

    def write(self, runs: list[RunData], _: Path, *, refresh: float | None) -> None:
        self.written.append(([len(data.run.epochs) for data in runs], refresh is None))

    def run(self, *paths: Path, write: Callable[..., None] | None = None) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("aol.report.write.write_page", write or self.write)
            follow_runs(paths, Path("page.html"), every=0.0, say=self.heard, sleep=self.sleep)

    def heard(self, text: str) -> None:
        if not text.startswith("page.html: "):
            self.said.append(text)


def test_each_change_is_written_and_the_end_ends_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    stage = Stage(
        lambda: write_small_run(out, epochs=0),
        lambda: write_small_run(out, epochs=1),
        lambda: None,
        lambda: write_small_run(out, epochs=3),
        lambda: write_small_run(out, epochs=3, finished=True),
    )
    stage.run(out)
    assert stage.written == [([1], False), ([3], False), ([3], True)]
    assert len(stage.said) == 2
    assert "no such folder" in stage.said[0]
    assert "no epoch has finished yet" in stage.said[1]


def test_a_run_that_was_asked_for_and_has_not_begun_is_waited_for(tmp_path: Path) -> None:
    write_small_run(tmp_path, seed=0, epochs=2, finished=True, asked=2)
    stage = Stage(lambda: None, lambda: write_small_run(tmp_path, seed=1, epochs=2, finished=True, asked=2))
    stage.run(tmp_path)
    assert stage.written == [([2], False), ([2, 2], True)]


def test_one_run_named_alone_does_not_wait_for_its_neighbours(tmp_path: Path) -> None:
    folder = write_small_run(tmp_path, seed=0, epochs=2, finished=True, asked=5)
    assert all_finished([folder], load(folder))
    assert not all_finished([tmp_path], load(tmp_path))


def test_half_written_records_are_waited_for(tmp_path: Path) -> None:
    folder = write_small_run(tmp_path, epochs=2)
    whole = (folder / "run.json").read_bytes()
    (folder / "run.json").write_bytes(whole[: len(whole) // 2])

    def mend() -> None:
        (folder / "run.json").write_bytes(whole)
        (folder / "samples.safetensors").write_bytes(b"half")

    remove = (folder / "samples.safetensors").unlink
    stage = Stage(mend, remove, lambda: write_small_run(tmp_path, epochs=2, finished=True))
    stage.run(tmp_path)
    assert stage.written == [([2], False), ([2], True)]
    assert all("Waiting" in text for text in stage.said)


def test_a_folder_that_vanishes_is_waited_for(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_small_run(out, epochs=2)
    stage = Stage(lambda: os.rename(out, tmp_path / "away"), lambda: write_small_run(out, epochs=1, finished=True))
    stage.run(out)
    assert stage.written == [([2], False), ([1], True)]


def test_a_page_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    write_small_run(tmp_path, epochs=2, finished=True)
    stage = Stage(lambda: None)
    tries: list[bool] = []

    def write(*words: object, **named: object) -> None:
        tries.append(True)
        if len(tries) == 1:
            raise OSError(28, "No space left on device")
        stage.write(*words, **named)  # type: ignore[arg-type]

    stage.run(tmp_path, write=write)
    assert stage.written == [([2], True)]
    assert "No space left" in stage.said[0]


def test_a_place_that_cannot_be_written_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    write_small_run(tmp_path, epochs=2)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        follow_runs([tmp_path], tmp_path / "file" / "in" / "page.html", every=0.0, say=lambda _: None)


def test_ctrl_c_leaves_a_page_that_does_not_refresh_itself(tmp_path: Path) -> None:
    write_small_run(tmp_path / "out", epochs=2)
    shown: list[Path] = []
    stage, page = Stage(), tmp_path / "page.html"
    with pytest.raises(KeyboardInterrupt):
        follow_runs([tmp_path / "out"], page, every=0.0, say=stage.heard, opened=shown.append, sleep=stage.sleep)
    assert shown == [page]
    assert '"refresh":null' in page.read_text()


def test_only_records_count_as_a_change(tmp_path: Path) -> None:
    folder = write_small_run(tmp_path, epochs=2)
    before = record_states([tmp_path])
    (folder / "report.html").write_text("x")
    (tmp_path / "table.csv").write_text("x")
    (folder / ".run.json.abc.part").write_text("x")
    assert record_states([tmp_path]) == before
    (folder / "run.json").write_text("{}")
    assert record_states([tmp_path]) != before
