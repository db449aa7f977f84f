"""Ages and margins in the Trainer of Transformers: weights its loss, samples its data, or adjusts its logits.

Every training batch contains the indices or labels of its samples.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from aol import _check
from aol._checkpoint import load_tensors
from aol._need import framework
from aol.indexed import Indexed
from aol.losses import loss_total, softmax_loss, weighted_mean
from aol.margins import Margins
from aol.plugins._records import Recording
from aol.plugins._training import Ages, Balance, InOrder, answers, evaluating, settings
from aol.sampling import AgeSampler

with framework("transformers"):
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import TrainOutput
    from transformers.utils import logging

KEY = "age_key"  # in a batch: the places of its samples in the training set, or for ages of classes its labels
STATE_NAME = "ages.pt"  # in a checkpoint
logger = logging.get_logger(__name__)


class AgeTrainer(Trainer):
    """The Trainer of Transformers, with loss or sampling weighted by age, and logits adjusted by margins.

    Args:
        ages: `SampleAges` of the training set, in its order; `ClassAges` or `ErrorRates`, by label; or None.
        margins: an `aol.Margins`; its `labels`, if it has them, are those of the training set, in its order.
        class_weight: static weights of classes, `[C]`, such as `aol.frequency_weight`; multiplies those from ages.
        offset: static offset of the logits, `[C]`, such as `aol.logit_offsets`.
        signal: "pass": predictions of a clean pass over the training set at the end of each epoch (evaluation mode,
            without gradients); "training": predictions of the training batches.
        resample: sample by weight, with replacement, and do not weight the loss.
        clean_dataset: the training set without augmentation, for the pass; by default the training set.
        correct: function of outputs and labels that returns which predictions are right, bool `[B]`, or (for margins)
            probabilities `[B, C]` (for `recorder` too) or predicted classes, integers `[B]`; by default by the logits.
        every: advance after so many optimiser steps instead of at the end of an epoch, for endless streams, and
            for margins in short trainings.
        divide_by: "weight" or "count": Σwℓ / Σw or Σwℓ / B, over the whole optimiser step.
        recorder: records training and evaluation for `aol report`: a folder, a function from the ages to an
            `aol.Recorder`, or an `aol.Recorder` of these ages, which you close. Several processes need one of the first
            two.

    Mean age, age of the oldest class, training accuracy of the worst class, threshold and margins are logged
    (`report_to`), as `age_mean` and so on.

    All other arguments are those of the Trainer. A `compute_loss_func` must return one loss per sample, `[B]`; in
    training its outputs have adjusted logits. Evaluation and prediction are not changed. For other Trainers:
    `class Mine(AgeTrainer, Seq2SeqTrainer): ...`.
    """

    loss_is_scaled_for_ga = True

    def __init__(
        self,
        *args: object,
        ages: Ages | None = None,
        margins: Margins | None = None,
        class_weight: _check.Numbers | None = None,
        offset: _check.Numbers | None = None,
        signal: str = "pass",
        resample: bool = False,
        clean_dataset: Dataset[object] | None = None,
        correct: Callable[[object, Tensor], Tensor] | None = None,
        every: int | None = None,
        divide_by: str = "weight",
        recorder: Recording = None,
        **kwargs: object,
    ) -> None:
        self._balance = Balance(ages, margins, class_weight, offset, recorder)
        self.ages, self.margins = self._balance.ages, self._balance.margins
        self.signal, self.every, self.divide_by = settings(signal, every, divide_by)
        if resample and every is not None:
            raise ValueError("every cannot go with resample: an order is drawn once an epoch.")
        self.resample, self.clean_dataset = resample, clean_dataset
        self._correct = correct
        self._total: Tensor | None = None  # the divisor of the optimiser step under way
        self._open = False  # whether anything was trained since the ages last advanced
        self._weighed = False  # and whether its loss was weighted
        self._resumed = False
        self._unwritten = False  # whether an epoch has ended whose evaluation may follow
        super().__init__(*args, **kwargs)
        self._check_settings()
        self._first = self._balance.state_dict() if self.model_init is not None else None
        # First: other callbacks see the ages of the epoch.
        self.callback_handler.callbacks.insert(0, _EpochCallback(self))

    def _check_settings(self) -> None:
        _check_bases(type(self))
        data, of_samples = self.train_dataset, self._balance.by_index
        if not of_samples and hasattr(self.ages, "num_samples"):
            raise ValueError("ages must know samples by their place in the training set: leave out ids.")
        if self.resample and not hasattr(self.ages, "num_samples"):
            raise ValueError("resample needs ages of samples, SampleAges.")
        observing = bool(self._balance.states)
        if isinstance(data, IterableDataset) and (of_samples or (observing and self.signal == "pass")):
            raise ValueError('An iterable train_dataset needs ages of classes, and signal="training".')
        for each in (data, self.clean_dataset):
            if each is not None and of_samples:
                self._same_size(len(each))  # type: ignore[arg-type]
        if self.args.gradient_accumulation_steps > 1 and not hasattr(Trainer, "loss_is_scaled_for_ga"):
            raise ValueError("gradient_accumulation_steps above 1 needs Transformers 5.20: older ones scale each loss.")
        sharded = self.args.world_size > 1 and (self.is_fsdp_enabled or self.is_deepspeed_enabled)
        if sharded and observing and self.signal == "pass":
            raise ValueError('Sharded models need signal="training": in a clean pass processes go their own ways.')

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
        self._same_size(len(dataset))  # type: ignore[arg-type]  # it may be another one than at first
        return Indexed(dataset, key=KEY)

    def _same_size(self, size: int) -> None:
        self._balance.check_size(size)

    def _get_collator_with_removed_columns(
        self, data_collator: Callable[[list[object]], object], description: str | None = None
    ) -> Callable[[list[object]], object]:
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
        for batch in batches:
            batch[KEY] = self._key(batch)
            self._balance.compare(batch[KEY], batch["labels"])
        if batches:
            last = batches[-1]
            last[KEY] = last[KEY][: self._real(len(last[KEY]), self._last_samples())]
            self._open = True
        weights = [self._weight(batch[KEY]) for batch in batches]
        self._total = loss_total(weights or torch.empty(0), divide_by=self.divide_by)
        if batches:
            self._balance.note_rate(self.optimizer)
        return batches, items

    def _key(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the indices or labels of a batch."""
        if "labels" not in batch:
            raise ValueError(f"Batches must hold labels, not only {', '.join(_without(batch, KEY))}.")
        if not self._balance.by_index:
            return batch["labels"]
        if KEY not in batch:
            raise ValueError("Samples of train_dataset must be mappings, such as {'input_ids': ..., 'label': ...}.")
        return batch[KEY]

    def _last_samples(self) -> int:
        """Return how many samples of the training set the last batches of all processes hold; 0: no padding."""
        rebalanced = self.args.train_sampling_strategy == "batch_rebalance"
        if rebalanced or self.args.dataloader_drop_last or not self.accelerator.even_batches:
            return 0
        if isinstance(self.train_dataset, IterableDataset):
            return self.accelerator.gradient_state.remainder
        # Not `remainder`, which is wrong in the first epoch after a resume.
        processes = 1 if self.accelerator.split_batches else self.accelerator.num_processes
        return len(self.train_dataset) % (self._train_batch_size * processes)

    def _real(self, size: int, last_samples: int) -> int:
        """Return the number of samples of a batch without those by which Accelerate fills up the last one."""
        accelerator = self.accelerator
        if accelerator.num_processes == 1 or last_samples < 1 or not accelerator.gradient_state.end_of_dataloader:
            return size
        return max(0, min(size, last_samples - size * accelerator.process_index))

    # The loss

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, object]:
        """Return the contribution of a batch to Σwℓ / Σw of its optimiser step; in evaluation, the mean."""
        if KEY not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        key, labels = inputs[KEY], inputs["labels"]
        outputs = model(**_without(inputs, KEY, "labels"))
        losses = self._losses(self._adjusted(outputs), labels, num_items_in_batch)
        if self._balance.states and self.signal == "training":
            self._balance.observe_together(key, *self._answers(key, outputs, labels))
        self._weighed = True
        loss = weighted_mean(losses[: len(key)], self._weight(key), total=self._total)
        return (loss, outputs) if return_outputs else loss

    def _losses(self, outputs: object, labels: Tensor, items: Tensor | int | None) -> Tensor:
        if self.compute_loss_func is not None:
            found: Tensor = self.compute_loss_func(outputs, labels, num_items_in_batch=items)
            if not isinstance(found, Tensor) or found.shape != labels.shape[:1]:
                raise ValueError(f"compute_loss_func must return one loss a sample, [B], not {_check.shown(found)}.")
            return found
        logits = _logits(outputs)
        if labels.is_floating_point() or labels.dim() != 1 or logits.dim() != 2:
            raise ValueError(
                "labels must be one class a sample; for anything else give compute_loss_func (losses [B]) and correct."
            )
        if self.label_smoother is None:
            return softmax_loss(logits, labels)
        hard, spread = F.one_hot(labels, logits.shape[-1]).float(), self.label_smoother.epsilon
        return softmax_loss(logits, hard * (1 - spread) + spread / logits.shape[-1])

    def _adjusted(self, outputs: object) -> object:
        """Return outputs with adjusted logits, and leave the given ones alone."""
        if self.margins is None and self._balance.offset is None:
            return outputs
        logits = self._balance.adjust(_logits(outputs))
        if isinstance(outputs, Tensor):
            return logits
        if not isinstance(outputs, MutableMapping):
            return (logits, *outputs[1:])  # type: ignore[index]
        changed = copy.copy(outputs)
        changed["logits"] = logits
        return changed

    def _answers(self, key: Tensor, outputs: object, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return which predictions are right, and what margins need; without padding, which has no key."""
        if self._correct is None:
            return answers(_logits(outputs)[: len(key)], labels[: len(key)])
        return self._balance.parse_answer(key, self._correct(outputs, labels)[: len(key)])

    def _weight(self, key: Tensor) -> Tensor:
        return self._balance.weight(key, aged=not self.resample)

    # The end of an epoch

    def _end_epoch(self) -> None:
        """Evaluate the training set, if `signal="pass"`, and advance ages and margins. Collective."""
        if self._balance.states and self.signal == "pass":
            self._evaluate_train_set()
        if not (self._weighed or self.resample):
            name = type(self).__name__
            logger.warning(f"compute_loss of {name} does not ask that of AgeTrainer: nothing was weighted.")
        self._balance.advance(sync=self.signal == "pass")  # what was observed in training is known to all already
        self._open = self._weighed = False
        self._unwritten = True
        if self.args.logging_strategy != "no":
            self.log(self._balance.figures())

    def _write(self) -> None:
        """Record the last epoch, once it has been evaluated: before the next batch, or at the end. Collective."""
        if self._unwritten:
            self._balance.record()
        self._unwritten = False

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Tensor], prediction_loss_only: bool, *args: object, **kwargs: object
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Evaluate a batch, and record its logits if training is under way."""
        records = self._balance.records
        recorded = records.recorder is not None and self.is_in_train
        found = super().prediction_step(model, inputs, prediction_loss_only and not recorded, *args, **kwargs)
        loss, logits, labels = found
        if recorded and isinstance(logits, Tensor) and isinstance(labels, Tensor):
            state = self.accelerator.gradient_state
            if state.active_dataloader is self.callback_handler.eval_dataloader:  # else the state is that of training
                real = self._real(len(labels), state.remainder)
                logits, labels = logits[:real], labels[:real]
            if labels.dim() == 1 and not labels.is_floating_point():
                records.test(labels, logits)
        return (loss, None, None) if prediction_loss_only else found

    def train(self, *args: object, **kwargs: object) -> TrainOutput:
        """Train as the Trainer does; a record that an exception leaves behind can be resumed."""
        try:
            return super().train(*args, **kwargs)
        finally:
            self._balance.records.end(finished=False)  # on_train_end has finished it otherwise

    def _evaluate_train_set(self) -> None:
        data = self.train_dataset if self.clean_dataset is None else self.clean_dataset
        loader = DataLoader(
            self._indexed(data, "clean pass") if self._balance.by_index else data,
            batch_size=self.args.eval_batch_size,
            sampler=InOrder(len(data), seed=0, even=False),  # type: ignore[arg-type]
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
                labels = inputs["labels"]
                with self.compute_loss_context_manager():
                    outputs = self.model(**_without(inputs, KEY, "labels"))
                key = self._part_positions(self._key(inputs), labels)
                self._balance.compare(key, labels)
                self._balance.observe(key, *self._answers(key, outputs, labels))

    # Checkpoints

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            state = {**self._balance.state_dict(), "open": self._open, "step": self.state.global_step}
            torch.save(state, os.path.join(output_dir, STATE_NAME))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = os.path.join(checkpoint, STATE_NAME)
        if not os.path.lexists(path):
            logger.warning(f"{checkpoint} holds no {STATE_NAME}: the ages go on as they are.")
            return
        state = load_tensors(Path(path))
        if not {"ages", "open"} <= state.keys():
            raise ValueError(f"{STATE_NAME} in {checkpoint} is damaged: it must hold ages and open.")
        if (step := state.get("step", self.state.global_step)) != self.state.global_step:
            raise ValueError(
                f"{STATE_NAME} in {checkpoint} is of step {step}, the checkpoint of step {self.state.global_step}."
            )
        self._balance.load_state_dict(state)
        self._open, self._resumed = bool(state["open"]), True
        self._weighed = self._open  # what is open was weighted by the run before


class _WithKey:
    """A collator around another one, which does not see the key of a sample."""

    def __init__(self, collate: Callable[[list[object]], object]) -> None:
        self.collate = collate

    def __call__(self, features: list[object]) -> object:
        """Return the batch, with keys if samples have them."""
        named = [each for each in features if isinstance(each, Mapping) and KEY in each]
        if not named:
            return self.collate(features)
        batch = self.collate([_without(each, KEY) for each in named])
        if not isinstance(batch, MutableMapping):
            raise TypeError(f"data_collator must return a mapping, not {_check.shown(batch)}.")
        batch[KEY] = torch.tensor([each[KEY] for each in named])
        return batch


class _EpochCallback(TrainerCallback):
    """Tells a trainer when to advance the ages."""

    def __init__(self, trainer: AgeTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: object, **kwargs: object) -> None:
        trainer = self.trainer
        if args.device.type == "cuda":
            trainer._balance.to(args.device)
        if not trainer._resumed:
            trainer._open = False
            if trainer._first is not None:  # a new model has made no errors yet
                trainer._balance.load_state_dict(trainer._first)
        trainer._unwritten = False
        trainer._balance.begin()
        if not trainer._resumed:
            return
        if trainer._open and trainer.every is None and _whole(state):
            trainer._end_epoch()  # saved at the last step of an epoch, which will not end again
        trainer._resumed = False

    def on_train_end(self, *_: object, **kwargs: object) -> None:
        self.trainer._write()
        self.trainer._balance.records.end(finished=True)
        self.trainer._balance.move_back()

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, *_: object, **kwargs: object) -> None:
        # Accelerate does not tell the sampler below the loader of a resumed epoch, on several processes.
        set_epoch = getattr(kwargs["train_dataloader"], "set_epoch", None)
        if set_epoch is not None:
            set_epoch(int(state.epoch or 0))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, *_: object, **kwargs: object) -> None:
        if self.trainer.every is not None and state.global_step % self.trainer.every == 0:
            self.trainer._end_epoch()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        # A run that stops within an epoch is resumed within it, and its ages advance at its end.
        over = _whole(state) or not control.should_training_stop
        if self.trainer.every is None and self.trainer._open and over:
            self.trainer._end_epoch()


def _check_bases(trainer: type[Trainer]) -> None:
    """Raise if `compute_loss` of another Trainer would not be called."""
    order = trainer.__mro__
    after = order[order.index(AgeTrainer) + 1 :]
    owner = next(each for each in after if "compute_loss" in vars(each))
    if owner is not Trainer:
        raise TypeError(
            f"The compute_loss of {owner.__name__} would not be called: hand its loss, one number a sample, to "
            "compute_loss_func."
        )


def _whole(state: TrainerState) -> bool:
    return state.epoch is not None and float(state.epoch).is_integer()


def _logits(outputs: object) -> Tensor:
    if isinstance(outputs, Tensor):
        return outputs
    found: Tensor = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]  # type: ignore[index]
    return found


def _without(items: Mapping[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: value for name, value in items.items() if name not in names}
