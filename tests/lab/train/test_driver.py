"""The driver: what it trains, in which groups, how it stops, and what it does when memory is short."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aol.lab.engine.loop import Loop
from aol.lab.engine.source import AnyPair
from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.train import group_training
from aol.lab.train.driver import Job, Outcome, train
from aol.lab.train.folder import RunGroup, new_group
from aol.lab.train.group_training import Context, ExecutionOptions
from aol.lab.train.progress import Progress, Stop
from aol.records.store import Store
from tests.support.running import told
from tests.support.tiny_runs import CPU, settings, stream_settings, tiny_pair

OPTIONS = ExecutionOptions(CPU, together=2)


def opened(runs: Sequence[Settings]) -> dict[str, AnyPair]:
    return {run.data: tiny_pair() for run in runs}


class Heard(Progress):
    def __init__(self) -> None:
        super().__init__()
        self.tallies: list[tuple[int, float]] = []
        self.groups: list[tuple[int, ...]] = []

    def begin(self, runs: Sequence[Settings], epoch: int, doing: str) -> None:
        self.groups.append(tuple(run.seed for run in runs))
        super().begin(runs, epoch, doing)

    def show(self, doing: str) -> None:
        self.tallies.append((self.done, self.share))


def runs_of(seeds: Sequence[int] = range(5), **given: object) -> list[Settings]:
    return [settings(epochs=2, seed=seed, **given) for seed in seeds]


def trained(runs: Sequence[Settings], folder: Path, options: ExecutionOptions = OPTIONS, **more: object) -> Outcome:
    return train(runs, Store(folder), opened, options, Heard(), **more)  # type: ignore[arg-type]


def test_runs_that_do_not_fit_together_are_shared_out_evenly(tmp_path: Path) -> None:
    runs, busy = runs_of(range(10)), list[RunGroup]()
    job = Job(runs, Context(Store(tmp_path), opened(runs), replace(OPTIONS, together=4), Progress()))
    while group := job.next_group(busy):
        busy.append(group)
    assert [[run.seed for run in group.runs] for group in busy] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_only_what_is_missing_or_damaged_is_trained(tmp_path: Path) -> None:
    runs, heard = runs_of(), Heard()
    assert train(runs, Store(tmp_path), opened, OPTIONS, heard).trained == 5
    assert heard.groups == [(0, 1), (2, 3), (4,)]
    assert heard.tallies[-1] == (5, 1.0)
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


# Runs together


def begun(runs: Sequence[Settings], store: Store) -> Path:
    """A group as a process leaves it that is killed before its first checkpoint; returns that of the checkpoint."""
    group = new_group(runs, store)
    group.folder.mkdir(parents=True)
    (group.folder / "group.json").write_text(json.dumps({"runs": [run.as_dict() for run in runs]}))
    return group.checkpoint


def test_a_group_without_a_checkpoint_is_planned_again(tmp_path: Path) -> None:
    runs, heard = runs_of(range(3)), Heard()
    begun(runs, Store(tmp_path))
    assert train(runs, Store(tmp_path), opened, OPTIONS, heard).trained == 3
    assert heard.groups == [(0, 1), (2,)]
    assert not (tmp_path / "work").exists()


def test_groups_of_runs_that_are_not_asked_for_are_left_unless_they_are_complete(tmp_path: Path) -> None:
    store = Store(tmp_path)
    trained(runs_of([0]), tmp_path)
    complete, others = begun(runs_of([0]), store), begun(runs_of([7]), store)
    others.write_bytes(b"of another process")
    (tmp_path / "work" / "unknown").mkdir()  # its process was killed while it made it
    trained(runs_of([1]), tmp_path)
    assert not complete.parent.exists()
    assert [path.name for path in (tmp_path / "work").iterdir()] == [others.parent.name]


def test_large_networks_that_cannot_be_stacked_are_trained_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aol.lab.train.group_training.obstacle", lambda net: "its layers are of another kind")
    heard = Heard()
    train(runs_of([0, 1]), Store(tmp_path), opened, OPTIONS, heard)
    assert heard.groups == [(0,), (1,)]
    assert heard.said[0] == "Runs are trained one after the other: its layers are of another kind."


# Stopping


def test_a_time_limit_keeps_what_was_done_and_the_rest_is_trained_later(tmp_path: Path) -> None:
    runs = [settings(epochs=60, seed=seed) for seed in (0, 1)]
    trained(runs, tmp_path / "straight")
    outcome = trained(runs, tmp_path / "parts", replace(OPTIONS, minutes=0.02 / 60))
    assert outcome == Outcome(trained=0, stopped=True)
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
    assert list(outcome.untrained) == [too_large.run_id]
    assert "no room" in outcome.untrained[too_large.run_id]
    assert not (tmp_path / "work").exists()


# Folders


@pytest.mark.parametrize("how", ["moved", "deleted"])
def test_a_folder_that_goes_away_while_runs_train_stops_them_with_one_sentence(how: str, tmp_path: Path) -> None:
    out, moved = tmp_path / "out", tmp_path / "moved"
    straight = tmp_path / "straight"
    runs = [settings(epochs=4, seed=seed) for seed in (0, 1)]

    class Away(Heard):
        def reach(self, runs: Sequence[Settings], epoch: float, doing: str) -> None:
            if epoch == 2 and out.exists():
                out.rename(moved)
                if how == "deleted":
                    shutil.rmtree(moved)

    options = replace(OPTIONS, checkpoint_seconds=0.0)
    with pytest.raises(RuntimeError, match="was moved or deleted while"):
        train(runs, Store(out), opened, options, Away())
    assert not out.exists()  # nothing is split over two places
    if how == "moved":
        assert train(runs, Store(moved), opened, options, heard := Heard()).trained == 2
        assert "Continuing 2 runs after epoch 1." in heard.said
        trained(runs, straight)
        assert told(moved) == told(straight)


def test_what_is_wrong_with_settings_or_data_is_told_before_anything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    runs = [settings(net="resnet34")]
    with pytest.raises(WrongSettingsError, match="does not fit the images"):
        train(runs, Store(out), opened, OPTIONS, Progress(), prepare=lambda: None)
    with pytest.raises(WrongSettingsError, match="--keep-samples"):
        trained([stream_settings()], out, replace(OPTIONS, keep_samples=True), prepare=lambda: None)
    assert not out.exists()
