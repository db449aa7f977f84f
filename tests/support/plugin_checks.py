"""What tests of several hosts ask: whether two ages hold the same, and whether an example does what examples do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import aol
from aol.records.record import read_run


def same(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors hold the same, to the last bit, also where there is no value."""
    return torch.equal(first.nan_to_num(-1.0), second.nan_to_num(-1.0))


def same_state(first: aol.SampleAges, second: aol.SampleAges) -> bool:
    """Return whether two ages hold the same, to the last bit."""
    one, two = first.state_dict(), second.state_dict()
    extra = one.pop("_extra_state") == two.pop("_extra_state")
    return extra and all(same(value, two[key]) for key, value in one.items())


def check_same_record(one: Path, other: Path) -> None:
    """Compare two records: ages exactly as written, what a network answered up to rounding."""
    here, there = read_run(one), read_run(other)
    assert here.finished
    assert here.epochs.tolist() == there.epochs.tolist()
    assert here.curves.keys() == there.curves.keys()
    for name in here.curves.keys() - {"seconds"}:
        assert here.curves[name] == pytest.approx(there.curves[name], rel=1e-4), name
    assert here.over_time["age"].tolist() == there.over_time["age"].tolist()
    for name, values in here.over_time.items():
        assert values == pytest.approx(there.over_time[name], rel=1e-3, abs=1e-4, nan_ok=True), name


def check_two_processes_are_one(one: dict[str, Tensor], first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    """Compare one process with each of two: ages exactly, losses and networks up to rounding."""
    for key in ("age", "ema"):
        assert same(first[key], second[key])
        assert same(one[key], first[key])
    assert one["ema"].nan_to_num(0.0).max() > 1
    torch.testing.assert_close(one["losses"], first["losses"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(one["weights"], first["weights"], atol=1e-5, rtol=1e-4)


def check_example(main: Callable[[list[str]], int], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run an example of two seeds, which must print its table; wrong words must get one clear line."""
    assert main([*words, "--seeds", "2"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    for measure in ("last epoch", "tail mean"):
        assert any(line.startswith(measure) and "difference to none" in line for line in lines)
    for method in ("none", "frequency^-0.5", "AoL class", "AoL sample", "AoL class, resampled"):
        assert sum(line.strip().startswith(f"{method}  ") for line in lines) == 2
    assert [line.split(",")[0] for line in printed.err.splitlines()] == ["seed 1 of 2", "seed 2 of 2"]

    with pytest.raises(SystemExit) as stopped:
        main(["--seeds", "1"])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--seeds: must be a whole number of 2 or more, not '1'" in line
