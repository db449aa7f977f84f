from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import cohen_kappa_score, recall_score
from torch import Tensor

from aol import _seeds
from aol.lab.engine.source import orders
from aol.metrics import g_mean
from tests.lab.engine.test_offline import close, same_story, tell
from tests.support.naive_training import Naive
from tests.support.tiny_runs import make_loop, stream_settings, tiny_pair

MEMORIES = ("all", "reservoir:20", "none")
KINDS = [
    {},
    {"weighting": "aol"},
    {"weighting": "aol", "rho": 0.0},
    {"weighting": "cb", "beta": 0.9},
    {"weighting": "cb+aol", "beta": 0.9, "temper": 0.5},
    {"weighting": "frequency"},
    {"weighting": "error"},
    {"weighting": "aol", "start": 0.6},
    {"weighting": "aol", "threshold": "mean"},
    {"weighting": "aol", "threshold": "positive-median"},
    {"weighting": "aol", "threshold": 0.9},
    {"margin": "counts"},
    {"margin": "age", "gain": 0.3},
    {"margin": "error", "gain": 0.3},
    {"margin": "probability", "gain": 0.3},
]


@pytest.mark.parametrize("stream", ["access", "shifting"])
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kinds", [KINDS[1:2], KINDS], ids=["one run", "several runs"])
def test_a_stream_is_what_the_protocol_says(stream: str, memory: str, kinds: list[dict[str, object]]) -> None:
    runs = [stream_settings(stream=stream, memory=memory, seed=seed, **kind) for seed, kind in enumerate(kinds)]
    loop = make_loop(runs)
    ages = tell(loop)
    for row, run in enumerate(runs):
        naive = Naive(run, tiny_pair())
        naive.stream()
        same_story(loop, naive, ages, row, moves=run.margin != "probability")  # so little is within the noise
        close(loop.history.epoch("threshold")[:, row], naive.told.threshold, 1e-9)


@pytest.mark.parametrize(
    "given",
    [
        {"signal": "train", "weighting": "aol"},
        {"signal": "before", "weighting": "aol"},
        {"signal": "before", "margin": "age", "gain": 0.3},
        {"signal": "before", "margin": "probability", "gain": 0.3},
        {"signal": "before", "margin": "error", "gain": 0.3, "stream": "access", "fraction": 0.2},
        {"signal": "train", "margin": "age", "gain": 0.3},
        {"margin": "error", "gain": 0.3, "margin_steps": 2},
        {"signal": "before", "margin": "probability", "gain": 0.5, "margin_steps": 1, "epochs": 8},
        {"margin": "counts-seen", "margin_memory": 30},
        {"margin": "probability-seen", "margin_steps": 2},
        {"weighting": "aol-seen", "mixup": 1.0, "memory": "none", "signal": "before"},
        {"threshold": 0.9, "weighting": "aol"},
        {"threshold": "mean", "weighting": "aol"},
        {"period": 1, "imbalance": 20.0, "weighting": "aol"},
        {"stream": "access", "fraction": 0.02, "weighting": "aol", "epochs": 8},
        {"schedule": "paper", "warmup": 2, "loss": "sigmoid", "weighting": "aol"},
        {"validation": 0.2, "weighting": "error"},
    ],
    ids=str,
)
def test_other_streams_are_what_the_protocol_says(given: dict[str, object]) -> None:
    run = stream_settings(**given)
    naive = Naive(run, tiny_pair())
    naive.stream()
    loop = make_loop([run])
    same_story(loop, naive, tell(loop), 0)


def test_a_step_trains_on_its_own_subset_only_and_looks_at_the_whole_memory() -> None:
    loop = make_loop([stream_settings(stream="access", fraction=0.2, memory="all", augment=True)])
    trained: list[Tensor] = []
    looked: list[Tensor] = []
    learn, look = loop.train_pass, loop.clean_pass
    loop.train_pass = lambda at, *rest: (trained.append(at), learn(at, *rest))[1]  # type: ignore[method-assign]
    loop.clean_pass = lambda at, *rest, **more: (looked.append(at), look(at, *rest, **more))[1]  # type: ignore
    everything: set[int] = set()
    for step in range(5):
        loop.run_epoch()
        shown = loop._streams[0][step]  # type: ignore[attr-defined]
        everything |= set(shown.tolist())
        assert sorted(trained[-1][0].tolist()) == sorted(shown.tolist())
        assert sorted(looked[-1][0].tolist()) == sorted(everything)
        assert float(loop.history.by_class("train_count")[-1, 0].sum()) == 10 * (step + 1)  # repeats are counted
    assert len(trained) == len(looked) == 5  # one clean pass a step


def test_prequential_readings_are_those_of_the_answers_before_each_training_step() -> None:
    loop = make_loop([stream_settings(memory="none", seed=seed, batch_size=8) for seed in (0, 1)])
    given: list[tuple[Tensor, Tensor]] = []
    step = loop.learner.step

    def told(images: Tensor, label: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        loss, logits = step(images, label, *rest)
        given.append((label, logits.argmax(-1)))
        return loss, logits

    loop.learner.step = told  # type: ignore[method-assign]
    for _ in range(3):
        given.clear()
        loop.run_epoch()
        label, answer = (torch.cat(own, 1) for own in zip(*given, strict=True))
        classes = loop.num_classes
        kappa = [cohen_kappa_score(*own) for own in zip(label, answer, strict=True)]
        close(loop.history.epoch("prequential_kappa")[-1], kappa)
        accuracy = [recall_score(*own, labels=range(classes), average=None) for own in zip(label, answer, strict=True)]
        close(loop.history.epoch("prequential_g_mean")[-1], g_mean(np.array(accuracy)).tolist())


def test_runs_that_draw_or_mix_samples_have_no_prequential_readings() -> None:
    runs = [{}, {"mixup": 1.0}, {"weighting": "cb", "mechanism": "resample"}]
    loop = make_loop([stream_settings(memory="none", signal="before", **run) for run in runs])
    loop.run_epoch()
    for name in ("prequential_kappa", "prequential_g_mean"):
        assert loop.history.epoch(name)[0].isnan().tolist() == [False, True, True]


def test_the_order_of_classes_stays_for_a_period_and_the_subset_does_not() -> None:
    loop = make_loop([stream_settings(period=2, memory="none", epochs=4)])
    counts, subsets = [], []
    for step in range(4):
        loop.run_epoch()
        counts.append(loop.history.by_class("train_count")[-1, 0].tolist())
        subsets.append(set(loop._streams[0][step].tolist()))  # type: ignore[attr-defined]
    assert counts[0] == counts[1]
    assert counts[2] == counts[3]
    assert sorted(counts[0]) == sorted(counts[2]) == [6, 13, 30]
    assert subsets[0] != subsets[1]


def test_a_class_that_the_memory_does_not_hold_keeps_its_age() -> None:
    run = stream_settings(stream="access", fraction=0.02, memory="none", weighting="aol", epochs=6, seed=1)
    loop = make_loop([run])
    before = loop.ages.age[0]  # type: ignore[attr-defined]
    unseen = 0
    for _ in range(6):
        loop.run_epoch()
        now, count = loop.ages.age[0], loop.history.by_class("train_count")[-1, 0]  # type: ignore[attr-defined]
        assert torch.equal(now[count == 0], before[count == 0])
        unseen += int((count == 0).sum())
        before = now
    assert unseen > 0


def test_the_order_of_a_step_is_not_drawn_from_what_chose_its_samples() -> None:
    loop = make_loop([stream_settings(memory="none", epochs=3)])
    stream = loop._streams[0]  # type: ignore[attr-defined]
    for step in range(3):
        loop.epoch = step
        order = orders(loop.runs, torch.ones(1, stream.num_samples), step)[0]
        for path in ((), (0,), (1,), (step,), (0, step // 2), (1, step)):  # all that a stream or a memory draws from
            assert not torch.equal(order, torch.randperm(stream.num_samples, generator=_seeds.generator(0, *path)))
