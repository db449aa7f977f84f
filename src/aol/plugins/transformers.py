"""A watch for the Trainer of Transformers: a callback that keeps ages and a record, and an adapter for loss modules."""

from __future__ import annotations

import base64
import copy
import io
import math
import os
import zlib
from typing import Any

import torch
from torch import Tensor, nn

from aol._need import explaining
from aol.ages import SampleAges
from aol.plugins._watching import Watching
from aol.records.datasets import previews_of
from aol.records.watch import Answer, answer_of

with explaining("aol.plugins.transformers", "transformers"):
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class ComputeLoss(TrainerCallback):
    """Makes a loss module the `compute_loss_func` of a Trainer.

    The module has the semantics of `torch.nn.CrossEntropyLoss` with the mean as reduction: any of `aol`'s, or your own.
    Logits `[B, ..., C]` and labels `[B, ...]` are flattened. With gradient accumulation and on several processes, the
    loss is the mean over all labels of the optimiser step. Given to the Trainer as a callback too, the state of the
    module, such as the counts of `aol.LogitAdjustedLoss`, is kept in checkpoints.

    >>> loss = ComputeLoss(nn.CrossEntropyLoss())
    >>> loss({"logits": torch.zeros(2, 4)}, torch.tensor([0, 3]), num_items_in_batch=4)
    tensor(0.6931)
    """

    def __init__(self, criterion: nn.Module) -> None:
        self.criterion = criterion

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the part of these samples in the mean loss of an optimiser step."""
        logits, labels = outputs["logits"], labels.flatten()
        loss: Tensor = self.criterion(logits.reshape(-1, logits.shape[-1]), labels)
        if num_items_in_batch is None:
            return loss
        return loss * (labels != getattr(self.criterion, "ignore_index", -100)).sum() / num_items_in_batch

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: object, **kwargs: Any) -> None:
        """Go on with the state of a checkpoint."""
        if "aol.ComputeLoss" in state.stateful_callbacks:
            self.criterion.load_state_dict(_unpacked(state.stateful_callbacks["aol.ComputeLoss"]))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keep the state, if a checkpoint may follow."""
        if control.should_save or control.should_evaluate:  # the second may find the best model so far
            state.stateful_callbacks["aol.ComputeLoss"] = _packed(self.criterion.state_dict())

    on_epoch_end = on_step_end


class WatchCallback(Watching, TrainerCallback):
    """Watches a Trainer as `aol.Watch` does, logs ages to its loggers, and lives in its checkpoints.

    Adds itself to the Trainer. The sets, the collator and the size of batches are the Trainer's own.

    Args:
        trainer: of a model whose outputs have `logits [B, C]`.
        folder: of the record; a second run goes to `folder-2`, one from a checkpoint goes on.
        train_set: the training set without augmentation; by default that of the Trainer.
        test_set: test or validation samples; by default the evaluation set of the Trainer.
        every: epochs between two passes.
        ages: of `train_set`, for another `rho` or `level`; by default `SampleAges(labels)`.
        answer: function of the model and a batch that returns logits and labels.
        record: all else that `aol.Recorder` takes, such as `classes`, `seed` and `settings`.

    `age_mean` and `age_oldest_class` are logged after a pass. A pass comes before the Trainer evaluates and saves.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: str | os.PathLike[str],
        train_set: Any = None,
        test_set: Any = None,
        *,
        every: int = 1,
        ages: SampleAges | None = None,
        answer: Answer = answer_of,
        **record: Any,
    ) -> None:
        train_set = trainer.train_dataset if train_set is None else train_set
        if test_set is None and not isinstance(trainer.eval_dataset, dict):
            test_set = trainer.eval_dataset
        if not {"images", "describe"} & record.keys():
            record |= previews_of(train_set)  # before the Trainer removes the columns that only people read
        loaders = [None if data is None else trainer.get_eval_dataloader(data) for data in (train_set, test_set)]
        super().__init__(folder, *loaders, every=every, ages=ages, answer=answer, **record)
        self._trainer, self._first = trainer, copy.deepcopy(self.state_dict())
        trainer.add_callback(self)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: object, **kwargs: Any) -> None:
        """Open the record, and watch the epoch that a checkpoint of its last step left open."""
        trainer, restored = self._trainer, state.stateful_callbacks.get("aol.WatchCallback")
        if restored is not None:
            self.load_state_dict(_unpacked(restored))
        elif trainer.model_init is not None:  # a new model has made no errors yet
            self.load_state_dict(self._first)

        def answer(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
            with trainer.compute_loss_context_manager():
                return self._answer(model, batch)

        self._begin(args.device, answer)
        epochs = state.epoch or 0.0
        if restored is not None and float(epochs).is_integer():
            self._watch(state, int(epochs))
        self._epochs = int(epochs)
        self._keep(state)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Watch, and log the ages, unless training stops within the epoch, which a resumed one then ends."""
        epochs = float(state.epoch or 0.0)
        if epochs.is_integer() or not control.should_training_stop:
            values = self._watch(state, math.ceil(epochs))
            if values and args.logging_strategy != "no":
                self._trainer.log(values)

    def on_train_end(self, *_: object, **kwargs: Any) -> None:
        """Finish the record."""
        self._end(finished=True)

    def _watch(self, state: TrainerState, epochs: int) -> dict[str, float]:
        optimizers = [self._trainer.optimizer] if self._trainer.optimizer is not None else []
        values = self._end_epoch(self._trainer.model, epochs, optimizers)
        self._keep(state)
        return values

    def _keep(self, state: TrainerState) -> None:
        # Ages change between epochs only: every checkpoint, whatever asks for it, finds those of the last one.
        state.stateful_callbacks["aol.WatchCallback"] = _packed(self.state_dict())


def _packed(state: dict[str, Any]) -> str:
    """Return a state as text for the JSON file of a checkpoint."""
    content = io.BytesIO()
    torch.save(state, content)
    return base64.b64encode(zlib.compress(content.getvalue())).decode()


def _unpacked(text: str) -> Any:
    content = zlib.decompress(base64.b64decode(text))
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
