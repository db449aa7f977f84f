"""Which package does a sentence of Python's own documentation come from? Plain, by frequency, by age; one table.

Texts are the docstrings of the standard library, so nothing is downloaded. The vocabulary is made from them, and the
model, a small BERT, from its config. All runs of a seed share the data, the initial weights and (except for resampling)
the order of batches. Nothing was tuned on these data.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time

import torch
import transformers
from comparison import FOOTNOTE, options, table, tail_mean
from docstrings import PACKAGES, corpus, split
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainingArguments,
)

import aol
from aol.plugins.transformers import AgeTrainer

METHODS = ("none", "frequency^-0.5", "AoL class", "AoL sample", "AoL class, resampled")


def tokenizer_of(texts: list[str]) -> PreTrainedTokenizerFast:
    """Return a word tokenizer with the vocabulary of the texts."""
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.train_from_iterator(texts, trainers.WordLevelTrainer(min_frequency=2, special_tokens=["[PAD]", "[UNK]"]))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=48)


def model_of(vocabulary: int, seed: int) -> BertForSequenceClassification:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return BertForSequenceClassification(
            BertConfig(
                vocab_size=vocabulary,
                hidden_size=64,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=128,
                max_position_embeddings=48,
                num_labels=len(PACKAGES),
                pad_token_id=0,
            )
        )


class Accuracies(TrainerCallback):
    """Stores the test accuracy of each epoch."""

    def __init__(self) -> None:
        self.curve: list[float] = []

    def on_evaluate(self, args, state, control, metrics, **kwargs) -> None:
        """Store the test accuracy."""
        self.curve.append(metrics["eval_accuracy"])


def train(method: str, seed: int, epochs: int, imbalance: float) -> dict[str, float]:
    """Train one network and return its accuracy on the balanced test set."""
    texts, labels = corpus()
    kept, test = split(labels, imbalance, seed)
    tokenizer = tokenizer_of([texts[i] for i in kept.tolist()])

    def items(index: Tensor) -> list[dict[str, object]]:
        found = tokenizer([texts[i] for i in index.tolist()], truncation=True, return_token_type_ids=False)
        return [{**{key: found[key][i] for key in found}, "label": int(labels[k])} for i, k in enumerate(index)]

    counts = torch.bincount(labels[kept], minlength=len(PACKAGES))
    frequency = aol.frequency_weight(counts, 0.5)

    def by_frequency(outputs, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
        return frequency[labels] * aol.softmax_loss(outputs["logits"], labels)

    aged = method.startswith("AoL")
    level = "sample" if method == "AoL sample" else "class"
    watching = Accuracies()
    with tempfile.TemporaryDirectory() as folder:
        trainer = AgeTrainer(
            model=model_of(len(tokenizer), seed),
            args=TrainingArguments(
                output_dir=folder,
                num_train_epochs=epochs,
                per_device_train_batch_size=16,
                per_device_eval_batch_size=128,
                learning_rate=1e-3,
                eval_strategy="epoch",
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                seed=seed,
                dataloader_pin_memory=False,
            ),
            train_dataset=items(kept),
            eval_dataset=items(test),
            processing_class=tokenizer,
            compute_metrics=lambda found: {"accuracy": 100 * (found.predictions.argmax(1) == found.label_ids).mean()},
            compute_loss_func=by_frequency if method.startswith("frequency") else None,
            callbacks=[watching],
            ages=aol.SampleAges(labels[kept], num_classes=len(PACKAGES), level=level, rho=0.5 if aged else 0.0),
            resample=method.endswith("resampled"),
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return {"last epoch": watching.curve[-1], "tail mean": tail_mean(watching.curve)}


def main(words: list[str] | None = None) -> int:
    parser = options(
        "Train a small BERT on docstrings, long-tailed, and compare weightings.",
        epochs=(10, 1, "epochs of each run"),
        seeds=(5, 2, "runs of each method"),
        imbalance=(20.0, 1, "the largest class over the smallest"),
    )
    given = parser.parse_args(words)
    transformers.utils.logging.set_verbosity_error()
    began = time.perf_counter()
    results: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
    for seed in range(given.seeds):
        for method in METHODS:
            results[method].append(train(method, seed, given.epochs, given.imbalance))
        print(f"seed {seed + 1} of {given.seeds}, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    counts = torch.bincount(corpus()[1][split(corpus()[1], given.imbalance, 0)[0]])
    print(f"\nDocstrings of Python {platform.python_version()}, {counts.max()} to {counts.min()} a class, ", end="")
    print(f"Transformers {transformers.__version__}, {given.epochs} epochs, {given.seeds} seeds, test accuracy in %\n")
    print(table(results, "none"))
    print(f"\n{FOOTNOTE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
