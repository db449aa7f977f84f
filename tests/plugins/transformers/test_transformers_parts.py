"""Ages of tokens and of multi-label samples in the Trainer, against naive counts and the Trainer itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    Trainer,
    TrainerCallback,
)

import aol
from tests.support.small_transformers import arguments, made, trained, weights

SAMPLES, CLASSES, IGNORED = 40, 3, -100


def items(kind: str) -> list[dict]:
    generator = torch.Generator().manual_seed(5)

    def item() -> dict:
        length = int(torch.randint(3, 9, (1,), generator=generator))
        ids = torch.randint(5, 40, (length,), generator=generator).tolist()
        if kind == "tokens":  # the first and the last have no label, as special tokens
            label = [IGNORED, *torch.randint(CLASSES, (length - 2,), generator=generator).tolist(), IGNORED]
        else:
            label = torch.randint(2, (CLASSES,), generator=generator).float().tolist()
        return {"input_ids": ids, "attention_mask": [1] * length, "label": label}

    return [item() for _ in range(SAMPLES)]


def collate(features: list[dict]) -> dict[str, torch.Tensor]:
    """Pads to the longest of the batch."""
    most = max(len(each["input_ids"]) for each in features)

    def column(name: str, fill: int) -> torch.Tensor:
        return torch.tensor([each[name] + [fill] * (most - len(each[name])) for each in features])

    tokens = isinstance(features[0]["label"][0], int)
    labels = column("label", IGNORED) if tokens else torch.tensor([each["label"] for each in features])
    return {"input_ids": column("input_ids", 0), "attention_mask": column("attention_mask", 0), "labels": labels}


def network(kind: str):
    config = BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        problem_type="multi_label_classification" if kind == "labels" else None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return (BertForTokenClassification if kind == "tokens" else BertForSequenceClassification)(config)


def ages_of(data: list[dict], **settings) -> aol.PartAges:
    rows = [each["label"] for each in data]
    tokens = isinstance(rows[0][0], int)
    return aol.PartAges(rows if tokens else aol.pair_classes(rows), level="part", **settings)


class Counting(TrainerCallback):
    """Counts naively, sample by sample, before the trainer advances its ages."""

    def __init__(self, data: list[dict]) -> None:
        self.data, self.age = data, {}

    def on_epoch_end(self, args, state, control, model=None, **kwargs) -> None:
        model.eval()
        for sample, item in enumerate(self.data):
            batch = collate([item])
            with torch.no_grad():
                logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[0]
            label = batch["labels"][0]
            right = (logits > 0) == (label > 0) if label.is_floating_point() else logits.argmax(-1) == label
            known = [bool(each) for each, y in zip(right, label, strict=True) if y != IGNORED]
            for part, answer in enumerate(known):
                self.age[sample, part] = 1 if answer else self.age.get((sample, part), 1) + 1
        model.train()


@pytest.mark.parametrize("kind", ["tokens", "labels"])
def test_parts_age_as_counted_one_by_one(kind):
    data = items(kind)
    counting = Counting(data)
    trainer = trained(ages_of(data), model=network(kind), data=data, data_collator=collate, callbacks=[counting])
    assert trainer.ages.epoch == 3
    assert trainer.ages.to_frame()["age"].to_dict() == counting.age
    assert max(counting.age.values()) > 2


@pytest.mark.parametrize("kind", ["tokens", "labels"])
@pytest.mark.parametrize("signal", ["pass", "training"])
def test_without_weights_it_trains_as_the_trainer_does(kind, signal):
    data = items(kind)
    plain = Trainer(model=network(kind), args=arguments(), train_dataset=data, data_collator=collate)
    plain.train()
    aged = trained(ages_of(data, rho=0.0), model=network(kind), data=data, data_collator=collate, signal=signal)
    torch.testing.assert_close(weights(aged), weights(plain), rtol=1e-4, atol=1e-5)
    assert int(aged.ages.parts.age.max()) > 1


@pytest.mark.parametrize("kind", ["tokens", "labels"])
def test_the_loss_is_the_weighted_mean_over_all_parts_of_a_step(kind):
    data = items(kind)
    ages = ages_of(data, rho=1.0)
    ages.parts.observe(range(ages.parts.num_samples), torch.arange(ages.parts.num_samples) % 3 == 0)
    ages.advance()
    whole = made(ages, model=network(kind), data=data, data_collator=collate)
    batches = [collate(data[begin : begin + 8]) for begin in (0, 8)]
    for number, batch in enumerate(batches):
        batch["age_key"] = torch.arange(8 * number, 8 * number + 8)
    whole._train_batch_size = 8
    given, _ = whole.get_batch_samples(iter(batches), 2, torch.device("cpu"))
    found = sum(float(whole.compute_loss(whole.model, dict(batch))) for batch in given)

    total = share = 0.0
    for batch, begin in zip(batches, (0, 8), strict=True):
        logits = whole.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.double()
        labels = batch["labels"]
        for row, item in enumerate(data[begin : begin + 8]):
            weight = ages.split(ages.parts.weights)[begin + row]
            known = [column for column, label in enumerate(item["label"]) if label != IGNORED]
            for part, column in enumerate(known):
                if kind == "tokens":
                    loss = -logits[row, column].log_softmax(0)[labels[row, column]]
                else:
                    sign = 2 * labels[row, column] - 1
                    loss = -F.logsigmoid(sign * logits[row, column])
                total += float(weight[part]) * float(loss)
                share += float(weight[part])
    assert found == pytest.approx(total / share, rel=1e-5)


def test_a_loss_and_answers_of_ones_own_are_by_part():
    data = items("tokens")

    def loss(outputs, labels, num_items_in_batch=None):
        return F.cross_entropy(outputs["logits"].mT, labels, reduction="none")

    def right(outputs, labels):
        return outputs["logits"].argmax(-1) == labels

    settings = {"model": network("tokens"), "data": data, "data_collator": collate}
    mine = trained(ages_of(data), compute_loss_func=loss, correct=right, **settings)
    theirs = trained(ages_of(data), **{**settings, "model": network("tokens")})
    torch.testing.assert_close(weights(mine), weights(theirs))
    assert mine.ages.parts.age.equal(theirs.ages.parts.age)


def test_samples_are_drawn_by_the_mean_weight_of_their_parts():
    data = items("tokens")
    trainer = trained(ages_of(data), model=network("tokens"), data=data, data_collator=collate, resample=True)
    assert trainer.ages.epoch == 3


def test_data_in_another_order_or_of_another_size_are_refused():
    data = items("tokens")
    with pytest.raises(ValueError, match="samples"):
        made(ages_of(data[1:]), model=network("tokens"), data=data, data_collator=collate)
    with pytest.raises(ValueError, match="label"):
        trained(ages_of(data[::-1]), model=network("tokens"), data=data, data_collator=collate)


def test_ages_of_parts_go_on_from_a_checkpoint(tmp_path):
    data = items("tokens")
    settings = {"data": data, "data_collator": collate}
    args = {"save_strategy": "steps", "save_steps": 2, "output_dir": str(tmp_path)}
    whole = trained(ages_of(data), model=network("tokens"), args=args, **settings)
    again = trained(
        ages_of(data), model=network("tokens"), args=args, checkpoint=str(tmp_path / "checkpoint-4"), **settings
    )
    assert again.ages.parts.ema.equal(whole.ages.parts.ema)
    torch.testing.assert_close(weights(again), weights(whole))
