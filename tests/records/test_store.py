"""A folder of runs: found in any layout, in the order asked for; damaged ones reported and never used."""

from __future__ import annotations

from pathlib import Path

import pytest

from aol._files import UnusableFolderError
from aol.records.record import DamagedRunError, write_run
from aol.records.store import NoRunsError, Store, find_runs, read_request, write_request
from tests.support.small_runs import small_run


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


@pytest.mark.parametrize("file", ["runs/abc/epochs.csv", "records/abc.json", "epochs.csv"])
def test_folders_of_the_first_version_get_a_sentence(file: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    with pytest.raises(NoRunsError, match=r"written by aol 0\.1\.0"):
        find_runs(tmp_path)
    with pytest.raises(NoRunsError, match=r"written by aol 0\.1\.0"):
        Store(tmp_path).prepare()


def test_paths_without_runs_are_named(tmp_path: Path) -> None:
    with pytest.raises(NoRunsError, match="no such folder"):
        find_runs(tmp_path / "gone")
    (tmp_path / "file").write_text("")
    with pytest.raises(NoRunsError, match="is a file"):
        find_runs(tmp_path / "file")
    with pytest.raises(NoRunsError, match="there are no runs in it"):
        find_runs(tmp_path)
    with pytest.raises(UnusableFolderError, match="is, or is inside, a file"):
        Store(tmp_path / "file" / "below").prepare()


def test_runs_are_found_without_their_request(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(small_run(id="aaa"))
    (tmp_path / "request.json").write_text("{")
    assert [path.name for path in find_runs(tmp_path)] == ["aaa"]


def test_a_folder_of_folders_of_the_first_version_gets_the_sentence(tmp_path: Path) -> None:
    (tmp_path / "old" / "runs" / "x").mkdir(parents=True)
    (tmp_path / "old" / "runs" / "x" / "epochs.csv").write_text("")
    with pytest.raises(NoRunsError, match=r"written by aol 0\.1\.0"):
        find_runs(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"runs": 3}'])
def test_a_damaged_request_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(text)
    with pytest.raises(DamagedRunError, match=r"request\.json"):
        read_request(tmp_path)
    assert read_request(tmp_path / "elsewhere") is None
