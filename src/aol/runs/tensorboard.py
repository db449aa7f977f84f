"""TensorBoard event files, written epoch by epoch so that runs can be watched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aol.engine.settings import WrongSettingsError
from aol.runs.metrics import MEASURES

if TYPE_CHECKING:
    from aol.engine.loop import Loop

_FIGURES = (
    "train_loss", "train_accuracy", "test_accuracy", "validation_accuracy", "averaged_accuracy", "lr",
    *(f"test_{name}" for name in MEASURES),
)  # fmt: skip


def check_tensorboard() -> None:
    """Raise if the package is missing, before hours of training."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise WrongSettingsError(
            "--tensorboard needs the package tensorboard: pip install '.[tensorboard]' in a checkout of aol."
        ) from error


class Events:
    """One event file a run, in the folders given. A resumed group removes the events of later epochs."""

    def __init__(self, folders: list[Path], loop: Loop) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._loop = loop
        self._writers = [SummaryWriter(str(folder / "tensorboard"), purge_step=loop.epoch + 1) for folder in folders]

    def epoch(self) -> None:
        """Write the last epoch's figures, and the age of each class."""
        history, classes = self._loop.history, self._loop.classes
        figures = {name: history.last(name) for name in _FIGURES}
        ages = history.last("age", by_class=True)
        for row, writer in enumerate(self._writers):
            named = {name: float(values[row]) for name, values in figures.items()}
            named |= {f"class_age/{name}": float(age) for name, age in zip(classes, ages[row], strict=True)}
            for name, value in named.items():
                if value == value:
                    writer.add_scalar(name, value, self._loop.epoch)
            writer.flush()

    def close(self) -> None:
        """Finish the files."""
        for writer in self._writers:
            writer.close()
