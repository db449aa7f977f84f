"""The engine on a CUDA device: a captured step is the step, and many runs are the runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aol.lab.data import open_data
from aol.lab.engine import learner
from aol.lab.engine import loop as loops
from aol.lab.engine.loop import Loop
from aol.lab.engine.passes import Captured
from aol.lab.engine.source import data_of, orders
from aol.lab.nets import fused
from aol.lab.nets.fused import FusedStack
from aol.lab.settings import Settings, Value, grid
from aol.lab.train.folder import load_checkpoint, save_checkpoint
from tests.support.random_images import random_pair

CUDA = torch.device("cuda")


def run(common: dict[str, Value], **varied: list[Value]) -> Loop:
    loop = Loop(grid({"epochs": 3, "net": "cnn", "warmup": 0, **common}, **varied), open_data("digits"), device=CUDA)  # type: ignore[arg-type]
    while not loop.done:
        loop.run_epoch()
    return loop


@pytest.fixture
def same_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the orders of samples on the CPU: a seed gives others on a device, which moves margins by up to 0.08."""

    def on_cpu(runs: list[Settings], weight: torch.Tensor, epoch: int) -> torch.Tensor:
        return orders(runs, weight.cpu(), epoch).to(weight.device)

    monkeypatch.setattr(loops, "orders", on_cpu)


@pytest.mark.usefixtures("same_orders")
@pytest.mark.parametrize(("scenario", "signal"), [("offline", "eval"), ("arrival", "before"), ("stream", "before")])
def test_margins_on_the_device_are_those_of_the_cpu(scenario: str, signal: str) -> None:
    """Few steps, so that rounding changes few answers: what follows from the answers must be nearly the same."""
    common: dict[str, Value] = {
        "scenario": scenario, "signal": signal, "fraction": 0.5, "epochs": 3, "net": "cnn", "warmup": 0, "lr": 1e-4,
        "augment": False,
    }  # fmt: skip
    kinds: list[Value] = ["none", "counts", "age", "error", "probability"]
    runs = grid(common, margin=kinds, margin_steps=[None, 2], gain=[0.5])
    found = []
    for device in (CUDA, torch.device("cpu")):
        loop = Loop(runs, open_data("digits"), device=device)
        while not loop.done:
            loop.run_epoch()
        found.append(loop)
    here, there = (loop.history.by_class("offset") for loop in found)
    soft = [row for row, run in enumerate(runs) if run.margin in ("counts", "probability")]
    torch.testing.assert_close(here[:, soft], there[:, soft], rtol=0.05, atol=0.02)
    # Answers of a network that has hardly learnt are nearly ties, which rounding decides.
    assert (here - there).abs().mean() < 0.05 * there.abs().mean()
    assert (found[0].history.by_class("offset")[-1].abs().amax(1) > 0.01).sum() >= 4


@pytest.mark.usefixtures("same_orders")
@pytest.mark.parametrize("scenario", ["offline", "arrival"])
def test_weights_by_sample_on_the_device_are_those_of_the_cpu(scenario: str) -> None:
    """Small steps, so that rounding can hardly change an answer: what follows from the answers must be the same."""
    common: dict[str, Value] = {
        "scenario": scenario, "fraction": 0.5, "epochs": 3, "net": "cnn", "warmup": 0, "lr": 1e-4, "imbalance": None,
        "nuisance": "patch", "samples": 600, "after": 1, "augment": False,
    }  # fmt: skip
    kinds: list[Value] = ["none", "old", "jtt", "sample-error", "sample-loss"]
    runs = grid(common, weighting=kinds, factor=[0.0, 20.0], start=[0.0, 0.5])
    pair = data_of(runs[0], {"digits": open_data("digits")})
    found = []
    for device in (CUDA, torch.device("cpu")):
        loop = Loop(runs, pair, device=device)
        while not loop.done:
            loop.run_epoch()
        found.append(loop)
    here, there = (loop.history.by_class("weight") for loop in found)
    away = (here - there).abs()
    assert (away > 0.05 + 0.05 * there.abs()).float().mean() < 0.02  # an answer that rounding decides
    assert away.max() < 0.25
    assert (found[0].history.by_class("weight")[-1].std(1) > 0.01).sum() >= 8
    torch.testing.assert_close(*(loop.history.epoch("test_worst_group") for loop in found), rtol=0, atol=0.05)


@pytest.mark.parametrize(("scenario", "signal"), [("offline", "eval"), ("offline", "train"), ("stream", "eval")])
def test_captured_steps_equal_plain_ones(scenario: str, signal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    common: dict[str, Value] = {"scenario": scenario, "signal": signal, "fraction": 0.5}
    varied: dict[str, list[Value]] = {
        "weighting": ["none", "aol"], "loss": ["softmax", "sigmoid"], "margin": ["none", "age"],
    }  # fmt: skip
    captured = run(common, **varied)
    monkeypatch.setattr(Captured, "__call__", lambda self: self._work())
    plain = run(common, **varied)
    assert torch.equal(captured.history.epoch("epoch"), plain.history.epoch("epoch"))
    torch.testing.assert_close(
        captured.history.epoch("train_loss"), plain.history.epoch("train_loss"), rtol=1e-2, atol=1e-2
    )
    first, second = captured.history.by_class("weight")[0], plain.history.by_class("weight")[0]
    assert torch.equal(first, second)


SEEN: dict[str, list[Value]] = {
    "margin": ["counts-seen", "probability-seen"], "weighting": ["none", "aol-seen"], "mixup": [0.0, 1.0],
}  # fmt: skip


@pytest.mark.parametrize("varied", [SEEN, {"retrain": [1], "mixup": [0.0, 1.0]}], ids=["losses", "the head alone"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_captured_losses_that_learn_and_mixtures_equal_plain_ones(
    varied: dict[str, list[Value]], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    common: dict[str, Value] = {"precision": precision, "lr": 0.01}
    captured = run(common, **varied)
    monkeypatch.setattr(Captured, "__call__", lambda self: self._work())
    plain = run(common, **varied)
    assert bool(captured.history.epoch("train_loss").isfinite().all())
    torch.testing.assert_close(
        captured.history.epoch("train_loss"), plain.history.epoch("train_loss"), rtol=2e-2, atol=2e-2
    )
    if varied is SEEN:
        assert captured.step_losses is not None
        assert plain.step_losses is not None
        torch.testing.assert_close(captured.step_losses.counts, plain.step_losses.counts)  # each label once
        assert torch.equal(captured.step_losses.steps, plain.step_losses.steps)
        here, there = (loop.history.by_class("offset") for loop in (captured, plain))
        torch.testing.assert_close(here, there, rtol=0.05, atol=0.05)


def test_a_run_learns_alone_as_it_does_among_others() -> None:
    common: dict[str, Value] = {"epochs": 2, "lr": 0.01}
    many = run(common, weighting=["none", "aol"], seed=[0, 1, 2])
    alone = run(common, weighting=["none"], seed=[0])
    torch.testing.assert_close(
        many.history.epoch("train_loss")[:, 0], alone.history.epoch("train_loss")[:, 0], rtol=1e-2, atol=1e-3
    )


def test_state_taken_on_the_device_goes_on_there(tmp_path: Path) -> None:
    whole = run({"epochs": 4, "lr": 0.01}, weighting=["aol"], seed=[0, 1])
    runs = whole.runs
    half = Loop(runs, open_data("digits"), device=CUDA)
    half.run_epoch()
    half.run_epoch()
    rest = Loop(runs, open_data("digits"), device=CUDA)
    save_checkpoint(tmp_path / "checkpoint.pt", half.state_dict())
    rest.load_state_dict(load_checkpoint(tmp_path / "checkpoint.pt"))
    while not rest.done:
        rest.run_epoch()
    torch.testing.assert_close(
        rest.history.epoch("train_loss"), whole.history.epoch("train_loss"), rtol=1e-2, atol=1e-3
    )


@pytest.mark.parametrize("net", ["resnet32", "cnn"])
def test_the_kernels_learn_what_plain_pytorch_learns(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    common: dict[str, Value] = {"data": "random", "net": net, "precision": "bf16", "epochs": 2, "lr": 0.01}
    pair = random_pair(train=640, test=100)

    def losses(*, by_kernels: bool) -> torch.Tensor:
        loop = Loop(grid(common, seed=list(range(8))), pair, device=CUDA)
        assert isinstance(loop.learner._learning, FusedStack) == by_kernels
        while not loop.done:
            loop.run_epoch()
        return loop.history.epoch("train_loss")

    found = losses(by_kernels=True)
    monkeypatch.setattr(fused, "obstacle", lambda net, size: "not here")
    torch.testing.assert_close(found, losses(by_kernels=False), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_deterministic_runs_repeat_themselves_to_the_last_bit(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    pair = random_pair(train=640, test=100)
    runs = grid({"data": "random", "precision": precision, "epochs": 2, "weighting": "aol"}, seed=[0, 1, 2])

    def once() -> list[torch.Tensor]:
        loop = Loop(runs, pair, device=CUDA)
        while not loop.done:
            loop.run_epoch()
        return [loop.history.epoch("train_loss"), *(value.clone() for value in loop.learner.tensors())]

    torch.use_deterministic_algorithms(True)
    try:
        first, second = once(), once()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_cnns_on_sizes_that_do_not_halve_evenly_take_plain_pytorch() -> None:
    run = grid({"data": "random", "precision": "bf16", "net": "cnn"}, seed=[0])[0]
    for side, by_kernels in ((28, True), (30, False)):
        many = learner.Learner([run] * 2, num_classes=10, shape=(3, side, side), device=CUDA)
        assert isinstance(many._learning, FusedStack) == by_kernels
        assert many.predict(torch.zeros((2, 5, 3, side, side), device=CUDA)).shape == (2, 5, 10)


def test_as_many_runs_are_trained_together_as_there_is_room_for() -> None:
    run = grid({"data": "random", "precision": "bf16", "net": "resnet32"}, seed=[0])[0]
    each = learner.step_bytes(run, (3, 32, 32), 10, CUDA)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    many = learner.Learner([run] * 8, num_classes=10, shape=(3, 32, 32), device=CUDA)
    batch = torch.zeros((8, run.batch_size, 3, 32, 32), device=CUDA)
    label, weight = torch.zeros((8, 128), dtype=torch.int64, device=CUDA), torch.ones((8, 128), device=CUDA)
    for _ in range(2):
        many.step(batch, label, weight, torch.zeros((), device=CUDA))
    # Sums of the weights' gradients take as much for one run as for eight: the estimate is too large, never too small.
    assert 0.5 < (torch.cuda.max_memory_allocated() - before) / (8 * each) < 1
