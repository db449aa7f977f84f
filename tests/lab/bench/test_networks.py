"""`aol bench --nets`: one run and several as one, with the ratios that follow."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from aol.cli import main
from aol.lab.bench import measure, networks
from aol.lab.engine.stacking import ALONE, Case, Choice

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "random_pair", partial(measure.random_pair, size=8, channels=3))
    monkeypatch.setattr(measure, "seconds_per_epoch", lambda *_, epochs, **__: [2.0] * epochs)


def _measured(runs: tuple[int, ...]) -> dict[str, float]:
    figures = measure.Figures(CPU, "random images")
    networks.measure(figures, names=["cnn"], runs=runs, scale=0.02, epochs=1, workers=0)
    return {row.what: row.value for row in figures.rows}


def test_ratios_follow_from_the_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []

    def taken(_: object, number: int, *, net: str, stacking: str) -> tuple[float, None]:
        asked.append((number, stacking))
        return 0.5 if number == 1 else 2.0, None

    def chosen(case: Case, number: int) -> Choice:
        assert (case.run.net, case.shape, number) == ("cnn", (3, 8, 8), 16)
        return Choice("vmap", None, {ALONE: 4.0, "vmap": 1.0})

    monkeypatch.setattr(measure.Bench, "time_epochs", taken)
    monkeypatch.setattr(networks, "choose", chosen)
    rows = _measured(runs=(1, 16))
    assert asked == [(1, ALONE), (16, "vmap")]
    assert rows["cnn, one run, straightforward loop over engine"] == 4.0
    assert rows["cnn, one run × 200 epochs, from that epoch"] == 100.0
    assert rows["cnn, 16 runs, one after the other"] == 8.0
    assert rows["cnn, 16 runs as one (vmap)"] == 2.0
    assert rows["cnn, 16 runs as one, over one after the other"] == 4.0
    assert rows["cnn, 16 runs as one, straightforward loop over engine"] == 16.0
    assert rows["cnn, 16 runs, a training step of one of them, vmap"] == 1.0


def test_flops_of_an_epoch_are_those_of_its_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.Bench, "time_epochs", lambda *_, **__: (1.0, None))
    monkeypatch.setattr(networks, "floors", lambda *_, **__: {"FLOPs": 3e12, "bytes": 3e9})
    rows = _measured(runs=(1,))
    trained = measure.Bench(measure.Figures(CPU, ""), scale=0.02, epochs=1, imbalance=200.0).images
    assert rows["cnn, one run, FLOPs of an epoch"] == pytest.approx(3 * trained + trained + 200)
    assert rows["cnn, one run, bytes of an epoch"] == pytest.approx(3 * trained + trained + 200)


def test_the_command_measures_networks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "networks.json"
    words = ["bench", "--nets", "cnn", "--runs", "2", "--device", "cpu", "--scale", "0.01", "--out", str(file)]
    assert main(words) == 0
    record = json.loads(file.read_text())
    assert record["data"] == "0.01 of CIFAR-10's size, imbalance 200"
    assert "| cnn, 2 runs as one (grouped) |" in capsys.readouterr().out
    assert all(row["value"] > 0 for row in record["rows"])
