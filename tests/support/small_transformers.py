"""A small text set, a model built from its config, and quiet trainers: what the Transformers tests share."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import aol
from aol.plugins.transformers import ComputeLoss, WatchCallback

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
LABELS = torch.tensor([row["label"] for row in DATA])


def padded(features: list[dict]) -> dict[str, Tensor]:
    """Collate to equal lengths."""

    def column(name: str) -> Tensor:
        return torch.tensor([row[name] + [0] * (8 - len(row[name])) for row in features])

    labels = torch.tensor([row["label"] for row in features])
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


def weights(trainer: Trainer) -> Tensor:
    return nn.utils.parameters_to_vector(trainer.model.parameters()).detach().clone()


def losses(trainer: Trainer) -> list[float]:
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


class ByAge(nn.Module):
    """Cross-entropy weighted by the ages of classes, which counts its calls."""

    def __init__(self, ages: aol.SampleAges) -> None:
        super().__init__()
        self.weight = lambda labels: ages.class_weight[labels]
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        self.calls += torch.is_grad_enabled()
        scale = 1.0 + 0.01 * self.calls  # so that a state that is lost shows
        return scale * (self.weight(labels) * nn.functional.cross_entropy(logits, labels, reduction="none")).mean()


def made(folder=None, *, model=None, data=None, args: dict | None = None, aged=True, **options) -> tuple[Trainer, Any]:
    """Return a trainer of the small set, weighted by age unless told otherwise, and its callback.

    Without a folder, or not `aged`, the trainer knows no ages.
    """
    watch = {name: options.pop(name) for name in ("train_set", "every", "ages") if name in options}
    options.setdefault("data_collator", padded)
    given = {"model": model or network()} if "model_init" not in options else {}
    trainer = Trainer(args=arguments(**(args or {})), train_dataset=DATA if data is None else data, **given, **options)
    trainer.remove_callback(transformers.PrinterCallback)
    callback = None if folder is None else WatchCallback(trainer, folder, **watch)
    if callback is not None and aged:
        trainer.compute_loss_func = ComputeLoss(ByAge(callback.ages))
        trainer.add_callback(trainer.compute_loss_func)
    return trainer, callback


def trained(folder=None, *, checkpoint: str | bool | None = None, **options) -> tuple[Trainer, Any]:
    trainer, callback = made(folder, **options)
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer, callback
