"""One group of runs: how many threads train it on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aol.engine.loop import Loop
from aol.runs.driver import train
from aol.runs.groups import ExecutionOptions
from aol.runs.progress import Silent
from aol.runs.store import Store
from tests.support.tiny_runs import CPU, settings, tiny_pair


@pytest.mark.parametrize(
    ("net", "given", "used"), [("cnn", None, 1), ("cnn", "3", 3), ("vit", None, 3)], ids=["small", "chosen", "large"]
)
def test_a_small_network_is_trained_with_one_thread_unless_the_user_chose(
    net: str, given: str | None, used: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, run_epoch, before = [], Loop.run_epoch, torch.get_num_threads()

    def counted(loop: Loop) -> None:
        seen.append(torch.get_num_threads())
        run_epoch(loop)

    monkeypatch.setattr(Loop, "run_epoch", counted)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    torch.set_num_threads(3)
    try:
        run = settings(epochs=1, net=net)
        train([run], Store(tmp_path), lambda _: {run.data: tiny_pair()}, ExecutionOptions(CPU), Silent())
        assert seen == [used]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
