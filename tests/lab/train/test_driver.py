"""The driver: what it trains, in which groups, how it stops, and what it does when memory is short."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aol._files import FolderInUseError
from aol.lab.engine.loop import Loop
from aol.lab.engine.source import AnyPair
from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.train import group_training, groups
from aol.lab.train.driver import Stop, train
from aol.lab.train.groups import ExecutionOptions, lock_name, new_group
from aol.lab.train.job import Job, Outcome, prepare, requested_runs
from aol.lab.train.progress import Silent, Status, Tally, duration
from aol.records.store import Store, read_request, write_request
from tests.support.running import PATIENCE, told
from tests.support.tiny_runs import CPU, settings, stream_settings, tiny_pair

OPTIONS = ExecutionOptions(CPU, together=2)


def opened(runs: Sequence[Settings]) -> dict[str, AnyPair]:
    return {run.data: tiny_pair() for run in runs}


class Heard(Silent):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.statuses: list[Status] = []
        self.groups: list[tuple[int, ...]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def update(self, status: Status, doing: str, loop: Loop | None = None) -> None:
        self.statuses.append(status)
        if loop is not None and loop.epoch == 0:
            self.groups.append(tuple(run.seed for run in loop.runs))


def runs_of(seeds: Sequence[int] = range(5), **given: object) -> list[Settings]:
    return [settings(epochs=2, seed=seed, **given) for seed in seeds]


def trained(runs: Sequence[Settings], folder: Path, options: ExecutionOptions = OPTIONS, **more: object) -> Outcome:
    return train(runs, Store(folder), opened, options, Heard(), **more)  # type: ignore[arg-type]


def test_only_what_is_missing_or_damaged_is_trained(tmp_path: Path) -> None:
    runs, heard = runs_of(), Heard()
    assert train(runs, Store(tmp_path), opened, OPTIONS, heard).trained == 5
    assert heard.groups == [(0, 1), (2, 3), (4,)]
    assert [status.done for status in heard.statuses][-1] == 5
    assert heard.statuses[-1].share == 1.0
    before = told(tmp_path)
    assert trained(runs, tmp_path).trained == 0
    store = Store(tmp_path)
    (store.path(runs[1].run_id) / "run.json").unlink()
    path = store.path(runs[3].run_id) / "run.json"
    path.write_bytes(path.read_bytes()[:-20])
    heard = Heard()
    assert train(runs, store, opened, OPTIONS, heard).trained == 2
    assert heard.groups == [(1, 3)]
    assert any(str(path) in text and "trained again" in text for text in heard.said)
    assert told(tmp_path).keys() == before.keys()


def test_a_run_that_is_recorded_but_not_finished_is_missing(tmp_path: Path) -> None:
    runs = runs_of([0])
    trained(runs, tmp_path)
    store = Store(tmp_path)
    record = store.get(runs[0].run_id)
    assert record is not None
    store.write(replace(record, finished=False))
    assert trained(runs, tmp_path).trained == 1


def test_readings_that_are_required_over_time_are_kept_and_waited_for(tmp_path: Path) -> None:
    (run,) = runs_of([0])
    trained([run], tmp_path, keep=("test_accuracy",))
    record = Store(tmp_path).get(run.run_id)
    assert record is not None
    assert set(record.over_time) == {"test_accuracy"}
    assert trained([run], tmp_path, keep=("age",), require=("test_accuracy",)).trained == 0
    assert trained([run], tmp_path, keep=("age",), require=("age",)).trained == 1
    none = settings(epochs=1, signal="none")  # it cannot have ages
    assert trained([none], tmp_path, keep=("age",), require=("age",)).trained == 1
    assert trained([none], tmp_path, keep=("age",), require=("age",)).trained == 0


def test_a_stream_records_the_threshold_of_every_step(tmp_path: Path) -> None:
    run = stream_settings(epochs=4, weighting="aol")
    trained([run], tmp_path)
    record = Store(tmp_path).get(run.run_id)
    assert record is not None
    assert np.isfinite(record.curves["threshold"]).all()
    assert (record.over_time["age"] == np.round(record.over_time["age"])).all()  # the age of a class is a whole number
    assert (record.over_time["age"] != record.over_time["smoothed_age"]).any()


# Shares


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_are_disjoint_complete_and_independent_of_what_is_trained(count: int, tmp_path: Path) -> None:
    runs = runs_of(range(7))
    store = Store(tmp_path)
    whole = [
        Job(runs, store, replace(OPTIONS, shares=((number, count),)), opened, Silent()).runs
        for number in range(1, count + 1)
    ]
    assert sorted(run.seed for share in whole for run in share) == list(range(7))
    trained(runs[:4], tmp_path)
    again = [
        Job(runs, store, replace(OPTIONS, shares=((number, count),)), opened, Silent()).runs
        for number in range(1, count + 1)
    ]
    assert again == whole


def test_a_shard_leaves_the_files_that_another_is_writing(tmp_path: Path) -> None:
    half_written = tmp_path / ".request.json.abc.part"
    half_written.touch()
    trained(runs_of([0, 1]), tmp_path, replace(OPTIONS, shares=((1, 2),), together=1))
    assert half_written.exists()
    trained(runs_of([0, 1]), tmp_path, OPTIONS)  # with the folder for itself: whoever wrote it is gone
    assert not half_written.exists()


def test_shards_in_one_folder_make_the_records_of_one_process(tmp_path: Path) -> None:
    runs = runs_of(range(4))
    trained(runs, tmp_path / "one")
    for number in (2, 1):
        trained(runs, tmp_path / "two", replace(OPTIONS, shares=((number, 2),)))
    assert told(tmp_path / "one") == told(tmp_path / "two")


def test_several_shares_in_one_process_are_grouped_as_in_several(tmp_path: Path) -> None:
    runs, options, heard = runs_of(range(6)), replace(OPTIONS, together=None), [Heard(), Heard()]
    for number in (1, 3):
        train(runs, Store(tmp_path / "two"), opened, replace(options, shares=((number, 3),)), heard[0])
    train(runs, Store(tmp_path / "one"), opened, replace(options, shares=((1, 3), (3, 3))), heard[1])
    assert heard[0].groups == heard[1].groups == [(0, 1), (4, 5)]
    assert told(tmp_path / "one") == told(tmp_path / "two")


def test_shares_do_not_depend_on_the_order_of_training(tmp_path: Path) -> None:
    asked = [*runs_of(range(3)), *runs_of(range(3), batch_size=45)]
    shares = [
        Job(runs, Store(tmp_path), replace(OPTIONS, shares=(share,)), opened, Silent(), asked=asked).runs
        for share, runs in (((1, 2), asked), ((2, 2), asked[::-1]))
    ]
    assert sorted(run.run_id for share in shares for run in share) == sorted(run.run_id for run in asked)


def test_shares_that_are_noted_at_the_same_moment_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aol.records.store._TURN", PATIENCE)
    request = {"ids": ["a"], "runs": [{}]}
    shares = [[[number, 8]] for number in range(1, 9)]
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda each: write_request(tmp_path, request | {"options": {"shares": each}}), shares))
    noted = (read_request(tmp_path) or {})["options"]
    assert isinstance(noted, dict)
    assert sorted(noted["shares"]) == [each for share in shares for each in share]


# Runs together


def test_a_group_with_a_damaged_checkpoint_starts_again_as_one(tmp_path: Path) -> None:
    runs, store = runs_of(range(2)), Store(tmp_path)
    job = Job(runs, store, OPTIONS, opened, Silent())
    begun = groups.new_group(runs, store)
    job.begin(begun)
    begun.checkpoint.write_bytes(b"damaged")
    heard = Heard()
    assert train(runs, store, opened, OPTIONS, heard).trained == 2
    assert heard.groups == [(0, 1)]
    assert any("start again from the first epoch" in text for text in heard.said)


# Stopping


def test_a_time_limit_keeps_what_was_done_and_the_rest_is_trained_later(tmp_path: Path) -> None:
    runs = [settings(epochs=60, seed=seed) for seed in (0, 1)]
    trained(runs, tmp_path / "straight")
    outcome = trained(runs, tmp_path / "parts", replace(OPTIONS, minutes=0.02 / 60))
    assert outcome.stopped
    assert not outcome.terminated
    assert outcome.trained == 0
    record = Store(tmp_path / "parts").get(runs[0].run_id)
    assert record is None or not record.finished
    outcome = trained(runs, tmp_path / "parts")
    assert (outcome.trained, outcome.stopped) == (2, False)
    assert told(tmp_path / "parts") == told(tmp_path / "straight")


def test_stop_counts_what_is_still_to_come() -> None:
    assert not Stop(None).before(1e9)
    assert Stop(10.0).before(11.0)
    assert not Stop(10.0).before(5.0)


# Memory


def test_a_group_that_does_not_fit_into_memory_is_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, sizes = group_training.make_loop, []

    def limited(runs: Sequence[Settings], *given: object) -> Loop:
        sizes.append(len(runs))
        if len(runs) > 2:
            raise MemoryError("no room")
        return real(runs, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(group_training, "make_loop", limited)
    heard = Heard()
    outcome = train(runs_of(range(6)), Store(tmp_path), opened, replace(OPTIONS, together=6), heard)
    assert (outcome.trained, outcome.untrained) == (6, {})
    assert sizes == [6, 3, 2, 2, 2]
    assert sum("do not fit into memory" in text for text in heard.said) == 2


def test_a_single_run_that_does_not_fit_is_reported_and_the_others_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = group_training.make_loop
    too_large = settings(epochs=1, batch_size=45)

    def limited(runs: Sequence[Settings], *given: object) -> Loop:
        if runs[0].batch_size == 45:
            raise MemoryError("no room")
        return real(runs, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(group_training, "make_loop", limited)
    outcome = trained([too_large, *runs_of([0])], tmp_path)
    assert outcome.trained == 1
    assert outcome.untrained == {too_large.run_id: "no room"}
    assert not (tmp_path / "work").exists()


# Requests


def test_a_request_says_what_was_asked_for(tmp_path: Path) -> None:
    runs, store = runs_of([0, 1]), Store(tmp_path)
    prepare(runs, store, {"command": "train"})
    request = read_request(tmp_path)
    assert request is not None
    assert requested_runs(request) == runs
    prepare(runs_of([7]), store, {"command": "train"})  # nothing was trained: the folder is free
    trained(runs_of([7]), tmp_path)
    with pytest.raises(WrongSettingsError, match="already holds runs"):
        prepare(runs_of([7]), store, {"command": "train"})
    with pytest.raises(WrongSettingsError, match="holds other runs"):
        prepare(runs, store, {"command": "train"}, resume=True)
    prepare(runs_of([7]), store, {"command": "train"}, resume=True)
    prepare(runs, store, {"command": "train"}, fresh=True)
    assert store.ids() == []


def test_a_request_of_another_version_is_refused(tmp_path: Path) -> None:
    request = {"ids": ["a"], "runs": [{"data": "tiny", "strength": 3}]}
    (tmp_path / "request.json").write_text(json.dumps(request))
    with pytest.raises(WrongSettingsError, match="another version of aol"):
        requested_runs(read_request(tmp_path) or {})


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.lock(), pytest.raises(FolderInUseError):
        trained(runs_of([0]), tmp_path)
    second = replace(OPTIONS, shares=((2, 2),), together=1)
    with store.lock(lock_name((1, 2), runs_of([0, 1]), second)):
        trained(runs_of([0, 1]), tmp_path, second)
        assert len(store.ids()) == 1
        for runs, options in ((runs_of([0, 1, 2]), second), (runs_of([0, 1]), replace(second, together=2))):
            with pytest.raises(FolderInUseError):  # their shares may have runs of the first
                trained(runs, tmp_path, options)


def test_a_share_leaves_what_another_process_trains_again(tmp_path: Path) -> None:
    runs = runs_of([0, 1])
    trained(runs, tmp_path)
    other = new_group(runs[:1], Store(tmp_path))  # its record is complete, but samples are missing, say
    Job(runs, Store(tmp_path), OPTIONS, opened, Silent()).begin(other)
    job = Job(runs, Store(tmp_path), replace(OPTIONS, shares=((2, 2),), together=1), opened, Silent())
    assert job.next_group() is None
    assert other.folder.exists()
    assert Job(runs, Store(tmp_path), OPTIONS, opened, Silent()).next_group() is None
    assert not other.folder.exists()


def test_what_is_wrong_with_settings_or_data_is_told_before_anything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    runs = [settings(net="resnet34")]
    with pytest.raises(WrongSettingsError, match="does not fit the images"):
        train(runs, Store(out), opened, OPTIONS, Silent(), prepare=lambda: None)
    with pytest.raises(WrongSettingsError, match="--keep-samples"):
        train(
            [stream_settings()], Store(out), opened, replace(OPTIONS, keep_samples=True), Silent(), prepare=lambda: None
        )
    assert not out.exists()


# The time that is left


def test_the_time_left_is_estimated_from_the_work_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("aol.lab.train.progress.time.monotonic", lambda: clock[0])
    runs = [settings(epochs=10, seed=0), settings(epochs=30, seed=1)]
    tally = Tally(runs, runs, opened(runs))
    tally.begin(runs[:1], 0)
    clock[0] += 5.0
    tally.epoch(runs[:1], 5)
    status = tally.status()
    assert (status.done, status.total, status.share) == (0, 2, 5 / 40)
    assert status.seconds_left == pytest.approx(35.0)
    tally.finish(runs)
    assert tally.status() == Status(2, 2, 1.0, None)
    assert [duration(seconds) for seconds in (0.2, 61, 7260)] == ["1 s", "1 min", "2 h 1 min"]
