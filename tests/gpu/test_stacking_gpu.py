"""Several runs as one on a CUDA device: by any way the runs are the same, and what is chosen was the quickest."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from aol.lab.data import open_data
from aol.lab.engine import OfflineLoop, grid
from aol.lab.engine.stacking import ALONE, Case, choose
from aol.lab.nets import STACKINGS, ByRun
from aol.lab.settings import Settings, Value
from tests.lab.nets.test_by_run import BUILD, RUNS, several, shown
from tests.support.small_nets import labels, losses, sgd

CUDA = torch.device("cuda")


def trained(runs: list[Settings], stacking: str = "grouped") -> OfflineLoop:
    loop = OfflineLoop(runs, open_data("digits"), device=CUDA, stacking=stacking)
    while not loop.done:
        loop.run_epoch()
    return loop


def four(net: str, precision: str) -> list[Settings]:
    common: dict[str, Value] = {"net": net, "epochs": 2, "lr": 0.01, "warmup": 0, "precision": precision}
    return grid(common, weighting=["none", "aol"], seed=[0, 1])


@functools.cache
def alone(net: str, precision: str) -> Tensor:
    """The training losses of each run by itself, [epochs, R]."""
    return torch.stack([trained([run]).history.epoch("train_loss")[:, 0] for run in four(net, precision)], 1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("net", "stacking"), [*(("cnn", each) for each in STACKINGS), *(("vit", each) for each in STACKINGS[1:])]
)
def test_captured_runs_do_not_depend_on_the_way(net: str, stacking: str, precision: str) -> None:
    loss = trained(four(net, precision), stacking).history.epoch("train_loss")
    torch.testing.assert_close(loss, alone(net, precision), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", BUILD)
def test_a_diverging_run_does_not_touch_its_neighbours(name: str, streams: bool) -> None:
    def logits(poisoned: bool) -> torch.Tensor:
        joint = ByRun(several(name, torch.float32), streams=streams).to(CUDA).channels_last()
        optimiser = sgd(joint)
        for step in range(2):
            if poisoned:
                next(joint.parameters()).data[1] = torch.nan
            optimiser.zero_grad()
            x, y = shown(name, step, torch.float32).to(CUDA), labels(RUNS, step).to(CUDA)
            losses(joint(x), y).sum().backward()
            optimiser.step()
        return joint(x).detach()[[0, 2]]

    clean = logits(poisoned=False)
    assert clean.isfinite().all()
    torch.testing.assert_close(logits(poisoned=True), clean, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_quickest_way_is_chosen(precision: str) -> None:
    run = Settings(net="vit", batch_size=32, epochs=20, precision=precision)  # too short for compiling
    found = choose(Case(run, (3, 16, 16), 10, CUDA, samples=10_000), 4)
    assert set(found.timed) == {ALONE, "vmap", "streams"}
    assert found.stacking == min(found.timed, key=lambda each: found.timed[each])


def test_kernels_are_chosen_where_they_apply() -> None:
    found = choose(Case(Settings(precision="bf16"), (3, 32, 32), 10, CUDA, samples=10_000), 4)
    assert (found.stacking, found.timed) == ("grouped", {})
