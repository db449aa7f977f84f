"""Several runs as one on a CUDA device: what is trained together is the runs alone."""

from __future__ import annotations

import pytest
import torch

from aol.lab.data import open_data
from aol.lab.engine.loop import Loop
from aol.lab.settings import Settings, Value, grid

CUDA = torch.device("cuda")


def losses(runs: list[Settings]) -> torch.Tensor:
    """The training losses of runs that are trained as one, [epochs, R]."""
    loop = Loop(runs, open_data("digits"), device=CUDA)
    while not loop.done:
        loop.run_epoch()
    return loop.history.epoch("train_loss")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_captured_runs_together_are_the_runs_alone(precision: str) -> None:
    common: dict[str, Value] = {"net": "cnn", "epochs": 2, "lr": 0.01, "warmup": 0, "precision": precision}
    runs = grid(common, weighting=["none", "aol"])
    alone = torch.cat([losses([run]) for run in runs], 1)
    torch.testing.assert_close(losses(runs), alone, rtol=2e-2, atol=1e-2)


def test_a_network_that_cannot_be_grouped_is_captured_alone() -> None:
    run = grid({"net": "tests.support.tiny_runs:plain", "epochs": 4, "lr": 0.01, "warmup": 0}, seed=[0])
    found = losses(run)[:, 0]
    assert found.isfinite().all()
    assert found[-1] < found[0]
