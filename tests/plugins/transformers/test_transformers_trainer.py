"""Ages of classes, other trainers, other losses, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import IterableDataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainerCallback

import aol
from aol.plugins.transformers import AgeTrainer, logger
from tests.support.small_transformers import (
    CLASSES,
    DATA,
    LABELS,
    Recorded,
    arguments,
    losses,
    made,
    network,
    padded,
    sample_ages,
    trained,
)

PLAIN_SGD = {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", "optim": "sgd", "learning_rate": 0.3}


# Classes and streams


class Stream(IterableDataset):
    """Samples in order, without a length."""

    def __iter__(self) -> Iterator[dict]:
        return iter(DATA)


@pytest.mark.parametrize("data", [DATA, Stream()], ids=["map", "stream"])
def test_ages_of_classes_follow_the_labels_of_the_batches(data) -> None:
    ages, naive = aol.ClassAges(CLASSES, rho=0.5), aol.ClassAges(CLASSES, rho=0.5)
    args = {**PLAIN_SGD, "max_steps": 8, "train_sampling_strategy": "sequential", "gradient_accumulation_steps": 2}
    args["per_device_train_batch_size"] = 10
    trainer = trained(ages, data=data, signal="training", every=2, args=args)

    model, path = network().train(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for step in range(8):
        batch = padded(DATA[step % 3 * 20 : step % 3 * 20 + 20])
        labels = batch.pop("labels")
        logits, weight = model(**batch).logits, naive.weight(labels)
        naive.observe(labels, logits.argmax(1) == labels)
        loss = (weight * F.cross_entropy(logits, labels, reduction="none")).sum() / weight.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        path.append(loss.item())
        if step % 2:
            naive.advance()
    assert ages.epoch == naive.epoch == 4
    assert losses(trainer) == pytest.approx(path, abs=1e-5)
    assert torch.equal(ages.age, naive.age)


def test_ages_of_classes_may_come_from_the_clean_pass() -> None:
    ages = aol.ClassAges(CLASSES)
    trained(ages)
    assert ages.epoch == 3
    assert not ages.accuracy.isnan().any()


# What a Trainer does


def test_a_new_model_starts_with_the_ages_as_they_were_given() -> None:
    ages = sample_ages()
    trainer = Recorded(
        model_init=lambda: network(),
        args=arguments(),
        train_dataset=DATA,
        data_collator=padded,
        ages=ages,
        callbacks=[],
    )
    trainer.train()
    first, path = ages.age, losses(trainer)
    trainer.train()
    assert ages.epoch == 3
    assert torch.equal(ages.age, first)
    assert losses(trainer) == path


def test_a_second_training_goes_on_with_the_ages() -> None:
    ages = sample_ages()
    trainer = trained(ages)
    trainer.train()
    assert ages.epoch == 6


def test_it_goes_before_any_other_trainer() -> None:
    class Mine(AgeTrainer, Seq2SeqTrainer):
        pass

    ages = sample_ages()
    options = {**arguments().to_dict(), "num_train_epochs": 1}
    kept = ("output_dir", "num_train_epochs", "use_cpu", "save_strategy", "report_to", "disable_tqdm")
    args = Seq2SeqTrainingArguments(**{key: options[key] for key in kept})
    Mine(model=network(), args=args, train_dataset=DATA, data_collator=padded, ages=ages).train()
    assert ages.epoch == 1


class Halved(Trainer):
    """A Trainer with a loss of its own."""

    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs) / 2


def test_a_loss_of_a_trainer_below_is_refused_and_not_passed_over() -> None:
    class Mine(AgeTrainer, Halved):
        pass

    with pytest.raises(TypeError, match="The compute_loss of Halved would not be called"):
        made(sample_ages(), kind=Mine)


def test_a_loss_of_a_trainer_above_scales_what_was_weighted() -> None:
    class Mine(Halved, AgeTrainer):
        pass

    whole, half = trained(sample_ages(rho=0)), trained(sample_ages(rho=0), kind=Mine)
    assert losses(half)[0] == pytest.approx(losses(whole)[0] / 2, abs=1e-4)


def test_a_loss_that_does_not_ask_for_the_weighted_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unweighted(AgeTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            inputs.pop("age_key")
            return Trainer.compute_loss(self, model, inputs, return_outputs, num_items_in_batch)

    said: list[str] = []
    monkeypatch.setattr(logger, "warning", said.append)
    trained(sample_ages(), kind=Unweighted)
    assert said == ["compute_loss of Unweighted does not ask that of AgeTrainer: nothing was weighted."] * 3
    said.clear()
    trained(sample_ages())
    assert said == []


@pytest.mark.parametrize(
    ("options", "off"),
    [({"bf16": True}, 0.05), ({"torch_compile": True, "torch_compile_backend": "aot_eager"}, 1e-4)],
    ids=["bf16", "compiled"],
)
def test_other_precisions_and_compiled_models_train_nearly_alike(options: dict, off: float) -> None:
    ages, plain = sample_ages(), trained(sample_ages(), args={"num_train_epochs": 2})
    other = trained(ages, args={"num_train_epochs": 2, **options})
    assert losses(other) == pytest.approx(losses(plain), abs=off)
    assert ages.epoch == 2
    assert ages.ema.max() > 1


def test_a_model_may_return_its_logits_alone() -> None:
    class Bare(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, input_ids, attention_mask):
            return self.net(input_ids, attention_mask).logits

    whole, bare = trained(sample_ages()), trained(sample_ages(), model=Bare())
    assert losses(bare) == losses(whole)


def test_several_labels_a_sample_need_a_loss_and_a_meaning_of_right() -> None:
    def collate(features):
        batch = padded(features)
        batch["labels"] = F.one_hot(batch["labels"], CLASSES).float()
        return batch

    def loss(outputs, labels, num_items_in_batch=None):
        return F.binary_cross_entropy_with_logits(outputs["logits"], labels, reduction="none").sum(1)

    def correct(outputs, labels):
        return ((outputs["logits"] > 0) == labels.bool()).all(1)

    ages = sample_ages()
    trained(ages, data_collator=collate, compute_loss_func=loss, correct=correct)
    assert ages.epoch == 3
    with pytest.raises(ValueError, match="labels must be one class a sample"):
        trained(sample_ages(), data_collator=collate)


# Bad input


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"ages": [1, 2]}, TypeError, "ages must be SampleAges"),
        ({"ages": aol.SampleAges([0, 1])}, ValueError, "ages must have the 60 samples of the training set, not 2"),
        ({"ages": aol.SampleAges(LABELS, rho=[0.1, 0.5])}, ValueError, "ages must be of one run"),
        ({"signal": "loss"}, ValueError, "signal must be one of"),
        ({"every": 0}, ValueError, "every must be a whole number"),
        ({"every": 3, "resample": True}, ValueError, "every cannot go with resample"),
        ({"divide_by": "sum"}, ValueError, "divide_by must be one of"),
        ({"clean_dataset": DATA[:9]}, ValueError, "ages must have the 9 samples of the training set, not 60"),
        ({"ages": aol.ClassAges(3), "resample": True}, ValueError, "resample needs ages of samples"),
        ({"data": Stream(), "args": {"max_steps": 2}}, ValueError, "An iterable train_dataset needs ages of classes"),
        ({"ages": aol.ClassAges(3), "data": Stream(), "args": {"max_steps": 2}}, ValueError, 'signal="training"'),
    ],
)
def test_bad_input_gets_one_clear_sentence(options: dict, error: type[Exception], named: str) -> None:
    ages = options.pop("ages", None) or sample_ages()
    with pytest.raises(error, match=named) as caught:
        made(ages, **options)
    assert str(caught.value).endswith(".")


def test_a_training_set_of_another_size_than_at_first_is_refused() -> None:
    trainer = made(sample_ages())
    trainer.train_dataset = DATA[:30]
    with pytest.raises(ValueError, match="ages must have the 30 samples of the training set, not 60"):
        trainer.train()


def test_batches_without_labels_are_refused() -> None:
    def collate(features):
        batch = padded(features)
        return {"input_ids": batch["input_ids"]}

    with pytest.raises(ValueError, match="Batches must hold labels, not only input_ids"):
        trained(sample_ages(), data_collator=collate)


def test_samples_that_cannot_carry_their_place_are_refused() -> None:
    def collate(features):
        return padded([each[0] for each in features])

    with pytest.raises(ValueError, match="Samples of train_dataset must be mappings"):
        trained(sample_ages(), data=[(each,) for each in DATA], data_collator=collate)


def test_ages_must_be_given() -> None:
    with pytest.raises(TypeError, match="ages"):
        AgeTrainer(model=network(), args=arguments(), train_dataset=DATA)


def test_accumulation_is_refused_where_the_host_would_scale_the_loss_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Trainer, "loss_is_scaled_for_ga")  # as before Transformers 5.20
    made(sample_ages())
    with pytest.raises(ValueError, match=r"gradient_accumulation_steps above 1 needs Transformers 5\.20"):
        made(sample_ages(), args={"gradient_accumulation_steps": 2})


def test_a_callback_sees_the_ages_of_the_epoch_that_has_just_ended() -> None:
    class Watching(TrainerCallback):
        def __init__(self) -> None:
            self.epochs: list[int] = []

        def on_epoch_end(self, args, state, control, **kwargs) -> None:
            self.epochs.append(ages.epoch)

    ages, watching = sample_ages(), Watching()
    trained(ages, callbacks=[watching])
    assert watching.epochs == [1, 2, 3]


SHUFFLED = [DATA[i] for i in torch.randperm(len(DATA), generator=torch.Generator().manual_seed(0)).tolist()]


@pytest.mark.parametrize("signal", ["pass", "training"])
def test_data_in_another_order_than_the_labels_are_refused_before_the_first_step(signal: str) -> None:
    trainer = made(sample_ages(), data=SHUFFLED, signal=signal)
    with pytest.raises(ValueError, match=r"label must be the class of each sample.* another order"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_a_clean_set_in_another_order_is_refused_too() -> None:
    with pytest.raises(ValueError, match="label must be the class of each sample"):
        trained(sample_ages(), clean_dataset=SHUFFLED)


def test_another_set_in_a_second_training_is_compared_again() -> None:
    trainer = trained(sample_ages(), args={"num_train_epochs": 1})
    trainer.train_dataset = SHUFFLED
    with pytest.raises(ValueError, match="label must be the class of each sample"):
        trainer.train()
