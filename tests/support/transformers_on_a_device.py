"""The Trainer of Transformers on a device: tests that ask for `device`, run on the CPU and on CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import Trainer

from aol.plugins.transformers import ComputeLoss, WatchCallback
from tests.support.small_transformers import ByAge, arguments
from tests.support.wide_margins import EPOCHS, IMAGES, LABELS, RATE, SIZE, ages, check_ages, network, no_waiting

ITEMS = [{"x": x.tolist(), "label": int(y)} for x, y in zip(IMAGES, LABELS, strict=True)]


class Linear(nn.Module):
    """The model with wide margins, as the Trainer wants one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.net(x)}


def collate(features: list[dict]) -> dict[str, Tensor]:
    x, y = (torch.tensor([row[name] for row in features]) for name in ("x", "label"))
    return {"x": x, "labels": y}


class Watched(Trainer):
    """Asks for its loss without waiting for the device."""

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args, **kwargs):
        with no_waiting(self.args.device.type if model.training else "cpu"):
            return super().compute_loss(model, inputs, *args, **kwargs)


def trained(device: str, folder: Path, *, start: str | None = None, **options) -> tuple[Watched, WatchCallback]:
    settings = {
        "use_cpu": device == "cpu",
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": SIZE,
        "optim": "sgd",
        "learning_rate": RATE,
        "max_grad_norm": 0.0,
        "logging_strategy": "no",
        "dataloader_pin_memory": device == "cuda",
        "remove_unused_columns": False,
        **options,
    }
    trainer = Watched(model=Linear(), args=arguments(**settings), train_dataset=ITEMS, data_collator=collate)
    callback = WatchCallback(trainer, folder, ages=ages("class"))
    trainer.compute_loss_func = ComputeLoss(ByAge(callback.ages).to(trainer.args.device))
    trainer.add_callback(trainer.compute_loss_func)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=start)
    return trainer, callback


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_training_keeps_the_ages_and_moves_the_model(precision: str, device: str, tmp_path: Path) -> None:
    if precision == "fp16" and device == "cpu":
        pytest.skip("Transformers has no fp16 on the CPU")
    trainer, callback = trained(device, tmp_path, **({} if precision == "fp32" else {precision: True}))
    check_ages(callback.ages, "class", EPOCHS)
    assert (trainer.model.net.weight.cpu() - network().weight).abs().max() > 0.01


@pytest.mark.parametrize("turned", [False, True])
def test_training_goes_on_from_a_checkpoint_that_the_other_device_wrote(
    turned: bool, device: str, tmp_path: Path
) -> None:
    first, second = ("cpu", device) if turned else (device, "cpu")
    kept = {"output_dir": str(tmp_path / "out"), "save_strategy": "epoch", "lr_scheduler_type": "constant"}
    before, _ = trained(first, tmp_path / "run", num_train_epochs=2, **kept)
    last = tmp_path / "out" / f"checkpoint-{before.state.global_step}"
    _, callback = trained(second, tmp_path / "run", start=str(last), num_train_epochs=4, **kept)
    check_ages(callback.ages, "class", 4)
