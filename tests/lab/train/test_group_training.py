"""One group of runs: how many threads train it on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aol.lab.train import group_training
from aol.lab.train.groups import ExecutionOptions
from tests.support.tiny_runs import CPU, PLAIN, settings, tiny_pair


@pytest.mark.parametrize(
    ("net", "given", "used"), [("cnn", None, 1), ("cnn", "3", 3), (PLAIN, None, 3)], ids=["small", "chosen", "large"]
)
def test_a_small_network_is_trained_with_one_thread_unless_the_user_chose(
    net: str, given: str | None, used: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is computed with three threads here: those of OpenMP do not outlive the forks of other tests.
    monkeypatch.setattr(group_training, "_train_group", lambda *_: torch.get_num_threads())
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    run, before = settings(net=net), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = group_training.train_group([run], {run.data: tiny_pair()}, ExecutionOptions(CPU), tmp_path, None)  # type: ignore[arg-type]
        assert found == used
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
