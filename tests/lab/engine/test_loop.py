"""Runs among others against the same runs alone; what a batch looks like; states; NaN."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aol import _seeds
from aol.lab.engine.loop import EPOCH, Loop
from aol.lab.nets.registry import NETWORKS, Entry
from aol.lab.settings import Settings
from tests.support.tiny_runs import (
    CPU,
    make_loop,
    network,
    run_to_end,
    same_network,
    settings,
    stream_settings,
    tiny_pair,
)

SETS: dict[str, list[Settings]] = {
    "offline": [
        settings(augment=True),
        settings(augment=True, weighting="cb+aol", beta=0.9, level="sample", seed=1),
        settings(augment=True, weighting="aol", mechanism="resample", seed=2),
        settings(augment=True, weighting="error", loss="focal", seed=2),
        settings(augment=True, weighting="cb", start=0.6, seed=2),
        settings(augment=True, weighting="cb", start=0.4, mechanism="resample", seed=3),
    ],
    "arrival": [
        settings(scenario="arrival", fraction=0.4, weighting="aol", level=level, seed=seed)
        for seed, level in enumerate(("class", "sample"))
    ],
    "old": [
        settings(weighting="old", after=2, factor=9, seed=0),
        settings(weighting="sample-loss", seed=1),
        settings(weighting="jtt", after=2, seed=2),
        settings(weighting="sample-error", mechanism="resample", seed=3),
    ],
    "margins": [
        settings(margin="age", gain=0.5, seed=0),
        settings(margin="error", gain=0.5, weighting="aol", seed=1),
        settings(margin="counts", loss="sigmoid", seed=2),
        settings(margin="age", gain=0.1, seed=3),
        settings(margin="probability", gain=0.3, seed=4),
    ],
    "margins by steps": [
        settings(margin=margin, gain=0.5, margin_steps=steps, seed=seed)
        for seed, margin in enumerate(("none", "counts", "age", "error", "probability"))
        for steps in (None, 2)
    ]
    + [settings(margin="counts-seen", margin_memory=memory, seed=5, tau=1.5) for memory in (None, 30)],
    "margins of a stream": [
        stream_settings(signal="before", memory="none", margin=margin, gain=0.5, seed=seed)
        for seed, margin in enumerate(("none", "counts", "age", "error", "probability"))
    ],
    "losses that learn in every step": [
        settings(margin="counts-seen", mixup=1.0, seed=0),
        settings(margin="probability-seen", margin_steps=3, tau=1.5, seed=1),
        settings(margin="probability-seen", margin_steps=2, mixup=0.5, seed=2),
        settings(weighting="aol-seen", mixup=0.5, seed=3),
        settings(margin="counts-seen", margin_memory=30, weighting="aol-seen", seed=4),
        settings(weighting="aol", loss="sigmoid", mixup=1.0, seed=5),
        settings(seed=6),
    ],
    "retrain": [settings(retrain=2, mixup=mixup, seed=seed) for seed, mixup in enumerate((0.0, 1.0))],
    "train": [settings(signal="train", weighting="aol", lr=0.01, seed=seed) for seed in range(2)],
} | {
    memory: [stream_settings(memory=memory, weighting=w, seed=seed) for seed, w in enumerate(("none", "aol", "cb"))]
    for memory in ("all", "reservoir:20", "none")
}


def identical(one: object, other: object, path: str = "") -> None:
    """Assert that two states are the same to the last bit; times are left out."""
    if isinstance(one, Tensor):
        assert isinstance(other, Tensor), path
        if path.endswith("history/by_epoch"):
            keep = [place for place, name in enumerate(EPOCH) if name not in ("seconds", "images_per_second")]
            one, other = one[:, keep], other[:, keep]
        assert one.dtype == other.dtype, path
        assert torch.equal(one.nan_to_num(-7.0), other.nan_to_num(-7.0)), path
    elif isinstance(one, dict):
        assert isinstance(other, dict), path
        assert one.keys() == other.keys(), path
        for key in one:
            identical(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple):
        assert isinstance(other, list | tuple), path
        assert len(one) == len(other), path
        for place, (a, b) in enumerate(zip(one, other, strict=True)):
            identical(a, b, f"{path}/{place}")
    else:
        assert one == other, path


@pytest.mark.parametrize("name", SETS)
def test_a_run_among_others_is_the_run_alone(name: str) -> None:
    runs = SETS[name]
    together = make_loop(runs, keep_samples=name in ("offline", "arrival"))
    first = [network(together, row) for row in range(len(runs))]
    run_to_end(together)
    for row, run in enumerate(runs):
        alone = make_loop([run])
        for key, value in network(alone).items():
            assert torch.equal(value, first[row][key])
        assert torch.equal(alone.pool[0], together.pool[row])
        run_to_end(alone)
        assert torch.equal(alone.ages.age[0], together.ages.age[row])  # type: ignore[attr-defined]
        weights = [loop.history.by_class("weight")[:, r] for loop, r in ((alone, 0), (together, row))]
        assert torch.equal(weights[0][0], weights[1][0])
        torch.testing.assert_close(weights[0], weights[1], rtol=1e-5, atol=1e-5)
        same_network(network(together, row), network(alone))


@pytest.mark.parametrize("name", SETS)
def test_a_state_taken_after_any_epoch_is_all_that_a_resumed_run_needs(name: str) -> None:
    runs = SETS[name]
    straight = run_to_end(make_loop(runs))
    stepwise = make_loop(runs)
    while not stepwise.done:
        stepwise.run_epoch()
        fresh = make_loop(runs)
        fresh.load_state_dict(stepwise.state_dict())
        stepwise = fresh
    identical(straight.state_dict(), stepwise.state_dict())


def test_dropout_draws_by_seed_and_epoch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_dropout(classes: int, channels: int, size: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(channels * size**2, classes))

    monkeypatch.setitem(NETWORKS, "cnn", Entry(with_dropout, 8))
    torch.manual_seed(1)
    straight = run_to_end(make_loop([settings(epochs=3)]))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    first, second = make_loop([settings(epochs=3)]), make_loop([settings(epochs=3)])
    first.run_epoch()
    second.load_state_dict(first.state_dict())
    identical(straight.state_dict(), run_to_end(second).state_dict())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_of_other_runs_is_refused() -> None:
    state = run_to_end(make_loop([settings(seed=3, epochs=1)])).state_dict()
    with pytest.raises(ValueError, match="The state is of other runs"):
        make_loop([settings(seed=4, epochs=1)]).load_state_dict(state)


def test_augmented_batches_are_padded_cut_and_mirrored_by_the_draws_of_their_run() -> None:
    loop = make_loop([settings(augment=True, seed=5), settings(augment=True, seed=6)])
    seen: list[Tensor] = []
    step = loop.learner.step
    loop.learner.step = lambda images, *rest: (seen.append(images.clone()), step(images, *rest))[1]  # type: ignore
    loop.run_epoch()
    images = torch.cat(seen, 1)
    raw = tiny_pair().train.images
    for row, seed in enumerate((5, 6)):
        order = torch.randperm(49, generator=_seeds.generator(seed, 1_000_001, 0))
        generator = _seeds.generator(seed, 1_000_002, 0)
        top = torch.randint(3, (49,), generator=generator)
        left = torch.randint(3, (49,), generator=generator)
        mirrored = torch.randint(2, (49,), generator=generator)
        for place, position in enumerate(order.tolist()):
            padded = F.pad(raw[int(loop.pool[row, position])], (1, 1, 1, 1)).float()
            cut = padded[:, top[place] : top[place] + 8, left[place] : left[place] + 8]
            wanted = (cut.flip(-1) if mirrored[place] else cut) / 128 - 1
            assert torch.equal(images[row, place], wanted)


def test_evaluation_sees_images_as_they_are_even_where_training_augments() -> None:
    run = settings(augment=True)
    loop = make_loop([run])
    seen: list[Tensor] = []
    predict = loop.learner.predict
    loop.learner.predict = lambda images, **k: (seen.append(images.clone()), predict(images, **k))[1]  # type: ignore
    loop.run_epoch()
    train, test = seen
    assert torch.equal(train[0], tiny_pair().train.images[loop.pool[0]].float() / 128 - 1)
    assert torch.equal(test, tiny_pair().test.images.float() / 128 - 1)


def poison(loop: Loop, row: int) -> None:
    with torch.no_grad():
        weight = loop.learner.net.head.get_parameter("weight")
        weight[row * 3 : row * 3 + 3] = torch.nan


@pytest.mark.parametrize("name", ["offline", "margins", "reservoir:20"])
def test_a_run_that_breaks_is_marked_with_its_epoch_and_leaves_its_neighbours_untouched(name: str) -> None:
    runs = SETS[name]
    healthy, broken = make_loop(runs), make_loop(runs)
    for epoch in range(5):
        if epoch == 2:
            poison(broken, 1)
        healthy.run_epoch()
        broken.run_epoch()
    assert healthy.failed == [0] * len(runs)
    assert broken.failed == [3 if row == 1 else 0 for row in range(len(runs))]
    for row in range(len(runs)):
        if row != 1:
            identical(healthy.learner.network(row), broken.learner.network(row))
            for value in ("age", "weight", "train_accuracy", "test_loss", "test_age"):
                both = [loop.history.by_class(value)[:, row] for loop in (healthy, broken)]
                assert torch.equal(both[0].nan_to_num(-1), both[1].nan_to_num(-1))


def test_a_run_that_its_last_step_spoils_is_marked_too() -> None:
    loop = make_loop([settings(epochs=1), settings(epochs=1, seed=1)])
    steps = 4
    step, taken = loop.learner.step, []

    def spoil(*given: Tensor) -> tuple[Tensor, Tensor]:
        found = step(*given)  # type: ignore[arg-type]
        taken.append(found)
        if len(taken) == steps:
            poison(loop, 1)
        return found

    loop.learner.step = spoil  # type: ignore[assignment, method-assign]
    loop.run_epoch()
    assert bool(torch.stack([loss for loss, _ in taken]).isfinite().all())
    assert loop.failed == [0, 1]


def test_when_all_runs_have_failed_training_stops() -> None:
    loop = make_loop([settings(lr=1e6, warmup=0), settings(lr=1e6, warmup=0, seed=1)])
    run_to_end(loop)
    assert all(loop.failed)
    assert loop.epoch == max(loop.failed) < 5


@pytest.mark.parametrize("runs", [1, 2])
def test_the_validation_split_of_a_set_that_brings_one_is_read(runs: int) -> None:
    pair = tiny_pair()
    loop = Loop([settings(seed=seed) for seed in range(runs)], replace(pair, validation=pair.test), device=CPU)
    loop.run_epoch()
    read = loop.history.epoch("validation_accuracy")
    assert torch.equal(read, loop.history.epoch("test_accuracy"))  # the same images, so the same figure
    own = Loop([settings(validation=0.2)], replace(pair, validation=pair.test), device=CPU)
    assert own.held_out.shape == (1, 18)  # what was asked for comes first
