"""The Trainer of Transformers, here on the CPU; `tests/gpu` runs the same on CUDA."""

from __future__ import annotations

from tests.support.pretended_device import pretended_device
from tests.support.small_transformers import made, sample_ages
from tests.support.transformers_on_a_device import *  # noqa: F403


def test_ages_come_back_from_the_device_when_training_ends() -> None:
    trainer = made(sample_ages())
    with pretended_device():
        trainer.ages.to("cuda")
        trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
        assert trainer.ages.device.type == "cpu"
