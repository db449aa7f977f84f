"""Margins, static offsets and static weights in Lightning against a loop written out: alone, with ages, resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

import aol
from aol.plugins.lightning import AgeOfLearning
from tests.support.plugin_checks import same_state
from tests.support.small_lightning import (
    CLASSES,
    DATA,
    IMAGES,
    LABELS,
    SAMPLES,
    Adjusted,
    Net,
    Stream,
    fitted,
    made_margins,
    rate,
    sample_ages,
    trainer,
)

COUNTS = torch.bincount(LABELS)
OFFSET = aol.logit_offsets([30, 20, 10], tau=1.5)
WEIGHT = torch.tensor([0.5, 1.0, 1.5])


def written_out(
    margins: aol.Margins | None = None,
    ages: aol.SampleAges | None = None,
    *,
    signal: str = "pass",
    offset: Tensor | None = None,
    weight: Tensor | None = None,
    epochs: int = 3,
) -> Net:
    """Train the network of `Adjusted` step by step, in plain PyTorch."""
    model, order = Net(), aol.ShuffledSampler(SAMPLES, seed=2)
    optimizer = model.configure_optimizers()
    step, largest = 0, 0.0
    for epoch in range(epochs):
        order.set_epoch(epoch)
        for index in torch.tensor(list(order)).split(16):
            lr = 0.3 * rate(step)
            largest, step = max(largest, lr), step + 1
            optimizer.param_groups[0]["lr"] = lr
            logits, y = model(IMAGES[index]), LABELS[index]
            observe(margins, ages, index, logits) if signal == "training" else None
            moved = logits + (0 if margins is None else margins.offsets) + (0 if offset is None else offset)
            w = torch.ones(len(y)) if ages is None else ages.weight(index)
            w = w if weight is None else w * weight[y]
            optimizer.zero_grad()
            ((w * F.cross_entropy(moved, y, reduction="none")).sum() / w.sum()).backward()
            optimizer.step()
        with torch.no_grad():
            observe(margins, ages, torch.arange(SAMPLES), model(IMAGES)) if signal == "pass" else None
        if ages is not None:
            ages.advance()
        if margins is not None:
            margins.advance(scale=lr / largest)
    return model


def observe(margins: aol.Margins | None, ages: aol.SampleAges | None, index: Tensor, logits: Tensor) -> None:
    answer = logits.argmax(1)
    if ages is not None:
        ages.observe(index, answer == LABELS[index])
    if margins is not None:
        told = logits.detach().softmax(1) if margins.signal == "probability" else answer
        margins.observe(index if margins._labels is not None else LABELS[index], told)


@pytest.mark.parametrize("signal", ["pass", "training"])
@pytest.mark.parametrize(
    ("kind", "aged"), [("age", False), ("age", True), ("pairs", True), ("error", True), ("probability", True)]
)
def test_margins_train_as_the_loop_written_out(kind: str, aged: bool, signal: str) -> None:
    margins, mine = made_margins(kind), made_margins(kind)
    ages, naive = (sample_ages(), sample_ages()) if aged else (None, None)
    aging = AgeOfLearning(ages, margins=margins, signal=signal)
    model = fitted(aging, Adjusted(signal))
    expected = written_out(mine, naive, signal=signal)
    assert same_state(margins, mine) or kind == "probability"  # which rounding changes
    torch.testing.assert_close(margins.offsets, mine.offsets, atol=1e-4, rtol=1e-4)
    assert margins.offsets.abs().max() > 0.1
    torch.testing.assert_close(model.weights(), expected.weights(), atol=1e-6, rtol=1e-5)
    if aged:
        assert same_state(ages, naive)


@pytest.mark.parametrize("kind", ["pairs", "error"])
def test_margins_of_classes_need_no_index(kind: str) -> None:
    margins, mine = made_margins(kind), made_margins(kind)
    aging = AgeOfLearning(margins=margins)
    loader = DataLoader(DATA, batch_size=16, sampler=aol.ShuffledSampler(SAMPLES, seed=2))
    model = fitted(aging, Adjusted(), loader=loader)
    torch.testing.assert_close(model.weights(), written_out(mine).weights(), atol=1e-6, rtol=1e-5)
    assert same_state(margins, mine)


def test_margins_of_samples_go_with_ages_of_classes() -> None:
    """The index is the key, and the ages of classes get the labels that belong to it."""
    margins, ages = made_margins("age"), aol.ClassAges(CLASSES, rho=0.5, threshold=0.5)
    model = fitted(AgeOfLearning(ages, margins=margins), Adjusted())
    right = model(IMAGES).argmax(1) == LABELS
    for c in range(CLASSES):
        assert ages.accuracy[c] == pytest.approx(right[c == LABELS].double().mean().item())
    assert (ages.epoch, margins.epoch) == (3, 3)


@pytest.mark.parametrize("options", [{"offset": OFFSET}, {"class_weight": WEIGHT}, {"offset": OFFSET.tolist()}])
def test_static_offsets_and_weights_need_neither_ages_nor_a_pass(options: dict) -> None:
    def never(module, batch):
        raise AssertionError("nothing is to be observed")

    aging = AgeOfLearning(**options, answer=never)
    loader = DataLoader(DATA, batch_size=16, sampler=aol.ShuffledSampler(SAMPLES, seed=2))
    model = fitted(aging, Adjusted(), loader=loader)
    expected = written_out(offset=OFFSET if "offset" in options else None, weight=options.get("class_weight"))
    torch.testing.assert_close(model.weights(), expected.weights(), atol=1e-6, rtol=1e-5)


def test_all_of_them_go_together_and_with_accumulation() -> None:
    margins, mine, ages, naive = made_margins("age"), made_margins("age"), sample_ages(), sample_ages()
    aging = AgeOfLearning(ages, margins=margins, offset=OFFSET, class_weight=WEIGHT)
    loader = aging.loader(DATA, batch_size=4, seed=2)
    model = fitted(aging, Adjusted(), loader=loader, accumulate_grad_batches=4)
    expected = written_out(mine, naive, offset=OFFSET, weight=WEIGHT)
    assert same_state(ages, naive)
    assert same_state(margins, mine)
    torch.testing.assert_close(model.weights(), expected.weights(), atol=1e-6, rtol=1e-5)


def test_validation_and_prediction_use_the_logits_alone() -> None:
    aging, model = AgeOfLearning(offset=[5.0, 0.0, -5.0]), Adjusted()
    fitting = trainer(aging, max_epochs=1)
    loader = DataLoader(DATA, batch_size=16, sampler=aol.ShuffledSampler(SAMPLES, seed=2))
    fitting.fit(model, loader, DataLoader(DATA, batch_size=60))
    plain = F.cross_entropy(model(IMAGES), LABELS).item()
    assert fitting.callback_metrics["val_loss"].item() == pytest.approx(plain, rel=1e-5)
    assert F.cross_entropy(model(IMAGES) + torch.tensor([5.0, 0.0, -5.0]), LABELS).item() != pytest.approx(
        plain, abs=0.1
    )
    (found,) = fitting.predict(model, DataLoader(IMAGES, batch_size=60))
    torch.testing.assert_close(found, model(IMAGES))


def test_mixed_precision_adjusts_in_full() -> None:
    margins = made_margins("age")
    aging = AgeOfLearning(margins=margins)

    class Half(Adjusted):
        def training_step(self, batch, batch_idx):
            half = self(batch[0])
            full = aging.adjust(half)
            assert (half.dtype, full.dtype) == (torch.bfloat16, torch.float32)
            torch.testing.assert_close(full, half.float() + margins.offsets)
            return super().training_step(batch, batch_idx)

    fitted(aging, Half(), precision="bf16-mixed")
    assert margins.epoch == 3


@pytest.mark.parametrize(("kind", "signal"), [("age", "training"), ("pairs", "training"), ("age", "pass")])
def test_a_run_resumed_within_an_epoch_ends_as_if_it_had_not_stopped(kind: str, signal: str, tmp_path: Path) -> None:
    def run(checkpoint: Path | None = None):
        margins = made_margins(kind)
        aging = AgeOfLearning(sample_ages(), margins=margins, signal=signal)
        saving = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
        fitting = trainer(aging, *([] if checkpoint else [saving]), enable_checkpointing=checkpoint is None)
        model = Adjusted(signal)
        fitting.fit(model, aging.loader(DATA, batch_size=16, seed=4), ckpt_path=checkpoint, weights_only=True)
        return margins, model

    margins, whole = run()
    for step in (2, 4, 7, 11):
        again, resumed = run(tmp_path / f"step={step}.ckpt")
        assert same_state(again, margins), step
        assert torch.equal(resumed.weights(), whole.weights()), step


def test_margins_follow_a_stream_by_optimiser_steps() -> None:
    margins, mine = made_margins("pairs"), made_margins("pairs")
    aging = AgeOfLearning(margins=margins, signal="training", every=2)
    fitted(aging, Adjusted("training"), loader=aging.loader(Stream(), batch_size=10), max_epochs=1)
    model = Net()
    optimizer = model.configure_optimizers()
    for step in range(6):
        optimizer.param_groups[0]["lr"] = 0.3 * rate(step)
        shown = slice(10 * step, 10 * step + 10)
        logits = model(IMAGES[shown])
        mine.observe(LABELS[shown], logits.argmax(1))
        optimizer.zero_grad()
        aol.softmax_loss(logits, LABELS[shown], offset=mine.offsets).mean().backward()
        optimizer.step()
        if step % 2:
            mine.advance(scale=rate(step) / max(rate(before) for before in range(step + 1)))
    assert same_state(margins, mine)
    assert margins.epoch == 3


def test_answers_of_another_form_are_predicted_classes() -> None:
    def right(module, batch):
        return aol.is_correct(module(batch[0]), batch[1])

    def named(module, batch):
        return module(batch[0]).argmax(1)

    margins, mine, ages, naive = made_margins("age"), made_margins("age"), sample_ages(), sample_ages()
    fitted(AgeOfLearning(ages, margins=margins, answer=named), Adjusted())
    written_out(mine, naive)
    assert same_state(margins, mine)
    assert same_state(ages, naive)
    with pytest.raises(TypeError, match="margins need probabilities"):
        fitted(AgeOfLearning(margins=made_margins("age"), answer=right), Adjusted())


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: AgeOfLearning(), TypeError, "ages, margins, class_weight or offset must be given"),
        (lambda: AgeOfLearning(margins=OFFSET), TypeError, "margins must be an aol.Margins"),
        (lambda: AgeOfLearning(margins=aol.Margins(3, gain=[0.1, 0.2])), ValueError, "margins must be of one run"),
        (lambda: AgeOfLearning(offset=[[0.0]]), ValueError, "offset must hold one finite number for each class"),
        (lambda: AgeOfLearning(class_weight=[1.0, torch.nan]), ValueError, "class_weight must hold one finite number"),
        (
            lambda: AgeOfLearning(sample_ages(), margins=aol.Margins(3, labels=LABELS.flip(0))),
            ValueError,
            "margins must have the labels of ages",
        ),
        (
            lambda: AgeOfLearning(margins=aol.Margins(3, labels=LABELS[:9])).loader(DATA),
            ValueError,
            "margins must have the 60 samples of the training set, not 9",
        ),
    ],
)
def test_bad_input_gets_one_clear_sentence(call, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named) as caught:
        call()
    assert str(caught.value).endswith(".")


def test_a_state_of_other_margins_is_refused_and_nothing_changes() -> None:
    aging, other = (AgeOfLearning(sample_ages(), margins=made_margins(kind)) for kind in ("pairs", "error"))
    fitted(aging, Adjusted(), max_epochs=1)
    before = sample_ages()
    before.load_state_dict(aging.ages.state_dict())
    with pytest.raises(ValueError, match="signal"):
        aging.load_state_dict(other.state_dict())
    assert same_state(aging.ages, before)
    assert before.epoch == 1
    with pytest.raises(ValueError, match="holds margins, which were not given"):
        AgeOfLearning(sample_ages()).load_state_dict(aging.state_dict())
