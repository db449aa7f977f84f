"""Margins, static offsets and static weights in the Trainer against a loop written out: losses, evaluation, resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import IterableDataset

import aol
from aol.plugins.transformers import AgeTrainer
from tests.support.plugin_checks import same_state
from tests.support.small_transformers import (
    CLASSES,
    DATA,
    LABELS,
    SAMPLES,
    arguments,
    losses,
    made,
    made_margins,
    network,
    padded,
    sample_ages,
    trained,
    weights,
)

SGD = {"max_grad_norm": 0.0, "lr_scheduler_type": "linear", "optim": "sgd", "learning_rate": 0.3, "warmup_steps": 5}
OFFSET = aol.logit_offsets([30, 20, 10], tau=1.5)
WEIGHT = torch.tensor([0.5, 1.0, 1.5])


def rate(step: int) -> float:
    """Return the learning rate of a step of `SGD`: a warm-up of five steps from zero, then down to zero at twelve."""
    return 0.3 * (step / 5 if step < 5 else (12 - step) / 7)


def written_out(
    steps: list[list[int]],
    margins: aol.Margins | None = None,
    ages: aol.SampleAges | None = None,
    *,
    signal: str = "pass",
    offset: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Train the same network on the samples of each step, in plain PyTorch, and return its weights."""
    model = network().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for number, step in enumerate(steps):
        optimizer.param_groups[0]["lr"] = rate(number)
        batch = padded([DATA[i] for i in step])
        labels = batch.pop("labels")
        logits = model(**batch).logits
        observe(margins, ages, step, logits) if signal == "training" else None
        moved = logits + (0 if margins is None else margins.offsets) + (0 if offset is None else offset)
        w = torch.ones(len(step)) if ages is None else ages.weight(step)
        w = w if weight is None else w * weight[labels]
        optimizer.zero_grad()
        ((w * F.cross_entropy(moved, labels, reduction="none")).sum() / w.sum()).backward()
        optimizer.step()
        if number % 4 == 3:
            with torch.no_grad():
                whole = padded(DATA)
                whole.pop("labels")
                observe(margins, ages, list(range(SAMPLES)), model(**whole).logits) if signal == "pass" else None
            if ages is not None:
                ages.advance()
            if margins is not None:
                margins.advance(scale=rate(number) / max(rate(before) for before in range(number + 1)))
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def observe(margins: aol.Margins | None, ages: aol.SampleAges | None, index: list[int], logits: Tensor) -> None:
    answer = logits.argmax(1)
    if ages is not None:
        ages.observe(index, answer == LABELS[index])
    if margins is not None:
        told = logits.detach().softmax(1) if margins.signal == "probability" else answer
        margins.observe(index if margins._labels is not None else LABELS[index], told)


def shown(trainer) -> list[list[int]]:
    return [[i for part in step for i in part] for step in trainer.seen]


def check_close(trainer, expected: Tensor) -> None:
    torch.testing.assert_close(weights(trainer), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("signal", ["pass", "training"])
@pytest.mark.parametrize(
    ("kind", "aged"), [("age", False), ("age", True), ("pairs", True), ("error", True), ("probability", True)]
)
def test_margins_train_as_the_loop_written_out(kind: str, aged: bool, signal: str) -> None:
    margins, mine = made_margins(kind), made_margins(kind)
    ages, naive = (sample_ages(), sample_ages()) if aged else (None, None)
    trainer = trained(ages, margins=margins, signal=signal, args=SGD)
    check_close(trainer, written_out(shown(trainer), mine, naive, signal=signal))
    assert same_state(margins, mine) or kind == "probability"  # which rounding changes
    torch.testing.assert_close(margins.offsets, mine.offsets, atol=1e-4, rtol=1e-4)
    assert margins.offsets.abs().max() > (0.005 if kind == "probability" else 0.1)
    if aged:
        assert same_state(ages, naive)


def test_accumulated_parts_make_the_step_of_one_large_batch() -> None:
    margins, mine, ages, naive = made_margins("age"), made_margins("age"), sample_ages(), sample_ages()
    args = {**SGD, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    trainer = trained(ages, margins=margins, offset=OFFSET, class_weight=WEIGHT, args=args)
    check_close(trainer, written_out(shown(trainer), mine, naive, offset=OFFSET, weight=WEIGHT))
    assert same_state(margins, mine)
    assert same_state(ages, naive)


@pytest.mark.parametrize("name", ["offset", "class_weight"])
def test_static_offsets_and_weights_need_neither_ages_nor_a_pass(name: str) -> None:
    """With `rho=0` ages do nothing but name the samples: the same run, with and without them."""

    def never(outputs, labels):
        raise AssertionError("nothing is to be observed")

    options = {name: OFFSET if name == "offset" else WEIGHT}
    alone = trained(None, **options, correct=never, args=SGD)
    trainer = trained(sample_ages(rho=0), **options, args=SGD)
    expected = written_out(shown(trainer), offset=options.get("offset"), weight=options.get("class_weight"))
    check_close(alone, expected)
    check_close(trainer, expected)


def test_a_loss_of_ones_own_sees_adjusted_logits_in_training_only() -> None:
    seen = []

    def loss(outputs, labels, num_items_in_batch=None):
        seen.append((torch.is_grad_enabled(), outputs["logits"].detach(), outputs.logits.detach()))
        return F.cross_entropy(outputs["logits"], labels, reduction="none" if torch.is_grad_enabled() else "mean")

    margins, mine = made_margins("age"), made_margins("age")
    trainer = made(None, margins=margins, compute_loss_func=loss, eval_dataset=DATA, args=SGD)
    plain = []
    trainer.model.register_forward_hook(lambda module, given, output: plain.append(output["logits"].detach()))
    trainer.train()
    assert all(torch.equal(first, second) for _, first, second in seen)
    offsets = seen[-1][1] - plain[-1 - 3]  # three batches of the clean pass follow the last step
    torch.testing.assert_close(offsets, offsets[:1].expand_as(offsets), atol=1e-4, rtol=0)
    assert offsets.abs().max() > 0.1
    check_close(trainer, written_out(shown(trainer), mine))
    seen.clear(), plain.clear()
    found = trainer.evaluate()
    assert [torch.equal(each[1], logits) for each, logits in zip(seen, plain, strict=True)] == [True] * 3
    assert found["eval_loss"] == pytest.approx(plain_loss(trainer.model), abs=1e-4)


@torch.no_grad()
def plain_loss(model) -> float:
    batch = padded(DATA)
    labels = batch.pop("labels")
    return F.cross_entropy(model.eval()(**batch).logits, labels).item()


def test_evaluation_and_prediction_use_the_logits_alone() -> None:
    trainer = trained(None, offset=[5.0, 0.0, -5.0], eval_dataset=DATA, args={**SGD, "eval_strategy": "epoch"})
    assert trainer.evaluate()["eval_loss"] == pytest.approx(plain_loss(trainer.model), abs=1e-4)
    batch = padded(DATA)
    batch.pop("labels")
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(trainer.predict(DATA).predictions), trainer.model(**batch).logits)


def test_label_smoothing_and_half_precision_train_on_adjusted_logits() -> None:
    args = {**SGD, "label_smoothing_factor": 0.2, "bf16": True}
    margins = made_margins("age")
    plain, moved = trained(sample_ages(rho=0), args=args), trained(None, margins=margins, args=args)
    assert margins.epoch == 3
    assert losses(plain)[:4] == losses(moved)[:4]  # the first epoch has no margins
    assert losses(plain)[4:] != losses(moved)[4:]


class Pairs(torch.nn.Module):
    """A model that returns a tuple, or the logits alone."""

    def __init__(self, alone: bool) -> None:
        super().__init__()
        self.inner, self.alone = network(), alone

    def forward(self, input_ids, attention_mask, labels=None):
        logits = self.inner(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits if self.alone else (logits, input_ids)


@pytest.mark.parametrize("alone", [True, False])
def test_outputs_may_be_tuples_or_tensors(alone: bool) -> None:
    whole = trained(None, margins=made_margins("age"), offset=OFFSET, args=SGD)
    other = trained(None, margins=made_margins("age"), offset=OFFSET, args=SGD, model=Pairs(alone))
    assert losses(whole) == pytest.approx(losses(other), abs=1e-6)
    assert same_state(whole.margins, other.margins)


@pytest.mark.parametrize(("kind", "signal"), [("age", "training"), ("age", "pass"), ("pairs", "training")])
def test_a_run_resumed_from_any_step_ends_as_if_it_had_not_stopped(kind: str, signal: str, tmp_path: Path) -> None:
    def run(checkpoint: Path | None = None):
        args = {**SGD, "output_dir": str(tmp_path / ("again" if checkpoint else "whole")), "save_steps": 1}
        args |= {"save_strategy": "no" if checkpoint else "steps", "per_device_train_batch_size": 8}
        args |= {"gradient_accumulation_steps": 2}
        options = {"margins": made_margins(kind), "signal": signal, "model": network(dropout=0.2), "args": args}
        return trained(sample_ages(), checkpoint=checkpoint and str(checkpoint), **options)

    whole = run()
    for step in (1, 4, 7, 11):  # 4 is the last one of its epoch
        again = run(tmp_path / "whole" / f"checkpoint-{step}")
        assert same_state(again.margins, whole.margins), step
        assert same_state(again.ages, whole.ages), step
        assert torch.equal(weights(again), weights(whole)), step


def test_margins_of_classes_follow_a_stream() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(DATA)

    margins, mine = made_margins("pairs"), made_margins("pairs")
    args = {
        **SGD,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "max_steps": 6,
        "per_device_train_batch_size": 10,
    }
    trained(None, margins=margins, data=Stream(), signal="training", every=2, args=args)
    model = network().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for step in range(6):
        batch = padded(DATA[10 * step : 10 * step + 10])
        labels = batch.pop("labels")
        logits = model(**batch).logits
        mine.observe(labels, logits.argmax(1))
        optimizer.zero_grad()
        aol.softmax_loss(logits, labels, offset=mine.offsets).mean().backward()
        optimizer.step()
        if step % 2:
            mine.advance()
    assert margins.epoch == 3
    assert same_state(margins, mine)


def test_a_new_model_starts_with_the_margins_as_they_were_given() -> None:
    margins = made_margins("age")
    options = {"args": arguments(**SGD), "train_dataset": DATA, "data_collator": padded}
    trainer = AgeTrainer(model_init=lambda: network(), margins=margins, **options)
    trainer.train()
    first = margins.offsets
    trainer.train()
    assert margins.epoch == 3
    assert torch.equal(margins.offsets, first)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"margins": OFFSET}, TypeError, "margins must be an aol.Margins"),
        ({"margins": aol.Margins(CLASSES, labels=LABELS[:9])}, ValueError, "margins must have the 60 samples"),
        ({"offset": [[1.0]]}, ValueError, "offset must hold one finite number"),
        ({"offset": OFFSET, "resample": True}, ValueError, "resample needs ages of samples"),
    ],
)
def test_bad_input_gets_one_clear_sentence(options: dict, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named) as caught:
        made(None, **options)
    assert str(caught.value).endswith(".")


def test_which_answers_are_right_is_not_enough_for_margins() -> None:
    with pytest.raises(TypeError, match="margins need probabilities"):
        trained(
            None, margins=made_margins("age"), correct=lambda outputs, labels: outputs["logits"].argmax(1) == labels
        )
    margins, mine = made_margins("age"), made_margins("age")
    trained(None, margins=margins, correct=lambda outputs, labels: outputs["logits"].argmax(1), args=SGD)
    trained(None, margins=mine, args=SGD)
    assert same_state(margins, mine)
