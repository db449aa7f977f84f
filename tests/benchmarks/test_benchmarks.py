"""The benchmarks run at small sizes, print their tables and write records that say what they belong to."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from aol.lab.data.images import ImageSet, Pair
from tests.support.random_images import random_pair

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
KNOWN = {"cpu", "cores", "threads", "load_before", "system", "python", "torch", "numpy", "aol"}


def test_ages_are_measured_beside_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    out = tmp_path / "new" / "ages.json"
    sizes = ["--samples", "3000", "--compared", "500", "--epochs", "4", "--batch", "1024", "--repeats", "2"]
    assert importlib.import_module("sample_ages").main([*sizes, "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["machine"].keys() == KNOWN
    (pair,) = record["compared"]
    assert pair["history"]["state_bytes"] == 4 * 500 * 4
    assert pair["library"]["state_bytes"] < pair["history"]["state_bytes"]
    assert "all epochs" in capsys.readouterr().out


def test_the_tables_of_ages_are_those_of_their_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    record = json.loads((BENCHMARKS / "results" / "sample_ages.json").read_text())
    assert importlib.import_module("sample_ages").text(record) in (BENCHMARKS / "README.md").read_text()


def test_few_seeds_are_simulated(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    few_seeds = importlib.import_module("few_seeds")
    monkeypatch.setattr(few_seeds, "TIMES", 200)
    few_seeds.main()
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| 1")]
    assert [row[:2] for row in rows[1:4]] == [["10", "on its own"], ["10", "on all"], ["10", "on the others"]]
    made_up = [float(row[2]) for row in rows[1:4]]
    assert made_up[0] > made_up[1] > abs(made_up[2])
    covered, widened = ([int(row[place].rstrip("%")) for row in rows[1:4]] for place in (3, 4))
    assert widened[2] > 90 > covered[0]


def test_networks_as_one_are_timed_beside_the_plain_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stacked = importlib.import_module("benchmarks.stacked")
    out = tmp_path / "stacked.json"
    assert stacked.main(["--runs", "1", "--scale", "0.002", "--workers", "0", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["ratio"] == pytest.approx(row["plain_seconds"] / row["seconds"])
    assert "times as fast" in capsys.readouterr().out


def table_of_clusters(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return 6 classes of 100 samples, as a table of KEEL."""
    generator = np.random.default_rng(0)
    labels = np.arange(6).repeat(100)
    return generator.standard_normal((6, 8))[labels] + 1.2 * generator.standard_normal((600, 8)), labels


def test_losses_are_timed_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    losses = importlib.import_module("losses")
    monkeypatch.setattr(losses, "keel", table_of_clusters)
    monkeypatch.setattr(losses, "STEPS", 40)
    monkeypatch.setattr(losses, "PERIOD", 10)
    out = tmp_path / "losses.json"
    words = ["--seeds", "2", "--repeats", "2", "--out", str(out)]
    assert losses.main([*words, "--only", "letter, imbalance 100", "memory", "cost"]) == 0
    assert losses.main([*words, "--only", "stream of letters"]) == 0
    record = json.loads(out.read_text())
    cases = {(case["set"], case["method"]): case for case in record["cases"]}
    assert len(cases) == 2 * len(losses.METHODS) + 1 + len(losses.MEMORIES)
    assert all(0 <= value <= 1 for case in cases.values() for name in losses.MEASURES for value in case[name])
    plain, known, counted = (cases["letter, imbalance 100", losses.METHODS[i]]["balanced"] for i in (0, 2, 3))
    assert min(known) > max(plain)
    assert counted == pytest.approx(known, abs=0.05)
    assert record["cost"]["10"]["cross-entropy"][0] > 0
    assert "counted minus known" in capsys.readouterr().out


def test_the_tables_of_the_losses_are_those_of_their_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    losses = importlib.import_module("losses")
    record = json.loads((BENCHMARKS / "results" / "losses.json").read_text())
    page = (BENCHMARKS.parent / "docs" / "how-to" / "losses.md").read_text()
    for table in (losses.costs, losses.gains, losses.counted, losses.memories):
        assert table(record) in page


def test_seeds_beyond_counts_are_lines_and_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    beyond = importlib.import_module("beyond_counts")
    monkeypatch.setattr(beyond.losses, "keel", table_of_clusters)
    words = ["--only", "letter, imbalance 100", "yeast", "--out", str(tmp_path / "new" / "lines.jsonl")]
    assert beyond.main([*words, "--seeds", "1"]) == 0
    first = (tmp_path / "new" / "lines.jsonl").read_text()
    assert beyond.main([*words, "--seeds", "2"]) == 0
    lines = beyond.read(tmp_path / "new" / "lines.jsonl")
    assert (tmp_path / "new" / "lines.jsonl").read_text().startswith(first)
    assert sorted((line["set"], line["seed"]) for line in lines) == [
        (name, seed) for name in ("letter, imbalance 100", "yeast") for seed in (100, 101)
    ]
    assert "class age" in capsys.readouterr().out


def test_runs_of_one_stack_skip_and_leave_out_beyond_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    beyond = importlib.import_module("beyond_counts_gpu")
    generator = torch.Generator().manual_seed(0)
    shown = torch.randint(256, (10, 3, 8, 8), generator=generator)

    def pair_of_ten_pictures(*_: object, **__: object) -> Pair[ImageSet]:
        """Return noisy copies of a picture for each class."""
        pair = random_pair(train=320, test=50, size=8)
        parts = [replace(part, images=(0.8 * shown[part.labels] + 0.2 * part.images).byte())
                 for part in (pair.train, pair.test)]  # fmt: skip
        return replace(pair, train=parts[0], test=parts[1], augmentation=replace(pair.augmentation, pad=0, flip=False))

    labels = pair_of_ten_pictures().train.labels
    moved = torch.randperm(320, generator=generator)[:32]
    np.savez(tmp_path / "cifar10n.npz", aggre_label=labels.scatter(0, moved, (labels[moved] + 1) % 10).byte())
    small = {"load_named": pair_of_ten_pictures, "NET": "cnn", "BATCH": 16, "EPOCHS": 8, "SKIPPING": 7,
             "SEEDS": (100, 101)}  # fmt: skip
    for name, value in small.items():
        monkeypatch.setattr(beyond, name, value)
    settings = {"none": {}, "age": {"T": 3}, "mean loss": {"T": 3}, "label-error score": {"T": 3}}
    monkeypatch.setitem(beyond.SECOND["leave out"], "CIFAR-10N, aggregate", settings)
    out = tmp_path / "lines.jsonl"
    words = ["--only", "CIFAR-10", "CIFAR-10N, aggregate", "--device", "cpu", "--data-dir", str(tmp_path)]
    assert beyond.main([*words, "--out", str(out)]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["seed"] for line in lines] == [100, 101, 100, 101]
    for line in lines:
        runs = {run["method"]: run for run in line["runs"]}
        if line["candidate"] == "skip":
            saved = {method: run["saved"] for method, run in runs.items()}
            assert saved["none"] == 0
            assert saved["age"] == pytest.approx(0.75 * 5 / 8, abs=0.05)  # from the third epoch on, but the last
            assert 0.1 < saved["InfoBatch"] < 0.75 * 6 / 8
            assert saved["at random"] == pytest.approx(saved["age"], abs=1 / 8)
            assert saved["shorter schedule"] == pytest.approx(saved["age"], abs=1 / 16)
            assert min(run["accuracy"] for run in runs.values()) > 0.9
        else:
            assert runs.pop("none")["left_out"] == 0
            assert len({run["left_out"] for run in runs.values()}) == 1
            assert all(0.05 < run["left_out"] < 0.2 and run["mislabelled"] > 0.5 for run in runs.values())


def test_the_tables_beyond_counts_are_those_of_their_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    pages, beyond = (importlib.import_module(name) for name in ("beyond_counts_page", "beyond_counts"))
    lines = beyond.read(BENCHMARKS / "results" / "beyond_counts.jsonl")
    page = (BENCHMARKS.parent / "docs" / "beyond-counts.md").read_text()
    assert pages.verdicts(lines) in page
    assert all(pages.details(candidate, lines) in page for candidate in {line["candidate"] for line in lines})
