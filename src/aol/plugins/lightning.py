"""A watch for Lightning 2: a callback that keeps ages and a record, and leaves the loss to you."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from aol._need import explaining
from aol.plugins._watching import Watching

with explaining("aol.plugins.lightning", "lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer


class WatchCallback(Watching, Callback):
    """Watches `Trainer.fit` as `aol.Watch` does, logs ages to the Trainer's loggers, and lives in its checkpoints.

    Args:
        folder: of the record; a second run goes to `folder-2`, one from a checkpoint goes on.
        train_set: the training set without augmentation, or a `DataLoader` of it, as of `aol.Watch`.
        test_set: test or validation samples, or None.
        every: epochs between two passes.
        ages: of `train_set`, for another `rho` or `level`; by default `SampleAges(labels)`.
        answer: function of the module and a batch on its device that returns logits and labels.
        record: all else that `aol.Recorder` takes, such as `classes`, `seed` and `settings`.

    `callback.ages.weight(index)` and `aol.AgeWeightedLoss(ages=callback.ages)` weight your own loss. `age_mean` and
    `age_oldest_class` are logged after a pass. A pass runs in the Trainer's precision with `trainer.validating` true,
    so that hooks which augment in training can tell. `fast_dev_run` has none.
    """

    _restored = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move the ages to the device of the module, and open the record."""
        precision, strategy = trainer.precision_plugin, trainer.strategy

        def answer(module: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
            batch = pl_module._on_before_batch_transfer(precision.convert_input(batch))
            batch = strategy.batch_to_device(batch, dataloader_idx=0)
            with precision.forward_context():
                return self._answer(module, batch)

        if not trainer.fast_dev_run:
            self._begin(strategy.root_device, answer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch the epoch that a checkpoint of its last batch left open: Lightning does not end it again."""
        if self._restored:
            self._watch(trainer, pl_module, trainer.current_epoch)
        self._epochs, self._restored = trainer.current_epoch, False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch, and log the ages."""
        values = self._watch(trainer, pl_module, trainer.current_epoch + 1)
        if values and not trainer.barebones:
            pl_module.log_dict(values, batch_size=1, on_step=False, on_epoch=True, sync_dist=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finish the record."""
        self._end(finished=not trainer.interrupted)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Release the record, which can be resumed."""
        self._end(finished=False)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the ages of a checkpoint."""
        super().load_state_dict(state_dict)
        self._restored = True

    def _watch(self, trainer: Trainer, module: LightningModule, epochs: int) -> dict[str, float]:
        trainer.validating = True
        try:
            return self._end_epoch(module, epochs, trainer.optimizers)
        finally:
            trainer.training = True
