"""The Trainer of Transformers on a device: tests that ask for `device`, run on the CPU and on CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.support.small_transformers import Recorded, arguments
from tests.support.wide_margins import (
    EPOCHS,
    IMAGES,
    LABELS,
    RATE,
    SIZE,
    ages,
    check_ages,
    check_moved,
    network,
    no_waiting,
)

ITEMS = [{"x": x.tolist(), "label": int(y)} for x, y in zip(IMAGES, LABELS, strict=True)]
# With fp16 the first steps are left out, until the scale is small enough: then only the ages can be foretold.
PRECISIONS = {"fp32": ({}, 1e-4), "bf16": ({"bf16": True}, 0.03), "fp16": ({"fp16": True}, None)}


class Linear(nn.Module):
    """The model with wide margins, as the Trainer wants one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.net(x)}


def collate(features: list[dict]) -> dict[str, Tensor]:
    x, y = (torch.tensor([each[name] for each in features]) for name in ("x", "label"))
    return {"x": x, "labels": y}


class Watched(Recorded):
    """Asks for its loss without waiting for the device."""

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args, **kwargs):
        busy = model.training and not self.args.torch_compile
        with no_waiting(self.args.device.type if busy else "cpu"):
            return super().compute_loss(model, inputs, *args, **kwargs)


def trained(
    kind: str,
    device: str,
    *,
    model: Linear | None = None,
    parts: int = 1,
    start: str | None = None,
    args: dict | None = None,
    **options,
) -> Watched:
    settings = {
        "use_cpu": device == "cpu",
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": SIZE // parts,
        "gradient_accumulation_steps": parts,
        "optim": "sgd",
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "logging_strategy": "no",
        "dataloader_pin_memory": device == "cuda",
        "remove_unused_columns": False,
        **(args or {}),
    }
    found = Watched(
        model=model or Linear(),
        args=arguments(**settings),
        train_dataset=ITEMS,
        data_collator=collate,
        ages=ages(kind),
        **options,
    )
    found.remove_callback(transformers.PrinterCallback)
    found.train(resume_from_checkpoint=start)
    return found


def steps(trainer: Watched) -> list[list[list[int]]]:
    """Return the samples of each optimiser step of each epoch, as the trainer saw them."""
    flat = [[sample for batch in step for sample in batch] for step in trainer.seen if step]
    number = len(IMAGES) // SIZE
    return [flat[start : start + number] for start in range(0, len(flat), number)]


def check(trainer: Watched, kind: str, off: float | None = 1e-4, before: list[list[list[int]]] | None = None) -> None:
    epochs = int(trainer.args.num_train_epochs)
    check_ages(trainer.ages, kind, epochs)
    if off is not None and kind != "ages of classes":  # whose batches name classes, not samples
        check_moved(trainer.accelerator.unwrap_model(trainer.model).net, kind, [*(before or []), *steps(trainer)], off)


@pytest.mark.parametrize(
    ("kind", "signal", "parts", "precision"),
    [
        ("sample", "pass", 1, "fp32"),
        ("sample", "training", 3, "fp16"),
        ("class", "training", 3, "bf16"),
        ("ages of classes", "pass", 3, "bf16"),
        ("ages of classes", "training", 1, "fp32"),
    ],
)
def test_training_keeps_the_ages_and_moves_the_model_as_by_hand(
    kind: str, signal: str, parts: int, precision: str, device: str
) -> None:
    if precision == "fp16" and device == "cpu":
        pytest.skip("Transformers has no fp16 on the CPU")
    options, off = PRECISIONS[precision]
    check(trained(kind, device, signal=signal, parts=parts, args=options), kind, off)


@pytest.mark.parametrize(
    ("kind", "signal", "turned"),
    [("sample", "pass", False), ("class", "training", True), ("ages of classes", "training", False)],
)
def test_training_goes_on_from_a_checkpoint_that_the_other_device_wrote(
    kind: str, signal: str, turned: bool, device: str, tmp_path: Path
) -> None:
    first, second = ("cpu", device) if turned else (device, "cpu")
    kept = {"output_dir": str(tmp_path), "save_strategy": "epoch"}
    before = trained(kind, first, signal=signal, args={**kept, "num_train_epochs": 2})
    (last,) = (each for each in tmp_path.glob("checkpoint-*") if each.name.endswith(str(before.state.global_step)))
    after = trained(kind, second, signal=signal, start=str(last), args={**kept, "num_train_epochs": 4})
    check(after, kind, before=steps(before))


def test_resampling_draws_alike_on_either_device(device: str) -> None:
    here, there = (trained("sample", place, resample=True) for place in ("cpu", device))
    assert here.seen == there.seen
    assert len({sample for step in here.seen for batch in step for sample in batch}) < len(IMAGES)
    check_ages(there.ages, "sample", EPOCHS)
