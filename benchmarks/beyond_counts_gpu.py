"""Two of the uses of age in `beyond_counts.py` with ResNet-32 on a GPU: skipping, and leaving out.

    python benchmarks/beyond_counts_gpu.py --data-dir FOLDER --out FILE

The seeds of a method are trained as one network, by the settings of the small networks in the plan. Each seed of a set
becomes a line of FILE, as in `results/beyond_counts.jsonl`.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from beyond_counts import EPOCHS, SECOND, Options, share
from measuring import Record, options
from torch import Tensor

import aol
from aol.lab.data.images import ImageSet
from aol.lab.data.named import load_named
from aol.lab.engine.learner import rate_at
from aol.lab.engine.loop import Loop
from aol.lab.engine.passes import Trained, TrainPass
from aol.lab.settings import Settings
from aol.lab.train.group_training import Context, ExecutionOptions, write_records
from aol.lab.train.progress import Progress
from aol.records.store import Store

NET, BATCH, SEEDS = "resnet32", 128, tuple(range(100, 105))
SKIPPING = EPOCHS * 7 // 8  # the last epochs are on all
SETS = {  # data, and labels by people
    "CIFAR-10": ("cifar10", ""), "CIFAR-100": ("cifar100", ""),
    "CIFAR-10N, aggregate": ("cifar10", "aggre_label"), "CIFAR-10N, one person": ("cifar10", "random_label2"),
}  # fmt: skip


class Part(Loop):
    """Trains each run on a part of its samples, all in as many steps: whole batches of the smallest part."""

    def __init__(self, method: str, given: Options, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.method, self.given, self.trained, shape = method, given, 0, self.pool.shape
        self.streak = torch.zeros(shape, dtype=torch.int64, device=self.device)  # right so often in a row in training
        self.loss, self.out = torch.full(shape, torch.nan, device=self.device), torch.zeros_like(self.pool).bool()

    def step(self, position: Tensor, label: Tensor, right: Tensor, predicted: Tensor, logits: Tensor) -> None:
        """Observe a training step."""
        self.streak.scatter_(1, position, (self.streak.gather(1, position) + 1) * right)
        self.loss.scatter_(1, position, -logits.float().log_softmax(-1).gather(-1, label[..., None]).squeeze(-1))

    def pending(self) -> Iterator[Tensor]:
        """Yield what `step` changes."""
        yield from (self.streak, self.loss)

    def train_pass(self, position: Tensor, weight: Tensor, counts: Tensor) -> Trained:
        """Train on what is not skipped now, of what is not left out."""
        easy, rate = torch.zeros_like(self.out), self.given.get("rate", 0.0)
        if self._train_pass is None:
            size = position.shape[1] // BATCH * BATCH
            self._train_pass = TrainPass(self.learner, self.train, self, size=size)  # type: ignore[arg-type]
        if self.epoch < SKIPPING and self.method == "InfoBatch":
            easy = self.loss < self.given["below"] * self.loss.nanmean(1, keepdim=True)
        elif self.epoch < SKIPPING and "k" in self.given:
            easy = self.streak >= self.given["k"]
        elif self.epoch < SKIPPING and self.method == "at random":
            easy = ~easy
        coins = [torch.Generator().manual_seed(1_000 * run.seed + self.epoch) for run in self.runs]
        coin = torch.stack([torch.rand(easy.shape[1], generator=own) for own in coins]).to(self.device)
        kept = (~self.out & (~easy | (coin >= rate))).gather(1, position)
        first = kept.byte().argsort(dim=1, descending=True, stable=True)  # these, in the same order
        position = position.gather(1, first)
        weight = torch.where(easy & (self.method != "at random"), 1 / (1 - rate), 1.0).gather(1, position)
        steps, most = int(kept.sum(1).min()) // BATCH, self._train_pass.number
        self._rates = [rate_at(self.settings, self.epoch * steps + step, steps) for step in range(steps)]
        how: Any = {"rates": self._rates + [0.0] * (most - steps), "epoch": self.epoch}
        going = self._train_pass.steps(self.pool.gather(1, position), position, weight, **how)
        self.trained += sum(islice(going, steps))
        return self._train_pass.result()

    def leave_out(self, pair: Any, total: Any) -> None:
        """Leave out what was wrong in each epoch so far, or as many samples by mean loss or label-error score."""
        never = self.ages.age > self.epoch
        score = total if self.method == "mean loss" else never.float()
        if self.method == "label-error score":
            with tempfile.TemporaryDirectory() as folder:
                options = ExecutionOptions(self.device, networks=False)
                context = Context(Store(folder), {self.settings.data: pair}, options, Progress(), keep=())
                write_records(self, context, finished=False)
                frames = [aol.find_label_errors(Path(folder, "runs", run.run_id)) for run in self.runs]
            found = torch.from_numpy(np.stack([frame.sort_index()["score"] for frame in frames]))
            score = found.to(self.device).gather(1, self.pool)
        self.out = score.argsort(dim=1, descending=True, stable=True).argsort(1) < never.sum(1, keepdim=True)


def train(method: str, given: Options, pair: Any, device: str) -> Part:
    """Train the seeds of a method as one network."""
    epochs = round(EPOCHS * (1 - given["rate"])) if method == "shorter schedule" else EPOCHS
    common = {"data": pair.name, "imbalance": None, "net": NET, "epochs": epochs, "batch_size": BATCH,
              "weight_decay": 5e-4, "schedule": "cosine", "precision": "bf16", "divide_by": "count",
              "eval_every": epochs, "signal": "eval" if "T" in given else "none"}  # fmt: skip
    runs, total = [Settings(**common, seed=seed) for seed in SEEDS], 0
    loop = Part(method, given, runs, pair, device=torch.device(device), keep_samples="T" in given)
    while not loop.done:
        loop.run_epoch()
        if loop.samples is not None and loop.epoch <= given["T"]:
            total = total - loop.samples.state_dict()["confidence"].clamp(min=1e-12).log()
            if loop.epoch == given["T"]:
                loop.leave_out(pair, total)
    print(pair.name, method, time.strftime("%X"), flush=True)
    return loop


def lines_of(name: str, data_dir: Path | None, device: str) -> list[Record]:
    """Train all methods on a set; return a line for each seed."""
    data, labels = SETS[name]
    pair, saved, began = load_named(data, data_dir=data_dir), 0.0, time.monotonic()
    true = given = pair.train.labels
    if labels:
        given = torch.from_numpy(np.load(Path(data_dir or "", "cifar10n.npz"))[labels].astype(np.int64))[: len(true)]
        pair = replace(pair, train=ImageSet(pair.train.images, given, pair.classes, "train"))
    candidate = "leave out" if labels else "skip"
    runs: list[list[Record]] = [[] for _ in SEEDS]
    for method, chosen in SECOND[candidate][name].items():
        # As many images as age used here: skipped at random while the others skip, or by fewer epochs.
        same = {
            "at random": {"rate": round(saved * EPOCHS / SKIPPING, 4)},
            "shorter schedule": {"rate": round(saved, 4)},
        }
        loop = train(method, same.get(method, chosen), pair, device)
        wrong = (given != true).to(loop.device)[loop.pool]
        every = len(true) // BATCH * BATCH * EPOCHS
        saved = 1 - loop.trained / every if method == "age" else saved
        for row, accuracy in enumerate(loop.history.epoch("test_accuracy")[-1].tolist()):
            out = loop.out[row]
            left = {"left_out": share(out), "mislabelled": share(wrong[row][out]) if out.any() else 0.0}
            part = left if labels else {"saved": round(1 - loop.trained / every, 5)}
            about = {"method": method, "setting": str(loop.given), "accuracy": round(accuracy, 5)}
            runs[row].append(about | part)
    gpu = torch.cuda.get_device_name() if torch.device(device).type == "cuda" else "none"
    machine = {"gpu": gpu, "torch": torch.__version__, "python": platform.python_version()}
    what = {"candidate": candidate, "set": f"{name}, ResNet-32"}
    seconds = {"seconds": round(time.monotonic() - began, 1)}  # of all seeds together
    return [what | {"seed": seed} | seconds | machine | {"runs": own} for seed, own in zip(SEEDS, runs, strict=True)]


def main(words: list[str] | None = None) -> int:
    parser = options("Skip and leave out by age, with ResNet-32.", "beyond_counts_gpu.jsonl")
    parser.add_argument("--only", nargs="+", choices=list(SETS), default=list(SETS), help="sets")
    parser.add_argument("--data-dir", type=Path, help="folder of CIFAR and of cifar10n.npz")
    parser.add_argument("--device", default="cuda", help="where")
    given = parser.parse_args(words)
    for name in given.only:
        with given.out.open("a") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines_of(name, given.data_dir, given.device))
    return 0


if __name__ == "__main__":
    sys.exit(main())
