"""How several runs become one network: what is chosen, and that it changes nothing else."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

from aol.lab.engine import OfflineLoop, stacking
from aol.lab.engine.stacking import ALONE, Case, Choice, choose, stacking_of_group
from aol.lab.nets import STACKINGS
from tests.support.tiny_runs import CPU, settings, tiny_pair

CASE = Case(settings(), (1, 8, 8), 3, CPU, samples=10**6)
WAYS = ("grouped", "vmap", "streams")
GPU = replace(CASE, device=torch.device("cuda"))


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacking, "_CHOSEN", {})


def pretend(monkeypatch: pytest.MonkeyPatch, taken: dict[str, float]) -> list[tuple[int, str]]:
    """A GPU on which steps take so many milliseconds; ways without a time are not possible."""
    asked: list[tuple[int, str]] = []

    def steps(case: Case, number: int, way: str) -> tuple[float, torch.Tensor]:
        asked.append((number, way))
        return taken[ALONE if number == 1 else way], torch.ones(number)

    monkeypatch.setattr(stacking, "_steps", steps)
    monkeypatch.setattr(stacking, "_obstacle", lambda net, way, case: None if way in taken else f"no {way}")
    return asked


@pytest.mark.parametrize(
    ("taken", "best"),
    [
        ({ALONE: 4.0, "grouped": 2.0, "vmap": 1.0, "streams": 3.0}, "vmap"),
        ({ALONE: 4.0, "streams": 3.0}, "streams"),
        ({ALONE: 1.0, "grouped": 2.0, "vmap": 3.0, "streams": 1.5}, ALONE),
    ],
)
def test_the_quickest_way_is_taken_on_a_gpu(
    taken: dict[str, float], best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = pretend(monkeypatch, taken)
    found = choose(GPU, 20)
    assert found == Choice(best, "that is quicker here" if best == ALONE else None, taken)
    assert found.gain == taken[ALONE] / taken[best]
    assert asked == [(1, "grouped"), *((16, way) for way in WAYS if way in taken)]
    assert choose(GPU, 17) is found  # not measured again
    assert len(asked) == len(taken)


def test_compiling_is_tried_for_long_training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretend(monkeypatch, {ALONE: 4.0, "streams": 2.0, "compiled": 1.9, "compiled-vmap": 1.0})
    run = settings(epochs=200, batch_size=10)
    short, long, longer = (replace(GPU, run=run, samples=samples) for samples in (700, 720, 750))
    assert choose(short, 16).stacking == "streams"  # 16 × 200 × 70 steps of 2 ms: 448 s, of which 0.4 are 179
    assert choose(long, 16).stacking == "compiled"  # 461 s; 438 s with what is compiled already
    assert choose(longer, 16).stacking == "compiled-vmap"
    assert [way for _, way in asked if way.startswith("compiled")] == ["compiled", "compiled", "compiled-vmap"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_all_ways_are_tried_at_any_precision(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretend(monkeypatch, dict.fromkeys((ALONE, *STACKINGS), 4.0))
    monkeypatch.setattr(stacking, "_has_kernels", lambda net, case: False)
    choose(replace(GPU, run=settings(precision=precision)), 16)
    assert [way for _, way in asked[1:]] == list(STACKINGS)


def test_a_group_that_exists_is_never_trained_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {ALONE: 1.0, "vmap": 3.0, "streams": 1.5})
    assert choose(GPU, 4).stacking == ALONE
    assert stacking_of_group(GPU, 4) == "streams"  # the quickest of the others
    assert stacking_of_group(GPU, 4, "vmap") == "vmap"
    assert stacking_of_group(CASE, 4) == stacking_of_group(CASE, 4, ALONE) == "vmap"  # not timed: the first possible


def test_nothing_is_measured_where_the_answer_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretend(monkeypatch, {ALONE: 1.0, "vmap": 2.0, "streams": 3.0})
    assert choose(GPU, 4, "streams") == Choice("streams")
    assert choose(GPU, 4, ALONE) == Choice(ALONE)
    assert choose(GPU, 1) == Choice(ALONE)
    assert choose(GPU, 4, "grouped") == Choice(ALONE, "no grouped")
    assert choose(CASE, 4) == Choice(ALONE, "no grouped")  # a CPU stacks by groups or not at all
    torch.use_deterministic_algorithms(True)
    try:
        assert choose(GPU, 8).stacking == ALONE  # what was not compared with a single run here is not taken
    finally:
        torch.use_deterministic_algorithms(False)
    assert not asked


def test_a_short_training_is_not_worth_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretend(monkeypatch, {ALONE: 4.0, "grouped": 8.0, "vmap": 1.0})
    short = replace(GPU, samples=15)  # 16 runs, 5 epochs of a step of 4 ms
    assert choose(short, 16) == Choice("grouped")
    assert asked == [(1, "grouped")]
    pretend(monkeypatch, {ALONE: 4.0, "vmap": 1.0})
    assert choose(short, 8).stacking == ALONE


def test_a_way_that_fails_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {ALONE: 4.0, "grouped": 1.0, "streams": 2.0})
    inside = stacking._steps

    def fails(case: Case, number: int, way: str) -> tuple[float, torch.Tensor]:
        if way == "grouped" and number > 1:
            raise torch.OutOfMemoryError("too little memory")
        return inside(case, number, way)

    monkeypatch.setattr(stacking, "_steps", fails)
    assert choose(GPU, 4).stacking == "streams"


@pytest.mark.parametrize("loss", [float("nan"), 2.0])
def test_a_way_that_does_not_learn_as_a_single_run_is_not_taken(loss: float, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {ALONE: 4.0, "grouped": 1.0, "streams": 2.0})
    inside = stacking._steps

    def strays(case: Case, number: int, way: str) -> tuple[float, torch.Tensor]:
        taken, losses = inside(case, number, way)
        return taken, losses * loss if way == "grouped" and number > 1 else losses

    monkeypatch.setattr(stacking, "_steps", strays)
    with pytest.warns(UserWarning, match="stacking='grouped' is not used"):
        assert choose(GPU, 4).stacking == "streams"


def test_steps_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacking, "_REPLAYS", 1)
    _, alone = stacking._steps(CASE, 1, "grouped")
    for way in WAYS:
        taken, losses = stacking._steps(CASE, 2, way)
        assert taken > 0.0
        torch.testing.assert_close(losses[:1], alone, rtol=1e-3, atol=1e-3)
    assert stacking._obstacle(CASE.network(), "vmap", CASE) is None
    vit = replace(CASE, run=settings(net="vit"))
    assert choose(vit, 2).reason == "module 'blocks.0.norm1' is a LayerNorm, for which no stacked layer is known"
    assert choose(vit, 2, "vmap") == Choice("vmap")


@pytest.mark.parametrize("net", ["cnn", "vit"])
def test_runs_do_not_depend_on_the_way(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    runs = [settings(net=net, epochs=2, weighting="aol", average=0.5, seed=seed) for seed in range(3)]
    losses = []
    for way in STACKINGS if net == "cnn" else WAYS[1:]:
        loop = OfflineLoop(runs, tiny_pair(), device=CPU, stacking=way)
        while not loop.done:
            loop.run_epoch()
        losses.append(loop.history.epoch("train_loss"))
    for run in range(3):
        alone = OfflineLoop([runs[run]], tiny_pair(), device=CPU)
        while not alone.done:
            alone.run_epoch()
        for loss in losses:
            torch.testing.assert_close(loss[:, run], alone.history.epoch("train_loss")[:, 0], rtol=1e-3, atol=1e-3)
