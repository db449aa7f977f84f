"""Margins in the Transformers plug-in, on the text set of `examples/transformers_text.py`, compared with class counts.

Ten packages of Python's standard library, long-tailed; the mean of word embeddings and a linear layer, because the BERT
of the example takes five times as long. All methods share the data, the first weights and the order of samples of a
seed. Settings were fixed on seeds from 100 on, which are not used here.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from comparing import Record, belongs_to, report, seed_options, tables
from torch import Tensor, nn
from torch.nn import functional as F

import aol

MEASURES = {"accuracy": "Accuracy on a balanced test set, %", "worst_class": "Recall of the worst class, %"}
METHODS = (
    "none",
    "frequency^-0.5",
    "logit adjustment",
    "margins by age",
    "margins by error",
    "margins by probability",
    "margins every few steps",
)
BATCH, RATE, GAIN, WIDTH = 32, 1e-2, 0.1, 32
MOVES = 100  # of margins every few steps, in a training
SET = "docstrings"


class Words(nn.Module):
    """A classifier of the mean embedding of a text's words."""

    def __init__(self, vocabulary: int, classes: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embed = nn.Embedding(vocabulary, WIDTH)
            self.head = nn.Linear(WIDTH, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return the logits and, if there are labels, the loss."""
        there = attention_mask[..., None].float()
        logits = self.head((self.embed(input_ids) * there).sum(1) / there.sum(1).clamp_min(1))
        return ({} if labels is None else {"loss": F.cross_entropy(logits, labels)}) | {"logits": logits}


def balance(method: str, labels: Tensor, gain: float, epochs: int) -> Record:
    """Return the arguments of `AgeTrainer` for a method.

    Margins move once an epoch; for so few epochs the gain of probabilities is raised. Or they move every few steps, by
    the probabilities in training.
    """
    counts = torch.bincount(labels)
    plain = {"ages": aol.ClassAges(len(counts), rho=0), "signal": "training"}
    if method == "frequency^-0.5":
        weight = aol.frequency_weight(counts, 0.5)

        def weighted(outputs: Record, target: Tensor, num_items_in_batch: object = None) -> Tensor:
            mean = weight[target].mean()
            return aol.softmax_loss(outputs["logits"], target) * weight[target] / mean

        return {**plain, "compute_loss_func": weighted}
    if method == "logit adjustment":
        offset = aol.logit_offsets(counts)

        def adjusted(outputs: Record, target: Tensor, num_items_in_batch: object = None) -> Tensor:
            return aol.softmax_loss(outputs["logits"], target, offset=offset)

        return {**plain, "compute_loss_func": adjusted}
    if method == "margins every few steps":
        steps = epochs * -(-len(labels) // BATCH)
        return {"margins": aol.Margins(len(counts), gain=gain), "signal": "training", "every": max(1, steps // MOVES)}
    if method.startswith("margins"):
        signal = method.split()[-1]
        speed = max(gain, 3 / epochs) if signal == "probability" else gain
        return {"margins": aol.Margins(len(counts), labels=labels, signal=signal, gain=speed)}
    return plain


def train(method: str, seed: int, epochs: int, imbalance: float, gain: float = GAIN) -> dict[str, float]:
    """Train one network and return its scores on the test set, and the CPU time."""
    here = Path(__file__).parent
    sys.path = [path for path in sys.path if Path(path).resolve() != here]  # Transformers would import our kernels.py
    import transformers
    from docstrings import PACKAGES, corpus, split
    from transformers_text import tokenizer_of

    from aol.plugins.transformers import AgeTrainer

    transformers.utils.logging.set_verbosity_error()
    began = time.process_time()
    texts, labels = corpus()
    kept, test = split(labels, imbalance, seed)
    tokenizer = tokenizer_of([texts[i] for i in kept.tolist()])

    def items(index: Tensor) -> list[dict[str, object]]:
        found = tokenizer([texts[i] for i in index.tolist()], truncation=True, return_token_type_ids=False)
        return [{**{key: found[key][i] for key in found}, "label": int(labels[k])} for i, k in enumerate(index)]

    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=128,
            learning_rate=RATE,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=seed,
            dataloader_pin_memory=False,
        )
        trainer = AgeTrainer(
            model=Words(len(tokenizer), len(PACKAGES), seed),
            args=args,
            train_dataset=items(kept),
            processing_class=tokenizer,
            **balance(method, labels[kept], gain, epochs),
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        found = trainer.predict(items(test), metric_key_prefix="test")
    answers, truth = np.asarray(found.predictions).argmax(-1), np.asarray(labels[test])
    right = answers == truth
    recall = [float(right[truth == c].mean()) for c in np.unique(truth)]
    seconds = round(time.process_time() - began, 2)
    return {"accuracy": round(float(right.mean()), 5), "worst_class": round(min(recall), 5), "seconds": seconds}


def one_seed(epochs: int, imbalance: float, gain: float, seed: int) -> list[Record]:
    torch.set_num_threads(1)
    return [
        {"set": SET, "method": how, "model": "embeddings", **train(how, seed, epochs, imbalance, gain)}
        for how in METHODS
    ]


def main(words: list[str] | None = None) -> int:
    parser = seed_options("Compare margins with class counts on long-tailed text.", "margins_text.json", 20)
    parser.add_argument("--epochs", type=int, default=10, help="epochs of each run")
    parser.add_argument("--imbalance", type=float, default=20.0, help="the largest class over the smallest")
    parser.add_argument("--gain", type=float, default=GAIN, help="speed of the margins")
    given = parser.parse_args(words)
    return report(
        one_seed,
        [(given.epochs, given.imbalance, given.gain)],
        given,
        keys=("set", "method", "model"),
        settings=("imbalance", "epochs", "gain"),
        packages=("transformers", "accelerate"),
        text=text,
    )


def text(record: Record) -> str:
    """Return the tables of a record."""
    shown = tables(record, rows=("set", "method"), column="model", measures=MEASURES, baseline="none")
    return f"{belongs_to(record)}\n\n{shown}"


if __name__ == "__main__":
    sys.exit(main())
