"""Ages and margins in the Trainer of Transformers: losses are weighted, data sampled, or logits adjusted."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from aol import _check
from aol._need import framework
from aol.indexed import Indexed
from aol.losses import loss_total, weighted_mean
from aol.margins import Margins
from aol.plugins._records import Recording
from aol.plugins._training import Ages, Balance, evaluating
from aol.sampling import AgeSampler

with framework("transformers"):
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import EvalLoopOutput, TrainOutput
    from transformers.utils import logging

KEY = "age_key"  # in a batch: the places of its samples in the training set
STATE_NAME = "ages.pt"  # in a checkpoint
logger = logging.get_logger(__name__)


class AgeTrainer(Trainer):
    """The Trainer of Transformers, with loss or sampling weighted by age, and logits adjusted by margins.

    Args:
        ages: `SampleAges` of the training set, in its order; `ClassAges` or `ErrorRates`; or None.
        margins: an `aol.Margins`, or None.
        signal: "pass": predictions of a clean pass over the training set at the end of each epoch (evaluation mode,
            without gradients); "training": predictions of the training batches.
        resample: sample by weight, with replacement, and do not weight the loss.
        clean_dataset: the training set without augmentation, for the pass; by default the training set.
        every: advance after so many optimiser steps instead of at the end of an epoch, for endless streams, and
            for margins in short trainings.
        recorder: records training and evaluation for `aol report`: a folder, a function from the ages to an
            `aol.Recorder`, or an `aol.Recorder` of these ages, which you close. Several processes need one of the first
            two.

    Mean age, age of the oldest class, and the smallest and largest margin are logged as `age_mean` and so on.

    All other arguments are those of the Trainer. A `compute_loss_func` must return one loss per sample, `[B]`; in
    training its outputs have adjusted logits. The loss of an optimiser step is Σwℓ / Σw over all its batches, on all
    processes. Evaluation and prediction are not changed.
    """

    loss_is_scaled_for_ga = True

    def __init__(
        self,
        *args: Any,
        ages: Ages | None = None,
        margins: Margins | None = None,
        signal: str = "pass",
        resample: bool = False,
        clean_dataset: Dataset[object] | None = None,
        every: int | None = None,
        recorder: Recording = None,
        **kwargs: Any,
    ) -> None:
        self._balance = Balance(ages, margins, signal=signal, every=every, recorder=recorder)
        self.ages, self.margins = ages, margins
        self.resample, self.clean_dataset = resample, clean_dataset
        self._total: Tensor | None = None  # the divisor of the optimiser step under way
        self._open = False  # whether anything was trained since the ages last advanced
        self._resumed = False
        self._unwritten = False  # whether an epoch has ended whose evaluation may follow
        super().__init__(*args, **kwargs)
        if resample and (every is not None or not hasattr(ages, "num_samples")):
            raise ValueError("resample needs SampleAges, and no every: an order is drawn once an epoch.")
        if isinstance(self.train_dataset, IterableDataset) and (self._balance.by_index or signal == "pass"):
            raise ValueError('An iterable train_dataset needs ages of classes, and signal="training".')
        self._first = copy.deepcopy(self._balance.state_dict()) if self.model_init is not None else None
        # First: other callbacks see the ages of the epoch.
        self.callback_handler.callbacks.insert(0, _EpochCallback(self))

    # Batches that say which samples they hold

    def _get_dataloader(
        self,
        dataset: Dataset[object],
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Dataset[object]], Sampler[int]] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> DataLoader[object]:
        order = sampler_fn
        if is_training and self._balance.by_index:
            given, dataset = dataset, self._indexed(dataset, description)
            order = None if sampler_fn is None else lambda _: sampler_fn(given)
        return super()._get_dataloader(dataset, description, batch_size, order, is_training, dataloader_key)

    def _indexed(self, dataset: Dataset[object], description: str) -> Dataset[object]:
        if hasattr(dataset, "remove_columns"):  # before it is hidden in there, so that no unused column is ever read
            dataset = self._remove_unused_columns(dataset, description)
        self._balance.check_size(len(dataset))  # type: ignore[arg-type]
        return Indexed(dataset, key=KEY)

    def _get_collator_with_removed_columns(
        self, data_collator: Callable[[list[Any]], Any], description: str | None = None
    ) -> Callable[[list[Any]], Any]:
        return _WithKey(super()._get_collator_with_removed_columns(data_collator, description))

    def _get_train_sampler(self, train_dataset: Dataset[object] | None = None) -> Sampler[int] | None:
        if self.resample:
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            # As if alone: Accelerate shares out batches by itself.
            return AgeSampler(self.ages, seed=seed, rank=0, world_size=1)  # type: ignore[arg-type]
        return super()._get_train_sampler(train_dataset)

    def get_batch_samples(
        self, epoch_iterator: Iterator[MutableMapping[str, Tensor]], num_batches: int, device: torch.device
    ) -> tuple[list[MutableMapping[str, Tensor]], Tensor | int | None]:
        """Return the batches of one optimiser step, compute the divisor of their losses, note the learning rate."""
        self._write()
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if batches:
            self._open = True
            self._balance.note_rate(self.optimizer)
            self._total = loss_total([self._weight(batch) for batch in batches])
        return batches, items

    def _weight(self, batch: Mapping[str, Tensor]) -> Tensor:
        if "labels" not in batch or (self._balance.by_index and KEY not in batch):
            raise ValueError(f"Batches must be mappings that hold labels, not only {', '.join(_without(batch, KEY))}.")
        if self.resample or self.ages is None:
            return torch.ones(len(batch["labels"]), device=batch["labels"].device)
        return self._balance.weight(batch[KEY if self._balance.by_index else "labels"])

    # The loss

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, object]:
        """Return the contribution of a batch to Σwℓ / Σw of its optimiser step; in evaluation, the mean."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels, outputs = inputs["labels"], model(**_without(inputs, KEY, "labels"))
        if self._balance.signal == "training":
            self._balance.observe(outputs["logits"], labels, inputs.get(KEY))
        losses = self._losses(self._adjusted(outputs), labels, num_items_in_batch)
        loss = weighted_mean(losses, self._weight(inputs), total=self._total)
        return (loss, outputs) if return_outputs else loss

    def _losses(self, outputs: Any, labels: Tensor, items: Tensor | int | None) -> Tensor:
        if self.compute_loss_func is None:
            smoothing = float(self.args.label_smoothing_factor)
            return F.cross_entropy(outputs["logits"].float(), labels, reduction="none", label_smoothing=smoothing)
        losses: Tensor = self.compute_loss_func(outputs, labels, num_items_in_batch=items)
        if not isinstance(losses, Tensor) or losses.shape != labels.shape[:1]:
            raise ValueError(f"compute_loss_func must return one loss a sample, [B], not {_check.shown(losses)}.")
        return losses

    def _adjusted(self, outputs: Any) -> Any:
        """Return outputs with adjusted logits, and leave the given ones alone."""
        if self.margins is None:
            return outputs
        changed = copy.copy(outputs)
        changed["logits"] = self._balance.adjust(outputs["logits"])
        return changed

    # The end of an epoch

    def _end_epoch(self) -> None:
        """Evaluate the training set, if `signal="pass"`, and advance ages and margins. Collective."""
        if self._balance.signal == "pass":
            self._evaluate_train_set()
        self._balance.advance()
        self._open, self._unwritten = False, True
        if self.args.logging_strategy != "no":
            self.log(self._balance.figures())

    def _write(self) -> None:
        """Record the last epoch, once it has been evaluated: before the next batch, or at the end. Collective."""
        if self._unwritten:
            self._balance.record()
        self._unwritten = False

    def evaluation_loop(
        self, dataloader: DataLoader[object], description: str, prediction_loss_only: bool | None = None, **kwargs: Any
    ) -> EvalLoopOutput:
        """Evaluate, and record the logits if training is under way."""
        recording = self._balance.records.recorder is not None and self.is_in_train
        result = super().evaluation_loop(dataloader, description, not recording and prediction_loss_only, **kwargs)
        if recording and self.is_world_process_zero():  # it has those of all processes, each sample once
            logits = result.predictions[0] if isinstance(result.predictions, tuple) else result.predictions
            self._balance.records.test(torch.as_tensor(result.label_ids), torch.as_tensor(logits))
        return result

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train as the Trainer does; a record that an exception leaves behind can be resumed."""
        try:
            return super().train(*args, **kwargs)
        finally:
            self._balance.records.end(finished=False)  # on_train_end has finished it otherwise

    def _evaluate_train_set(self) -> None:
        data: Any = self.train_dataset if self.clean_dataset is None else self.clean_dataset
        if self._balance.by_index:
            data = self._indexed(data, "clean pass")
        loader = DataLoader(
            data,
            batch_size=self.args.eval_batch_size,
            sampler=range(self.args.process_index, len(data), self.args.world_size),  # every sample once
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, "clean pass"),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            generator=torch.Generator(),  # leaves the global one alone
        )
        if callable(getattr(self.optimizer, "eval", None)):
            self.optimizer.eval()  # those without a schedule look at averaged weights
        with evaluating(self.model):
            for fetched in loader:
                inputs = self._prepare_inputs(fetched)
                with self.compute_loss_context_manager():
                    outputs = self.model(**_without(inputs, KEY, "labels"))
                self._balance.observe(outputs["logits"], inputs["labels"], inputs.get(KEY))

    # Checkpoints

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            torch.save({**self._balance.state_dict(), "open": self._open}, os.path.join(output_dir, STATE_NAME))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = os.path.join(checkpoint, STATE_NAME)
        if not os.path.exists(path):
            logger.warning(f"{checkpoint} holds no {STATE_NAME}: the ages go on as they are.")
            return
        state = torch.load(path, map_location="cpu", weights_only=True)
        self._balance.load_state_dict(state)
        self._open, self._resumed = bool(state["open"]), True


class _WithKey:
    """A collator around another one, which does not see the key of a sample."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, features: list[Any]) -> Any:
        """Return the batch, with keys if samples have them."""
        if not all(isinstance(feature, Mapping) and KEY in feature for feature in features):
            return self.collate(features)
        batch = self.collate([_without(feature, KEY) for feature in features])
        batch[KEY] = torch.tensor([feature[KEY] for feature in features])
        return batch


class _EpochCallback(TrainerCallback):
    """Tells a trainer when to advance the ages."""

    def __init__(self, trainer: AgeTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: object, **kwargs: Any) -> None:
        trainer = self.trainer
        if args.device.type == "cuda":
            trainer._balance.to(args.device)
        if not trainer._resumed:
            trainer._open = False
            if trainer._first is not None:  # a new model has made no errors yet
                trainer._balance.load_state_dict(trainer._first)
        trainer._unwritten = False
        trainer._balance.records.begin(trainer.ages)
        if trainer._resumed and trainer._open and trainer._balance.every is None and _whole(state):
            trainer._end_epoch()  # saved at the last step of an epoch, which will not end again
        trainer._resumed = False

    def on_train_end(self, *_: object, **kwargs: Any) -> None:
        self.trainer._write()
        self.trainer._balance.records.end(finished=True)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, *_: object, **kwargs: Any) -> None:
        # Accelerate does not tell the sampler below the loader of a resumed epoch, on several processes.
        set_epoch = getattr(kwargs["train_dataloader"], "set_epoch", None)
        if set_epoch is not None:
            set_epoch(int(state.epoch or 0))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, *_: object, **kwargs: Any) -> None:
        every = self.trainer._balance.every
        if every is not None and state.global_step % every == 0:
            self.trainer._end_epoch()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # A run that stops within an epoch is resumed within it, and its ages advance at its end.
        over = _whole(state) or not control.should_training_stop
        if self.trainer._balance.every is None and self.trainer._open and over:
            self.trainer._end_epoch()


def _whole(state: TrainerState) -> bool:
    return state.epoch is not None and float(state.epoch).is_integer()


def _without(items: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in items.items() if name not in names}
