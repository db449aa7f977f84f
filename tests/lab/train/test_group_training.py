"""One group of runs: how many threads train it on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aol.lab.train import group_training
from aol.lab.train.folder import new_group
from aol.lab.train.group_training import Context, ExecutionOptions
from aol.lab.train.progress import Progress, Stop
from aol.records.store import Store
from tests.support.tiny_runs import CPU, PLAIN, settings, tiny_pair


@pytest.mark.parametrize(
    ("net", "given", "used"), [("cnn", None, 1), ("cnn", "3", 3), (PLAIN, None, 3)], ids=["small", "chosen", "large"]
)
def test_a_small_network_is_trained_with_one_thread_unless_the_user_chose(
    net: str, given: str | None, used: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used_here: list[int] = []

    def made(*_: object) -> None:  # nothing is computed: threads of OpenMP do not outlive the forks of other tests
        used_here.append(torch.get_num_threads())
        raise InterruptedError

    monkeypatch.setattr(group_training, "make_loop", made)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    run, before = settings(net=net), torch.get_num_threads()
    store = Store(tmp_path)
    context = Context(store, {run.data: tiny_pair()}, ExecutionOptions(CPU), Progress())
    torch.set_num_threads(3)
    try:
        with pytest.raises(InterruptedError):
            group_training.train_group(new_group([run], store), context, Stop())
        assert used_here == [used]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
