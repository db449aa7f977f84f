"""The trainer against loops written out and against the plain Trainer: loss, accumulation, columns, signals, orders."""

from __future__ import annotations

import datasets
import pytest
import torch
from torch.nn import functional as F
from transformers import Trainer

import aol
from tests.support.plugin_checks import same_state
from tests.support.small_transformers import (
    DATA,
    LABELS,
    SAMPLES,
    losses,
    made,
    made_margins,
    network,
    padded,
    sample_ages,
    trained,
    weights,
)

PLAIN_SGD = {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", "optim": "sgd", "learning_rate": 0.3}


def naive_loop(ages: aol.SampleAges, steps: list[list[int]], *, signal: str = "pass", uniform: bool = False):
    """Train the same network on the samples of each step, as the README does; return it and its losses."""
    model, found = network().train(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for number, step in enumerate(steps, start=1):
        batch = padded([DATA[i] for i in step])
        labels = batch.pop("labels")
        logits = model(**batch).logits
        weight = torch.ones(len(step)) if uniform else ages.weight(step)
        loss = (weight * F.cross_entropy(logits, labels, reduction="none")).sum() / weight.sum()
        if signal == "training":
            ages.observe(step, logits.argmax(1) == labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
        if number % (len(steps) // 3) == 0:
            if signal == "pass":
                observe_all(ages, model)
            ages.advance()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach(), found


@torch.no_grad()
def observe_all(ages: aol.SampleAges, model) -> None:
    batch = padded(DATA)
    labels = batch.pop("labels")
    ages.observe(range(SAMPLES), model(**batch).logits.argmax(1) == labels)


def step_through(model, steps: list[list[int]]) -> None:
    """Train on the samples of each step, unweighted."""
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.3)
    for step in steps:
        batch = padded([DATA[i] for i in step])
        labels = batch.pop("labels")
        optimizer.zero_grad()
        F.cross_entropy(model(**batch).logits, labels).backward()
        optimizer.step()


# Training


@pytest.mark.parametrize(
    ("level", "signal", "resample"),
    [("class", "pass", False), ("sample", "pass", False), ("sample", "training", False), ("class", "pass", True)],
)
def test_it_trains_as_a_plain_loop_does(level: str, signal: str, resample: bool) -> None:
    ages, naive = sample_ages(level=level), sample_ages(level=level)
    trainer = trained(ages, signal=signal, resample=resample, args=PLAIN_SGD)
    steps = [[i for part in step for i in part] for step in trainer.seen]
    assert len(steps) == 12
    expected, path = naive_loop(naive, steps, signal=signal, uniform=resample)
    assert same_state(ages, naive)
    assert ages.age.max() > 2
    assert losses(trainer) == pytest.approx(path, abs=1e-5)
    torch.testing.assert_close(weights(trainer), expected, atol=1e-5, rtol=1e-4)
    if not resample:
        assert sorted(i for step in steps[:4] for i in step) == list(range(SAMPLES))


def test_resampling_draws_by_the_weights_of_the_epoch_before() -> None:
    ages, again = sample_ages(), sample_ages()
    trainer = trained(ages, resample=True, args={**PLAIN_SGD, "seed": 7})
    steps = [[i for part in step for i in part] for step in trainer.seen]
    sampler = aol.AgeSampler(again, seed=7)
    model = network()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert list(sampler) == [i for step in steps[4 * epoch : 4 * epoch + 4] for i in step]
        step_through(model, steps[4 * epoch : 4 * epoch + 4])
        observe_all(again, model)
        again.advance()
    assert same_state(ages, again)
    assert sorted(steps[8]) != sorted(set(steps[8]))


@pytest.mark.parametrize(("batch_size", "parts"), [(8, 2), (5, 3)])
def test_accumulated_parts_make_the_step_of_one_large_batch(batch_size: int, parts: int) -> None:
    def run(size: int, number: int) -> tuple[aol.SampleAges, Trainer]:
        ages = sample_ages()
        args = {**PLAIN_SGD, "per_device_train_batch_size": size, "gradient_accumulation_steps": number}
        return ages, trained(ages, args=args)

    (one, whole), (many, split) = run(batch_size * parts, 1), run(batch_size, parts)
    assert same_state(one, many)
    assert losses(split) == pytest.approx(losses(whole), abs=1e-5)
    torch.testing.assert_close(weights(split), weights(whole), atol=1e-6, rtol=1e-4)


SETTINGS = {
    "plain": {},
    "accumulated": {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 4},
    "smoothed": {"label_smoothing_factor": 0.2},
    "grouped by length": {"train_sampling_strategy": "group_by_length"},
    "rebalanced": {"train_sampling_strategy": "batch_rebalance", "gradient_accumulation_steps": 2},
    "in order": {"train_sampling_strategy": "sequential"},
    "without the last": {"dataloader_drop_last": True},
    "bfloat16": {"bf16": True},
    "with workers": {"dataloader_num_workers": 1},
}


def whole_mean(outputs, labels, num_items_in_batch):
    """Return the part of a batch in the mean of its step. BERT (5.22.2) takes the number of items and forgets it."""
    return F.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


@pytest.mark.parametrize("setting", SETTINGS)
def test_uniform_weights_are_the_plain_trainer(setting: str) -> None:
    """`rho = 0`: whatever the Trainer is told, its losses and its network stay what they were."""
    loss = {"compute_loss_func": whole_mean} if "gradient_accumulation_steps" in SETTINGS[setting] else {}
    plain = trained(None, kind=Trainer, args=SETTINGS[setting], **loss)
    aged = trained(sample_ages(rho=0.0), args=SETTINGS[setting])
    assert losses(aged) == pytest.approx(losses(plain), abs=2e-3 if setting == "bfloat16" else 1e-5)
    torch.testing.assert_close(weights(aged), weights(plain), atol=5e-2 if setting == "bfloat16" else 1e-4, rtol=1e-3)
    assert aged.ages.epoch == 3


def test_weights_enter_a_smoothed_loss_too() -> None:
    ages = sample_ages()
    for _ in range(3):
        ages.observe(range(SAMPLES), LABELS == 0)
        ages.advance()
    aged = made(ages, args={"label_smoothing_factor": 0.2, "num_train_epochs": 1})
    before = sample_ages()
    before.load_state_dict(ages.state_dict())
    aged.train()
    (step,) = aged.seen[0]
    batch = padded([DATA[i] for i in step])
    labels, weight = batch.pop("labels"), before.weight(step)
    each = F.cross_entropy(network()(**batch).logits, labels, reduction="none", label_smoothing=0.2)
    assert losses(aged)[0] == pytest.approx(((weight * each).sum() / weight.sum()).item(), abs=1e-5)


def test_a_loss_of_ones_own_is_weighted_if_it_is_one_a_sample() -> None:
    def focal(outputs, labels, num_items_in_batch=None):
        return aol.focal_loss(outputs["logits"], labels)

    ages = sample_ages()
    trainer = trained(ages, compute_loss_func=focal, eval_dataset=DATA, args={"eval_strategy": "epoch"})
    assert ages.epoch == 3
    assert all("eval_loss" in each for each in trainer.state.log_history if "eval_runtime" in each)

    def mean(outputs, labels, num_items_in_batch=None):
        return aol.focal_loss(outputs["logits"], labels).mean()

    with pytest.raises(ValueError, match="compute_loss_func must return one loss a sample"):
        trained(sample_ages(), compute_loss_func=mean)


def test_an_evaluation_is_not_weighted() -> None:
    ages = sample_ages()
    trainer = trained(ages, eval_dataset=DATA)
    assert ages.sample_weight.max() > 1
    with torch.no_grad():
        batch = padded(DATA)
        labels = batch.pop("labels")
        expected = F.cross_entropy(trainer.model.eval()(**batch).logits, labels)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), abs=1e-5)


# Columns


@pytest.mark.parametrize("kind", ["list", "datasets"])
@pytest.mark.parametrize("remove", [True, False])
def test_the_index_survives_whichever_columns_are_removed(kind: str, remove: bool) -> None:
    extra = {"text": "words", "age": 3} if remove else {}
    data = [{**each, **extra} for each in DATA]
    data = datasets.Dataset.from_list(data) if kind == "datasets" else data
    ages, plain = sample_ages(), sample_ages()
    trainer = trained(ages, data=data, args={"remove_unused_columns": remove})
    expected = trained(plain)
    assert same_state(ages, plain)
    assert trainer.seen == expected.seen
    assert losses(trainer) == losses(expected)


# Signals


def test_the_clean_pass_sees_evaluation_mode_and_the_set_it_is_given() -> None:
    modes, shown = [], []
    model = network(dropout=0.3)
    model.bert.encoder.eval()

    def watched(module, args, kwargs):
        modes.append((module.training, torch.is_grad_enabled()))
        shown.append(len(kwargs["input_ids"]))

    model.register_forward_pre_hook(watched, with_kwargs=True)
    other = [{**each, "input_ids": each["input_ids"][::-1]} for each in DATA]
    ages = sample_ages()
    trained(ages, model=model, clean_dataset=other, args={"num_train_epochs": 1})
    assert modes == [(True, True)] * 4 + [(False, False)] * 3
    assert shown == [16, 16, 16, 12, 25, 25, 10]
    assert model.training
    with torch.no_grad():
        batch = padded(other)
        labels = batch.pop("labels")
        right = model.eval()(**batch).logits.argmax(1) == labels
    assert torch.equal(ages.age, torch.where(right, 1, 2).int())


def test_a_run_that_stops_within_an_epoch_does_not_fold_it() -> None:
    ages = sample_ages()
    trained(ages, args={"max_steps": 6})
    assert ages.epoch == 1


# Margins


@pytest.mark.parametrize(("signal", "every"), [("pass", None), ("training", 3)])
def test_margins_move_and_follow_the_learning_rate(signal: str, every: int | None) -> None:
    margins, naive = made_margins("probability"), made_margins("probability")
    args = {**PLAIN_SGD, "lr_scheduler_type": "linear"}
    ages = sample_ages(rho=0.0)  # weights of one
    trainer = trained(ages, margins=margins, signal=signal, every=every, args=args)
    model, path = network().train(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for number, (step,) in enumerate(trainer.seen[:12], start=1):
        rate = 1 - (number - 1) / 12
        batch = padded([DATA[i] for i in step])
        target = batch.pop("labels")
        logits = model(**batch).logits
        loss = F.cross_entropy(logits + naive.offsets, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = 0.3 * rate
        optimizer.step()
        path.append(loss.item())
        if signal == "training":
            naive.observe(target, logits.detach().softmax(1))
        if signal == "pass" and number % 4 == 0:
            with torch.no_grad():
                every_text = padded(DATA)
                naive.observe(every_text.pop("labels"), model(**every_text).logits.softmax(1))
        if number % (every or 4) == 0:
            naive.advance(scale=rate)
    assert losses(trainer) == pytest.approx(path, abs=1e-4)
    torch.testing.assert_close(margins.offsets, naive.offsets, atol=1e-4, rtol=1e-3)
    assert margins.offsets.abs().max() > 0.01


def test_a_loss_of_ones_own_gets_adjusted_logits_in_training_alone() -> None:
    seen = []

    def loss(outputs, labels, num_items_in_batch=None):
        seen.append((trainer.model.training, outputs["logits"].mean(0).detach()))
        return F.cross_entropy(outputs["logits"], labels, reduction="none")

    margins = made_margins("error")
    for _ in range(5):
        margins.observe([0, 1, 2], [2, 2, 2])
        margins.advance()
    args = {"learning_rate": 0.0, "num_train_epochs": 1}
    trainer = made(None, margins=margins, compute_loss_func=loss, args=args)
    trainer.train()
    trainer.evaluate(DATA[:16])
    shift = seen[0][1] - seen[-1][1]
    assert (seen[0][0], seen[-1][0]) == (True, False)
    assert (shift - shift.mean()).abs().max() > 0.3
