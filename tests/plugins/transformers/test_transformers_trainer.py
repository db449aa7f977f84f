"""Ages of classes, other trainers, other losses, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import IterableDataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

import aol
from aol.plugins.transformers import AgeTrainer
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


def test_another_precision_trains_nearly_alike() -> None:
    ages, plain = sample_ages(), trained(sample_ages(), args={"num_train_epochs": 2})
    other = trained(ages, args={"num_train_epochs": 2, "bf16": True})
    assert losses(other) == pytest.approx(losses(plain), abs=0.05)
    assert ages.epoch == 2
    assert ages.ema.max() > 1


# Bad input


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"ages": [1, 2]}, TypeError, "ages must be SampleAges"),
        ({"ages": aol.SampleAges(LABELS, rho=[0.1, 0.5])}, ValueError, "must be of one run"),
        ({"signal": "loss"}, ValueError, "signal must be one of"),
        ({"every": 0}, ValueError, "every must be a whole number"),
        ({"every": 3, "resample": True}, ValueError, "resample needs SampleAges, and no every"),
        ({"ages": aol.ClassAges(3), "resample": True}, ValueError, "resample needs SampleAges"),
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

    with pytest.raises(ValueError, match="Batches must be mappings that hold labels, not only input_ids"):
        trained(sample_ages(), data_collator=collate)


def test_samples_that_cannot_carry_their_place_are_refused() -> None:
    def collate(features):
        return padded([each[0] for each in features])

    with pytest.raises(ValueError, match="Batches must be mappings"):
        trained(sample_ages(), data=[(each,) for each in DATA], data_collator=collate)


def test_ages_must_be_given() -> None:
    with pytest.raises(TypeError, match="ages"):
        AgeTrainer(model=network(), args=arguments(), train_dataset=DATA)


def test_a_callback_sees_the_ages_of_the_epoch_that_has_just_ended() -> None:
    class Watching(TrainerCallback):
        def __init__(self) -> None:
            self.epochs: list[int] = []

        def on_epoch_end(self, args, state, control, **kwargs) -> None:
            self.epochs.append(ages.epoch)

    ages, watching = sample_ages(), Watching()
    trained(ages, callbacks=[watching])
    assert watching.epochs == [1, 2, 3]


@pytest.mark.parametrize("signal", ["pass", "training"])
def test_data_in_another_order_than_the_labels_are_refused(signal: str) -> None:
    shuffled = [DATA[i] for i in torch.randperm(len(DATA), generator=torch.Generator().manual_seed(0)).tolist()]
    ages = sample_ages()
    with pytest.raises(ValueError, match="label must be the class of each sample"):
        trained(ages, data=shuffled, signal=signal)
    assert ages.epoch == 0
