"""A small text set, a model built from its config, and quiet trainers: what the Transformers tests share."""

from __future__ import annotations

import os
import tempfile

import torch
import transformers
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import aol
from aol.plugins.transformers import AgeTrainer

SAMPLES, CLASSES = 60, 3
FOLDER = tempfile.TemporaryDirectory(prefix="aol-hf-")  # of all that trainers write unasked; goes with the process

transformers.utils.logging.set_verbosity_error()
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def texts(samples: int = SAMPLES) -> list[dict]:
    """Return noise with labels of its own, of several lengths: nothing here can be learnt well, so that ages grow."""
    generator = torch.Generator().manual_seed(3)

    def item() -> dict:
        length = int(torch.randint(3, 9, (1,), generator=generator))
        ids = torch.randint(5, 40, (length,), generator=generator).tolist()
        label = int(torch.randint(CLASSES, (1,), generator=generator))
        return {"input_ids": ids, "attention_mask": [1] * length, "label": label}

    return [item() for _ in range(samples)]


DATA = texts()
LABELS = torch.tensor([each["label"] for each in DATA])


def padded(features: list[dict]) -> dict[str, Tensor]:
    """Collate, and refuse whatever the model does not take."""
    assert all(set(each) == {"input_ids", "attention_mask", "label"} for each in features)

    def column(name: str) -> Tensor:
        return torch.tensor([each[name] + [0] * (8 - len(each[name])) for each in features])

    labels = torch.tensor([each["label"] for each in features])
    return {"input_ids": column("input_ids"), "attention_mask": column("attention_mask"), "labels": labels}


def network(dropout: float = 0.0) -> BertForSequenceClassification:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return BertForSequenceClassification(
            BertConfig(
                vocab_size=40,
                hidden_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=16,
                max_position_embeddings=16,
                num_labels=CLASSES,
                hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=dropout,
            )
        )


def arguments(**options) -> TrainingArguments:
    settings = {
        "output_dir": options.pop("output_dir", None) or tempfile.mkdtemp(dir=FOLDER.name),
        "num_train_epochs": 3,
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 25,
        "learning_rate": 0.01,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(**{**settings, **options})


def sample_ages(**options) -> aol.SampleAges:
    return aol.SampleAges(LABELS, num_classes=CLASSES, **{"rho": 0.5, "level": "sample", **options})


def made_margins(signal: str) -> aol.Margins:
    """Return margins that move easily."""
    return aol.Margins(CLASSES, signal=signal, gain=0.5, width=0.0)


def weights(trainer: Trainer) -> Tensor:
    return nn.utils.parameters_to_vector(trainer.model.parameters()).detach().clone()


def losses(trainer: Trainer) -> list[float]:
    return [each["loss"] for each in trainer.state.log_history if "loss" in each]


class Recorded(AgeTrainer):
    """Notes which samples each optimiser step saw."""

    def get_batch_samples(self, *args):
        batches, items = super().get_batch_samples(*args)
        self.seen = [*getattr(self, "seen", []), [batch.get("age_key", batch["labels"]).tolist() for batch in batches]]
        return batches, items


def made(
    ages, *, kind: type[Trainer] = Recorded, model=None, data=None, args: dict | None = None, **options
) -> Trainer:
    """Return a trainer of the small set; `ages` None makes it one that knows no ages."""
    mine = {} if ages is None else {"ages": ages}
    found = kind(
        model=model or network(),
        args=arguments(**(args or {})),
        train_dataset=DATA if data is None else data,
        data_collator=options.pop("data_collator", padded),
        **mine,
        **options,
    )
    found.remove_callback(transformers.PrinterCallback)
    return found


def trained(ages, *, checkpoint: str | bool | None = None, **options) -> Trainer:
    found = made(ages, **options)
    found.train(resume_from_checkpoint=checkpoint)
    return found
