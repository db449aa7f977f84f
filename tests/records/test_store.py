"""A folder of runs: found in any layout, in the order asked for; damaged ones reported and never used."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pandas as pd
import pytest

from aol._files import UnusableFolderError
from aol.records.record import DamagedRunError, write_run
from aol.records.store import NoRunsError, Store, find_runs, read_request, write_request
from aol.records.table import load_runs, read_runs
from tests.support.doc_pages import ROOT
from tests.support.small_runs import small_run

pack = runpy.run_path(str(ROOT / "results" / "pack.py"))["pack"]


def test_runs_are_stored_by_id(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for run_id in ("bbb", "aaa"):
        store.write(small_run(id=run_id))
    assert store.ids() == ["aaa", "bbb"]
    assert [run.id for run in store] == ["aaa", "bbb"]
    found = store.get("bbb")
    assert found is not None
    assert found.id == "bbb"
    assert store.get("ccc") is None


def test_damaged_records_are_reported_with_the_reason_and_not_used(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for run_id in ("good", "cut", "swapped"):
        store.write(small_run(id=run_id))
    cut = store.path("cut") / "run.json"
    cut.write_bytes(cut.read_bytes()[:100])
    write_run(store.path("swapped"), small_run(id="another"))
    assert [run.id for run in store] == ["good"]
    for run_id, why in (("cut", "it is incomplete or not JSON"), ("swapped", "it is the record of run another")):
        with pytest.raises(DamagedRunError, match=why):
            store.read(run_id)


def test_runs_are_found_in_the_order_in_which_they_were_asked_for(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    for run_id in ("aaa", "bbb", "ccc"):
        store.write(small_run(id=run_id))
    write_request(store.folder, {"ids": ["ccc", "zzz", "aaa"], "runs": []})
    assert [path.name for path in find_runs(store.folder)] == ["ccc", "aaa", "bbb"]
    write_run(tmp_path / "recorded", small_run(id="mine"))
    assert [path.name for path in find_runs(tmp_path)] == ["ccc", "aaa", "bbb", "recorded"]
    assert find_runs(tmp_path / "recorded", tmp_path / "recorded") == [(tmp_path / "recorded").resolve()]


def test_a_folder_that_was_asked_for_runs_but_has_none_yet_is_empty(tmp_path: Path) -> None:
    write_request(tmp_path, {"ids": ["aaa"], "runs": []})
    assert find_runs(tmp_path) == []


def test_paths_without_runs_are_named(tmp_path: Path) -> None:
    with pytest.raises(NoRunsError, match="no such folder"):
        find_runs(tmp_path / "gone")
    (tmp_path / "file").write_text("")
    with pytest.raises(NoRunsError, match="is a file"):
        find_runs(tmp_path / "file")
    with pytest.raises(NoRunsError, match="there are no runs in it"):
        find_runs(tmp_path)
    with (
        pytest.raises(UnusableFolderError, match="is, or is inside, a file"),
        Store(tmp_path / "file" / "below").lock(),
    ):
        pass


def filled(folder: Path, *names: str) -> Store:
    store = Store(folder)
    for name in names:
        store.write(small_run(id=name))
    return store


def test_packed_runs_are_read_as_before(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    store = filled(folder, "cc", "aa", "bb")
    write_request(folder, {"ids": ["bb", "aa"], "runs": []})
    before, paths = load_runs(folder), find_runs(folder)
    assert pack(store) == 3
    assert not (folder / "runs" / "aa").exists()
    assert [json.loads(line)["id"] for line in (folder / "runs.jsonl").read_text().splitlines()] == ["aa", "bb", "cc"]
    assert find_runs(folder) == paths
    assert store.ids() == ["aa", "bb", "cc"]
    pd.testing.assert_frame_equal(load_runs(folder), before)
    assert find_runs(store.path("cc")) == [store.path("cc").resolve()]
    (folder / "request.json").unlink()
    assert [path.name for path in find_runs(tmp_path)] == ["aa", "bb", "cc"]


def test_a_run_beside_packed_ones_counts_before_the_packed_one_and_is_packed_next(tmp_path: Path) -> None:
    store = filled(tmp_path, "aa", "bb")
    pack(store)
    store.write(small_run(id="bb", method="again"))
    store.write(small_run(id="cc"))
    store.write(small_run(id="dd", finished=False))
    store.write(small_run(id="ee"))
    (store.path("ee") / "samples.safetensors").write_bytes(b"")
    assert pack(store) == 3
    assert {run.id: run.method for run in store}["bb"] == "again"
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["dd", "ee"]
    assert store.ids() == ["aa", "bb", "cc", "dd", "ee"]


def test_a_damaged_line_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    store = filled(tmp_path, "aa", "bb")
    pack(store)
    path = tmp_path / "runs.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"planned":4', b'"planned":5', 1) + b"[1]\n[2]\n")
    assert [run.id for run in store] == ["bb"]
    problems: list[DamagedRunError] = []
    assert [run.id for _, run in read_runs([tmp_path], problems)] == ["bb"]
    texts = [str(problem) for problem in problems]
    assert len(texts) == 2
    assert "runs.jsonl, a line without a record: it is" in texts[0]
    assert "runs.jsonl, aa: its checksum does not match its content." in texts[1]


@pytest.mark.parametrize("text", ["{", "[]", '{"runs": 3}'])
def test_a_damaged_request_is_named_and_its_runs_are_found(text: str, tmp_path: Path) -> None:
    filled(tmp_path, "aa")
    (tmp_path / "request.json").write_text(text)
    with pytest.raises(DamagedRunError, match=r"request\.json"):
        read_request(tmp_path)
    assert [path.name for path in find_runs(tmp_path)] == ["aa"]
    assert read_request(tmp_path / "elsewhere") is None
