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

import aol
from aol.plugins.lightning import AgeOfLearning
from tests.support.running import PATIENCE
from tests.support.small_lightning import DATA, LABELS, Net, made_margins, trainer


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
    classes: bool = False,
    stop: int | None = None,
    resume: bool = False,
) -> None:
    """Train; the batch of a step is 12 however many processes and parts share it."""
    ages = aol.ClassAges(3, rho=0.5) if classes else aol.SampleAges(LABELS, level="sample")
    recorder = None if stop is not None or resume else out / f"record-{processes}"
    margins = made_margins("probability")
    aging = AgeOfLearning(ages, signal=signal, margins=margins, recorder=recorder)
    model = Net(aging, signal, divide_by="count")
    callbacks = [aging] if stop is None else [aging, SaveStep(str(out / "stopped.ckpt"), stop)]
    strategy = {"strategy": "ddp"} if processes > 1 else {}
    fitting = trainer(*callbacks, devices=processes, accumulate_grad_batches=parts, **strategy)
    loader = aging.loader(DATA, batch_size=12 // processes // parts, resample=resample, seed=5)
    fitting.fit(model, loader, ckpt_path=str(out / "stopped.ckpt") if resume else None)
    losses = torch.tensor(model.losses)
    if processes > 1 and losses.numel():
        torch.distributed.all_reduce(losses)
    outcome = {"age": ages.age, "ema": ages.ema, "weights": model.weights(), "losses": losses / processes}
    name = f"{processes}-{fitting.global_rank}{'-resumed' * resume}.pt"
    torch.save({**outcome, "offsets": margins.offsets}, out / name)


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
