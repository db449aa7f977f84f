"""Trains on as many processes as told, started by Lightning itself, and saves what came of it: for the tests.

A setting with `stop` is run a second time, from the checkpoint of that step.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from pathlib import Path

import torch
from lightning.pytorch import Callback
from torch.utils.data import TensorDataset

import aol
from aol.plugins.lightning import AgeOfLearning
from tests.support.running import PATIENCE
from tests.support.small_lightning import DATA, LABELS, Adjusted, Net, labelled, made_margins, trainer


class SaveStep(Callback):
    def __init__(self, path: str, step: int) -> None:
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, module, *rest) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def run(
    out: Path,
    processes: int,
    *,
    signal: str = "pass",
    resample: bool = False,
    parts: int = 1,
    uneven: bool = False,
    classes: bool = False,
    ids: bool = False,
    margins: str | None = None,
    stop: int | None = None,
    resume: bool = False,
) -> None:
    """Train; the batch of a step is 12 however many processes and parts share it. 61 samples do not split evenly."""
    images, labels = labelled(61) if uneven else (DATA.tensors[0], LABELS)
    data, names = TensorDataset(images, labels), [f"n{i}" for i in range(len(labels))]
    if ids:
        data = [(x, y, name) for (x, y), name in zip(data, names, strict=True)]
    ages = aol.ClassAges(3, rho=0.5) if classes else aol.SampleAges(labels, level="sample", ids=names if ids else None)
    kept = None if margins is None else made_margins(margins, labels)
    recorder = None if stop is not None or resume or ids else out / f"record-{processes}"
    aging = AgeOfLearning(ages, signal=signal, margins=kept, recorder=recorder)

    class Named(Net):
        def training_step(self, batch, batch_idx):
            x, y, key = batch
            logits = self(x)
            aging.observe(key, aol.is_correct(logits, y))
            return aging.weighted_mean(aol.softmax_loss(logits, y), key)

    model = Named() if ids else Net(signal) if kept is None else Adjusted(signal)
    callbacks = [aging] if stop is None else [aging, SaveStep(str(out / "stopped.ckpt"), stop)]
    strategy = {"strategy": "ddp"} if processes > 1 else {}
    fitting = trainer(*callbacks, devices=processes, accumulate_grad_batches=parts, **strategy)
    loader = aging.loader(data, batch_size=12 // processes // parts, resample=resample, seed=5)
    fitting.fit(model, loader, ckpt_path=str(out / "stopped.ckpt") if resume else None)
    losses = torch.tensor(model.losses)
    if processes > 1 and losses.numel():
        torch.distributed.all_reduce(losses)
    found = {"age": ages.age, "ema": ages.ema, "weights": model.weights(), "losses": losses / processes}
    if kept is not None:
        found["offsets"] = kept.offsets
    torch.save(found, out / f"{processes}-{fitting.global_rank}{'-resumed' * resume}.pt")


def run_all(out: Path, processes: int, settings: list[dict]) -> None:
    """Train with each setting, into folders that are numbered."""
    for number, options in enumerate(settings):
        folder = out / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        run(folder, processes, **options)
        if "stop" in options:
            run(folder, processes, **{**options, "stop": None}, resume=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(0.9 * PATIENCE)  # so that a process that waits for ever says where
    run_all(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
