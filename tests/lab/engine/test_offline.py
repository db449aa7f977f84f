from __future__ import annotations

import math
from statistics import mean

import pytest
import torch
from torch import Tensor

from aol.lab.engine import source as source_module
from aol.lab.engine.loop import Loop
from tests.support.naive_training import Naive
from tests.support.tiny_runs import make_loop, network, same_network, settings, tiny_pair

REWEIGHTED = [
    {},
    {"weighting": "aol", "rho": 0.3},
    {"weighting": "aol", "rho": 1.0, "level": "sample"},
    {"weighting": "aol", "rho": 0.0},
    {"weighting": "cb", "beta": 0.9},
    {"weighting": "cb+aol", "beta": 0.9, "rho": 0.5},
    {"weighting": "cb+aol", "beta": 0.9, "rho": 0.5, "level": "sample", "temper": 0.5},
    {"weighting": "frequency", "power": 0.7, "temper": 2.0},
    {"weighting": "error", "rho": 0.5},
    {"weighting": "aol", "rho": 0.6, "temper": 0.5},
    {"weighting": "aol", "rho": 0.6, "loss": "sigmoid"},
    {"weighting": "aol", "rho": 0.6, "loss": "sigmoid", "divide_by": "weight"},
    {"weighting": "aol", "rho": 0.6, "divide_by": "count"},
    {"weighting": "cb", "beta": 0.99, "loss": "focal", "gamma": 2.0},
    {"weighting": "cb", "beta": 0.9, "start": 0.8},
    {"weighting": "aol", "rho": 0.3, "level": "sample", "start": 0.4},
    {"weighting": "old", "after": 2, "factor": 9.0},
    {"weighting": "jtt", "after": 3, "factor": 20.0},
    {"weighting": "jtt", "after": 1, "start": 0.6},
    {"weighting": "sample-error", "temper": 0.5},
    {"weighting": "old", "after": 1},
    {"margin": "counts", "tau": 1.5},
    {"margin": "age", "gain": 0.4},
    {"margin": "error", "gain": 0.4},
    {"margin": "probability", "gain": 0.4, "tau": 1.5},
    {"margin": "error", "gain": 0.2, "weighting": "aol", "rho": 0.5, "loss": "sigmoid"},
]
COMMON = [
    {"signal": "train"},
    {"signal": "none"},
    {"fuse": "peak"},
    {"weighting": "sample-loss", "temper": 1.5},
    {"scenario": "arrival", "fraction": 0.3},
    {"scenario": "arrival", "fraction": 0.1, "signal": "train"},
    {"scenario": "arrival", "fraction": 0.4, "signal": "before", "margin": "age", "gain": 0.3},
    {"signal": "train", "margin": "age", "gain": 0.3},
    {"signal": "train", "margin": "probability", "gain": 0.3},
    {"margin": "probability", "gain": 0.5, "margin_steps": 1},
    {"margin": "age", "gain": 0.3, "margin_steps": 2, "signal": "train"},
    {"margin": "error", "gain": 0.3, "margin_steps": 3, "signal": "none"},
    {"scenario": "arrival", "fraction": 0.4, "margin": "error", "gain": 0.3, "margin_steps": 1},
    {"margin": "counts-seen"},
    {"margin": "counts-seen", "tau": 1.5, "margin_memory": 40, "signal": "none"},
    {"margin": "probability-seen", "margin_steps": 1},
    {"margin": "probability-seen", "margin_steps": 3, "tau": 1.5, "signal": "none", "mixup": 0.5},
    {"weighting": "aol-seen", "rho": 0.6, "signal": "train"},
    {"weighting": "aol-seen", "rho": 0.3, "mixup": 1.0},
    {"weighting": "aol-seen", "rho": 0.0},
    {"mixup": 1.0},
    {"mixup": 0.3, "margin": "counts-seen"},
    {"mixup": 0.3, "margin": "counts-seen", "margin_memory": 40},
    {"mixup": 1.0, "margin": "counts", "loss": "focal", "weighting": "cb", "beta": 0.9},
    {"retrain": 2},
    {"retrain": 3, "smoothing": 0.5, "mixup": 1.0, "schedule": "cosine"},
    {"validation": 0.2},
    {"normalisation": "standardised", "schedule": "cosine"},
    {"schedule": "fixed", "warmup": 0},
    {"imbalance": None, "batch_size": 1000, "momentum": 0.0, "weight_decay": 0.1},
]


def close(found: Tensor, told: object, tolerance: float = 2e-4) -> None:
    wanted = torch.tensor(told, dtype=torch.float64)
    torch.testing.assert_close(found.to(torch.float64), wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


def same_story(loop: Loop, naive: Naive, ages: list[Tensor], row: int, *, moves: bool = True) -> None:
    told, history = naive.told, loop.history
    assert [values[row].tolist() for values in ages] == told.age
    close(history.epoch("lr")[:, row], told.rate, 1e-12)
    close(history.epoch("train_loss")[:, row], told.loss)
    close(history.by_class("weight")[:, row], told.weight)
    if naive.run.margin != "none":
        close(history.by_class("offset")[:, row], told.offset)
        assert any(any(offset) for offset in told.offset) or not moves
    close(history.by_class("train_accuracy")[:, row], told.train, 1e-6)
    close(history.epoch("test_accuracy")[:, row], told.test, 1e-9)
    assert loop.test_ages.age[row].tolist() == told.test_age[-1]
    if naive.run.signal != "none":
        close(history.by_class("age")[:, row], told.class_age, 1e-6)
        close(history.by_class("smoothed_age")[:, row], told.smoothed_age, 1e-5)
    same_network(network(loop, row), naive.net.state_dict())


def tell(loop: Loop) -> list[Tensor]:
    ages = []
    while not loop.done:
        loop.run_epoch()
        ages.append(loop.ages.age.clone())  # type: ignore[attr-defined]
    return ages


@pytest.mark.parametrize("given", COMMON, ids=str)
def test_one_run_is_what_the_protocol_says(given: dict[str, object]) -> None:
    run = settings(**given)
    naive = Naive(run, tiny_pair())
    naive.offline()
    loop = make_loop([run])
    same_story(loop, naive, tell(loop), 0)


def asks(kind: dict[str, object]) -> bool:
    """Whether answers are needed."""
    return kind.get("weighting") not in (None, "cb") or kind.get("margin") in ("age", "error", "probability")


@pytest.mark.parametrize("common", [{}, *COMMON[:6]], ids=str)
def test_runs_of_every_kind_trained_as_one_are_what_the_protocol_says(common: dict[str, object]) -> None:
    kinds = [kind for kind in REWEIGHTED if common.get("signal") != "none" or not asks(kind)]
    runs = [settings(**(kind | common), seed=seed) for seed, kind in enumerate(kinds, 20)]
    loop = make_loop(runs)
    ages = tell(loop)
    for row in range(0, len(runs), 1 if not common else 5):
        naive = Naive(runs[row], tiny_pair())
        naive.offline()
        same_story(loop, naive, ages, row, moves=runs[row].margin != "probability")  # so little is within the noise


@pytest.mark.parametrize(
    "given",
    [
        {"weighting": "aol", "rho": 0.5},
        {"weighting": "aol", "rho": 0.5, "level": "sample"},
        {"weighting": "aol", "scenario": "arrival", "fraction": 0.3},
        {"weighting": "aol", "start": 0.6},
        {"weighting": "old", "after": 2},
        {"weighting": "sample-loss"},
    ],
    ids=str,
)
def test_resampling_draws_by_the_weights_and_weighs_nothing(
    given: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = settings(mechanism="resample", **given)
    drawn: list[tuple[Tensor, Tensor]] = []
    real = source_module.draw

    def noted(weight: Tensor, number: int, *, generator: torch.Generator) -> Tensor:
        found = real(weight, number, generator=generator)
        drawn.append((weight.clone(), found))
        return found

    monkeypatch.setattr(source_module, "draw", noted)
    loop = make_loop([run])
    ages = tell(loop)
    epochs = iter(drawn)

    def draw(weights: list[float]) -> list[int]:
        given_weight, found = next(epochs)
        close(given_weight, weights, 1e-4)
        assert found.numel() == len(weights)
        return found.tolist()  # type: ignore[no-any-return]

    naive = Naive(run, tiny_pair(), draw)
    naive.offline()
    assert next(epochs, None) is None
    same_story(loop, naive, ages, 0)


def test_resampling_with_the_training_signal_lets_the_last_answer_count(monkeypatch: pytest.MonkeyPatch) -> None:
    run = settings(mechanism="resample", weighting="aol", signal="train", epochs=3)
    monkeypatch.setattr(source_module, "draw", lambda weight, number, generator: torch.arange(number) // 2)
    loop = make_loop([run])
    naive = Naive(run, tiny_pair(), lambda weights: [i // 2 for i in range(len(weights))])
    naive.offline()
    same_story(loop, naive, tell(loop), 0)
    assert set(loop.ages.age[0, 25:].tolist()) == {1}  # type: ignore[attr-defined]  # never drawn, never observed


@pytest.mark.parametrize(
    ("level", "fuse", "scenario"),
    [("class", "ema", "offline"), ("sample", "peak", "offline"), ("sample", "ema", "arrival")],
)
def test_deferred_weights_are_one_at_first_and_then_those_of_all_ages_so_far(
    level: str, fuse: str, scenario: str
) -> None:
    run = settings(weighting="aol", level=level, fuse=fuse, scenario=scenario, fraction=0.5, start=0.6)
    plain = settings(fuse=fuse, scenario=scenario, fraction=0.5)
    loop, other = make_loop([run]), make_loop([plain])
    for _ in range(3):
        loop.run_epoch()
        other.run_epoch()
    assert bool((loop.history.by_class("weight") == 1).all())
    same_network(network(loop), network(other))  # so far it is plain training, and ages are those of plain training
    assert torch.equal(loop.ages.age, other.ages.age)  # type: ignore[attr-defined]
    class_weight, sample_weight = loop.ages.class_weight[0], loop.ages.sample_weight[0]  # type: ignore[attr-defined]
    by_class = [mean(sample_weight[loop.labels == c].tolist()) for c in range(3)]
    loop.run_epoch()
    found = loop.history.by_class("weight")[-1, 0]
    close(found, class_weight.tolist() if level == "class" else by_class, 1e-5)
    assert float(found.std()) > 0.01


def test_an_absent_sample_grows_older_and_one_never_seen_has_no_age() -> None:
    run = settings(scenario="arrival", fraction=0.05, weighting="aol", epochs=3)
    loop = make_loop([run], keep_samples=True)
    before = torch.zeros(49, dtype=torch.int32)
    for epoch in range(3):
        loop.run_epoch()
        here = loop._streams[0][epoch]  # type: ignore[attr-defined]
        absent = torch.ones(49, dtype=torch.bool).index_fill(0, here, False)
        answers = loop.samples.answers(0)  # type: ignore[union-attr]
        now = torch.from_numpy(answers.last())
        assert torch.equal(now, loop.ages.age[0])  # type: ignore[attr-defined]
        seen = [seen for seen, _, _ in answers.epochs()][-1]
        assert seen.nonzero()[0].tolist() == here.tolist()
        assert torch.equal(now[absent & (before > 0)], before[absent & (before > 0)] + 1)
        assert bool((now[absent & (before == 0)] == 0).all())
        first = here[before[here] == 0]
        assert set(now[first].tolist()) <= {1, 2}
        before = now
    unseen = [c for c in range(3) if not bool((before[loop.labels == c] > 0).any())]
    for c in range(3):
        age = float(loop.history.by_class("age")[-1, 0, c])
        assert math.isnan(age) == (c in unseen)


def test_validation_is_held_out_of_the_whole_pool_before_the_long_tail_is_made() -> None:
    loop = make_loop([settings(validation=0.2), settings(validation=0.2, seed=1)])
    labels = tiny_pair().train.labels
    for row in range(2):
        held, kept = loop.held_out[row], loop.pool[row]
        assert torch.bincount(labels[held]).tolist() == [6, 6, 6]
        assert torch.bincount(labels[kept]).tolist() == [24, 10, 4]
        assert not set(held.tolist()) & set(kept.tolist())
    assert set(loop.held_out[0].tolist()) != set(loop.held_out[1].tolist())
    loop.run_epoch()
    naive = Naive(loop.runs[1], tiny_pair())
    naive.run = loop.runs[1]
    naive.net.load_state_dict(network(loop, 1))
    right = naive.right(naive.pair.train, loop.held_out[1].tolist())
    assert float(loop.history.epoch("validation_accuracy")[-1, 1]) == pytest.approx(sum(right) / 18)


def test_bfloat16_is_used_where_asked_for_and_losses_stay_in_full_precision() -> None:
    loops = [make_loop([settings(precision=precision, epochs=3)]) for precision in ("fp32", "bf16")]
    for loop in loops:
        tell(loop)
    full, half = (loop.history.epoch("train_loss")[:, 0] for loop in loops)
    assert not torch.equal(full, half)
    torch.testing.assert_close(full, half, rtol=0.05, atol=0.02)
    assert all(value.dtype != torch.bfloat16 for value in network(loops[1]).values())


def test_test_readings_come_every_so_many_epochs_and_in_the_last() -> None:
    loop = make_loop([settings(eval_every=2, weighting="aol")])
    tell(loop)
    assert loop.history.epoch("test_accuracy")[:, 0].isnan().tolist() == [True, False, True, False, False]
    assert not bool(loop.history.by_class("age").isnan().any())
    assert loop.test_ages.epoch == 3
