from __future__ import annotations

import json
from pathlib import Path

import pytest

from aol.cli import main
from aol.lab.bench import measure


def test_flags_reach_the_measurement_and_figures_are_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, object] = {}

    def measured(figures: measure.Figures, **given: object) -> None:
        asked.update(given)
        figures.add("one run", 1234.0, "images/s", 1)

    monkeypatch.setattr(measure, "measure", measured)
    words = ["bench", "--device", "cpu", "--runs", "1,4", "--scale", "0.02", "--epochs", "2", "--workers", "0"]
    assert main([*words, "--json", "--out", str(tmp_path / "figures.json")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["data"] == "0.02 of CIFAR-10's size, imbalance 100"
    assert told["rows"][0]["value"] == 1234.0
    assert {name: asked[name] for name in ("runs", "scale", "epochs", "workers")} == {
        "runs": [1, 4], "scale": 0.02, "epochs": 2, "workers": 0,
    }  # fmt: skip
    assert (tmp_path / "figures.json").is_file()
    assert main(["bench", "--device", "cpu"]) == 0
    assert "1,234" in capsys.readouterr().out
    assert asked["runs"] == (1, 2)


@pytest.mark.parametrize(
    "words",
    [["--scale", "0"], ["--runs", "0"], ["--runs", "1,x"], ["--device", "tpu"], ["--out", f"{__file__}/x"],
     ["--out", "."], ["--images", "3"], ["--make"], ["--large", "--make"]],
)  # fmt: skip
def test_wrong_words_are_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_that_may_not_be_written_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere
    assert main(["bench", "--out", str(tmp_path / "bench.json")]) == 2
    assert "permission denied" in capsys.readouterr().err
