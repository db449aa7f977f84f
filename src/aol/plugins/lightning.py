"""Ages and margins in Lightning 2: a callback and its loader. Neither changes within an optimiser step."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from aol import _check
from aol._need import framework
from aol._seal import check_seal, sealed
from aol.indexed import Indexed
from aol.losses import loss_total, weighted_mean
from aol.margins import Margins
from aol.plugins._records import Recording
from aol.plugins._training import Ages, Balance, InOrder, Key, answers, evaluating, settings
from aol.sampling import AgeSampler, EpochSampler, ShuffledSampler

with framework("lightning"):
    try:
        from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    except ModuleNotFoundError as missing:
        try:
            from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
        except ModuleNotFoundError:
            raise missing from None


# Of each Trainer that was set up: a tuner takes the callbacks away while it tries out a module that asks for them.
_CALLBACKS: WeakKeyDictionary[Trainer, AgeOfLearning] = WeakKeyDictionary()


class AgeOfLearning(Callback):
    r"""Updates ages and margins during `Trainer.fit`, stores them in checkpoints, and adjusts losses and logits.

    Args:
        ages: `SampleAges`, for batches with the index of each sample; or `ClassAges` or `ErrorRates`, for batches with
            its class; or None.
        margins: an `aol.Margins`; with its `labels`, batches contain the index of each sample. Needs `adjust`.
        class_weight: static weights of classes, `[C]`, such as `aol.frequency_weight`; multiplies those from ages.
        offset: static offset of the logits, `[C]`, such as `aol.logit_offsets`. Needs `adjust`.
        signal: "pass": predictions of a clean pass over the training set at the end of each epoch (evaluation mode,
            without gradients); "training": what the module passes to `observe`.
        clean: the training set without augmentation, for the pass, or a function that returns it; by default the
            training set.
        answer: function of the module and a batch that returns which predictions are right, bool `[B]`, or (for
            margins or `recorder`) probabilities `[B, C]`, or (for margins) predicted classes, integers `[B]`; by
            default, for batches (x, y, ...), from the logits `module(x)`.
        key: position of the index or label in a batch; by default the last element, or "index" ("labels" for classes)
            if batches are mappings.
        every: advance after so many optimiser steps instead of at the end of an epoch, for endless streams, and
            for margins in short trainings.
        divide_by: "weight" or "count", the divisor of `weighted_mean`.
        recorder: records the training for `aol report`: a folder, a function from the ages to an `aol.Recorder`, or an
            `aol.Recorder` of these ages, which you close. Several processes need one of the first two.

    Mean age, age of the oldest class, training accuracy of the worst class, threshold and margins are logged to the
    Trainer's logger, as `age_mean` and so on.

    Use `loader` for the batches: it adds the index, resumes within an epoch, has the same order on any number of
    processes, and prefetches, which `weighted_mean` needs with `accumulate_grad_batches`.

    >>> import aol
    >>> aging = AgeOfLearning(aol.SampleAges([0, 0, 1]))
    >>> data = [(torch.zeros(2), 0), (torch.zeros(2), 0), (torch.ones(2), 1)]
    >>> [batch[-1].tolist() for batch in aging.loader(data, batch_size=2, shuffle=False)]
    [[0, 1], [2]]
    """

    def __init__(
        self,
        ages: Ages | None = None,
        *,
        margins: Margins | None = None,
        class_weight: _check.Numbers | None = None,
        offset: _check.Numbers | None = None,
        signal: str = "pass",
        clean: Dataset[object] | Callable[[], Dataset[object]] | None = None,
        answer: Callable[[LightningModule, object], Tensor] | None = None,
        key: str | int | None = None,
        every: int | None = None,
        divide_by: str = "weight",
        recorder: Recording = None,
    ) -> None:
        self._balance = Balance(ages, margins, class_weight, offset, recorder)
        self.ages, self.margins = self._balance.ages, self._balance.margins
        self.signal, self.every, self.divide_by = settings(signal, every, divide_by)
        self._clean, self._answer, self._place = clean, answer, key
        self._trainer: Trainer | None = None
        self._total: Tensor | None = None  # the divisor of the optimiser step under way
        self._batch = 0
        self._batch_key: Key | None = None  # of the batch under way, in the first epoch
        self._open: int | None = None  # the epoch that was trained and has not ended for the ages
        self._step = 0  # the optimiser step at which the ages last advanced
        self._restored = False

    # A compiled module asks for its weights outside of its graph: they are looked up, and checked, on the host.

    @classmethod
    @torch.compiler.disable
    def of(cls, module: LightningModule | LightningDataModule) -> AgeOfLearning:
        """Return the callback of the Trainer of a module or data module, for use in `training_step`."""
        for callback in (*module.trainer.callbacks, _CALLBACKS.get(module.trainer)):
            if isinstance(callback, cls):
                return callback
        raise ValueError(f"The Trainer must have {cls.__name__} among its callbacks.")

    # What the module and the data module ask for

    def loader(
        self,
        dataset: Dataset[object],
        *,
        shuffle: bool = True,
        resample: bool = False,
        seed: int = 0,
        sampler: Sampler[int] | None = None,
        **options: Any,
    ) -> AgeLoader:
        """Return a loader of a data set; with `SampleAges`, batches contain the index of each sample.

        Args:
            dataset: map-style or, with ages of classes, iterable.
            shuffle: use a new order in each epoch, or that of the data set.
            resample: draw with replacement, by weight (`AgeSampler`).
            seed: of the order.
            sampler: your own sampler; on several processes it must split itself.
            options: of the `DataLoader`.
        """
        options.setdefault("generator", torch.Generator().manual_seed(seed))  # leaves the global one alone
        if isinstance(dataset, IterableDataset) and not self._balance.by_index:
            return AgeLoader(DataLoader(dataset, **options), self._key, self._progress)
        data = self._indexed(dataset)
        size = len(data)  # type: ignore[arg-type]
        self._balance.check_size(size)
        if resample and sampler is not None:
            raise ValueError("resample cannot go with a sampler: both say what is drawn.")
        if sampler is None:
            sampler = ShuffledSampler(size, seed=seed) if shuffle else InOrder(size, seed=seed)
            if resample:
                sampler = AgeSampler(self.ages, seed=seed)  # type: ignore[arg-type]
        return AgeLoader(DataLoader(data, sampler=sampler, **options), self._key, self._progress)

    @torch.compiler.disable
    def weight(self, key: Key) -> Tensor:
        """Return the weights of these samples (or classes), `float32 [B]`."""
        return self._balance.weight(key)

    @torch.compiler.disable
    def adjust(self, logits: Tensor) -> Tensor:
        """Return the logits plus margins and offset, `[B, C]`, for the training loss; not changed outside training."""
        return self._balance.adjust(logits) if self._active_trainer().training else logits

    @torch.compiler.disable
    def weighted_mean(self, loss: Tensor, key: Key) -> Tensor:
        r"""Return Σwℓ / Σw of losses `[B]`, for `training_step` to return; exact over a whole optimiser step.

        With accumulation and several processes, Σw is taken over the whole optimiser step: the parts add up to the
        gradient of one large batch. The mean of the parts is its loss. Collective.
        """
        if loss.dim() == 0:
            raise ValueError('loss must hold one number a sample, [B], not their mean: give it reduction="none".')
        parts, dry = self._active_trainer().accumulate_grad_batches, self._is_dry_run()
        real = len(key) if dry else self._real(key)
        loss, weight = loss[:real], self.weight(key[:real])
        if parts == 1 or dry:
            return weighted_mean(loss, weight, total=loss_total(weight, divide_by=self.divide_by))
        if self._total is None:
            self._total = loss_total(self._step_weights(key), divide_by=self.divide_by)
        return weighted_mean(loss, weight, total=self._total / parts)  # Lightning divides by the number of parts

    @torch.compiler.disable
    def observe(self, key: Key, answer: Tensor, label: Tensor | None = None) -> None:
        """Record the predictions of a training batch, for `signal="training"`. Collective.

        `answer` is bool, `[B]` (which are right) or what margins need: the probabilities of classes, `[B, C]` (which
        are recorded), or the predicted classes, `[B]`. Take them from logits that are not adjusted. `label`, `[B]`, is
        compared with the labels of the ages in the first epoch.
        """
        if self.signal != "training":
            raise ValueError('observe is for signal="training"; with "pass" the callback looks by itself.')
        if self._is_dry_run():
            return
        self._balance.compare(key, label)
        real = self._real(key)
        self._balance.observe_together(key[:real], *self._balance.parse_answer(key[:real], answer[:real]))

    def test(self, label: Tensor, logits: Tensor) -> None:
        """Record predictions `[B, C]` in `validation_step`; without a recorder, and outside of training, do nothing."""
        if not self._is_dry_run():
            self._balance.records.test(label, logits)

    # Hooks

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Store the Trainer, to read its progress."""
        if stage == "fit" and trainer.overfit_batches:
            raise ValueError("AgeOfLearning cannot keep to overfit_batches: give fit a small data set instead.")
        self._trainer, self._restored = trainer, False
        _CALLBACKS[trainer] = self

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move ages and margins to the device of the model."""
        if trainer.strategy.root_device.type == "cuda":
            self._balance.to(trainer.strategy.root_device)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End an epoch that a checkpoint of its last batch left open; Lightning does not end it again."""
        self._balance.begin()
        if self._balance.states and self.signal == "pass" and self._clean is None:
            self._map_style(trainer, None)  # says now, and not after an epoch, that there is nothing to look at
        self._total = None
        if self._restored and self.every is not None:
            self._end_epoch_when_due(trainer, pl_module)
        elif self._restored and self._open not in (None, trainer.current_epoch):
            self._end_epoch(trainer, pl_module)
        elif not self._restored:
            self._open, self._step = None, trainer.global_step
        self._restored = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Reset the divisor of the previous optimiser step, and note the learning rate."""
        self._check_indexed(batch)
        if self._is_dry_run():
            return
        self._batch_key = None
        if self._balance.comparing:
            self._compare(trainer, batch)
        self._open, self._batch = trainer.current_epoch, batch_idx
        self._balance.note_rate(*trainer.optimizers)
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._total = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Advance, if `every` counts optimiser steps."""
        loader = self._loader(trainer)
        if loader is not None:
            loader.done()
        if self.every is not None:
            self._end_epoch_when_due(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Advance, unless the checkpoint was made after it."""
        if self.every is None and self._open is not None:
            self._end_epoch(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finish the record."""
        self._balance.records.end(finished=not trainer.interrupted)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Release the record, which can be resumed."""
        self._balance.records.end(finished=False)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Move ages and margins back to their device."""
        self._balance.move_back()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, object]) -> None:
        """Warn if a checkpoint has no ages."""
        found = checkpoint.get("callbacks")
        if isinstance(found, Mapping) and self.state_key not in found:
            warnings.warn("This checkpoint holds no ages of AgeOfLearning: they go on as they are.", stacklevel=2)

    def state_dict(self) -> dict[str, object]:
        """Return ages and margins, also within an epoch."""
        return sealed({**self._balance.state_dict(), "open": self._open, "step": self._step})

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Load ages and margins of a checkpoint."""
        opened = state_dict.get("open")
        step = _check.state_whole("AgeOfLearning", state_dict, "step")
        if opened is not None and not isinstance(opened, int):
            raise ValueError(f"This state of AgeOfLearning is damaged: 'open' is {_check.shown(opened)}.")
        check_seal("AgeOfLearning", state_dict)
        self._balance.load_state_dict(state_dict)
        self._open, self._step, self._restored = opened, step, True

    # What the hooks do

    def _end_epoch_when_due(self, trainer: Trainer, module: LightningModule) -> None:
        if self.every is not None and trainer.global_step - self._step >= self.every:
            self._end_epoch(trainer, module)

    def _end_epoch(self, trainer: Trainer, module: LightningModule) -> None:
        if self._balance.states and self.signal == "pass":
            self._evaluate_train_set(trainer, module)
        elif self._balance.states and not self._balance.observed():
            raise ValueError('Nothing was observed: with signal="training", training_step must call observe.')
        self._balance.advance(sync=self.signal == "pass")  # what was observed in training is known to all already
        self._balance.record()
        self._open, self._step = None, trainer.global_step
        if module._current_fx_name != "on_train_start" and not trainer.barebones:  # where nothing can be logged
            by_step = self.every is not None
            module.log_dict(
                self._balance.figures(), on_step=by_step, on_epoch=not by_step, batch_size=1, sync_dist=not by_step
            )

    def _evaluate_train_set(self, trainer: Trainer, module: LightningModule) -> None:
        limit = trainer.limit_train_batches if trainer.fast_dev_run else float("inf")
        trainer.validating = True  # so that hooks which augment in training do not
        try:
            with evaluating(module), trainer.precision_plugin.forward_context():
                for number, fetched in enumerate(self._clean_batches(trainer)):
                    if number >= limit:
                        break
                    batch = module._on_before_batch_transfer(trainer.precision_plugin.convert_input(fetched))
                    batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
                    key = self._key(batch)
                    self._balance.compare(key, self._labels(batch))
                    self._balance.observe(key, *self._answers(module, batch, key))
        finally:
            trainer.training = True

    def _clean_batches(self, trainer: Trainer) -> DataLoader[object]:
        loader = self._loader(trainer)
        given = trainer.train_dataloader if loader is None else loader.batches
        data = self._map_style(trainer, self._clean() if callable(self._clean) else self._clean)
        names = ("batch_size", "num_workers", "collate_fn", "pin_memory", "worker_init_fn")
        options = {name: getattr(given, name) for name in names if hasattr(given, name)}
        order = InOrder(len(data), seed=0, even=False)  # type: ignore[arg-type]
        return DataLoader(data, sampler=order, generator=torch.Generator(), **options)

    def _map_style(self, trainer: Trainer, clean: Dataset[object] | None) -> Dataset[object]:
        """Return the data set of a clean pass, with indices: the given one, or the training set."""
        loader = self._loader(trainer)
        data = getattr(trainer.train_dataloader if loader is None else loader, "dataset", None)
        if clean is not None:
            data = self._indexed(clean) if loader is not None or isinstance(data, Indexed) else clean
        if data is None or isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            raise ValueError('clean must be a map-style data set here: signal="pass" has none to look at.')
        if isinstance(data, Indexed):
            self._balance.check_size(len(data))
        return data

    def _answers(self, module: LightningModule, batch: object, key: Key) -> tuple[Tensor, Tensor | None]:
        if self._answer is not None:
            return self._balance.parse_answer(key, self._answer(module, batch))
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise ValueError(f"answer must say what is right in batches that are not (x, y, ...): {type(batch)}.")
        return answers(module(batch[0]), batch[1])

    def _check_indexed(self, batch: object) -> None:
        """Raise if batches are (x, y): the label would be taken for the index."""
        by_form = self.signal == "pass" and self._answer is None and self._place is None
        pair = isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(each, Tensor) for each in batch)
        if self._balance.by_sample and by_form and pair:
            raise ValueError(
                "Batches must carry the index of each sample, (x, y, index): give the data set to AgeOfLearning.loader "
                "or to aol.Indexed."
            )

    def _key(self, batch: object) -> Key:
        self._check_indexed(batch)
        place = self._place
        if place is None:
            named = "index" if self._balance.by_index else "labels"
            place = named if isinstance(batch, Mapping) else -1
        try:
            found: Key = batch[place]  # type: ignore[index]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"key must say where batches hold it: they have no {place!r}.") from error
        return found

    def _indexed(self, dataset: Dataset[object]) -> Dataset[object]:
        return Indexed(dataset) if self._balance.by_index and not isinstance(dataset, Indexed) else dataset

    def _loader(self, trainer: Trainer) -> AgeLoader | None:
        return _age_loader(trainer.train_dataloader)

    def _compare(self, trainer: Trainer, batch: object) -> None:
        """Note the key of a training batch, and compare its labels with those of the states."""
        loader, label = self._loader(trainer), self._labels(batch)
        if loader is not None:
            self._batch_key = loader.keys(1)[0][0]
        elif label is not None:
            self._batch_key = self._key(batch)
        if self._batch_key is not None:
            self._balance.compare(self._batch_key, label)

    def _labels(self, batch: object) -> Tensor | None:
        """Return the labels of a batch, if its form says where they are."""
        by_form = self.signal == "pass" and self._answer is None and isinstance(batch, tuple | list) and len(batch) > 1
        return batch[1] if by_form and isinstance(batch[1], Tensor) else None  # type: ignore[index]

    def _is_dry_run(self) -> bool:
        """Return whether batches do not count: Lightning tunes, or renews the statistics of batch norm (SWA)."""
        trainer = self._active_trainer()
        return self not in trainer.callbacks or bool(getattr(trainer.fit_loop, "_skip_backward", False))

    def _active_trainer(self) -> Trainer:
        if self._trainer is None:
            raise ValueError("AgeOfLearning must be among the callbacks of the Trainer.")
        return self._trainer

    def _progress(self) -> tuple[int, int] | None:
        """Return the epoch and the number of its batches trained on; after the last one, the next epoch and 0."""
        if self._trainer is None:
            return None
        epoch = self._trainer.fit_loop.epoch_progress.current.processed
        batches = self._trainer.fit_loop.epoch_loop.batch_progress
        over = batches.is_last_batch and batches.current.processed == batches.current.ready
        return (epoch + 1, 0) if over else (epoch, batches.current.processed)

    def _real(self, key: Key) -> int:
        """Return the number of samples of the current batch without padding; in the first epoch, check the key."""
        if self._batch_key is not None:
            self._balance.check_key(key, self._batch_key)
        loader = self._loader(self._active_trainer())
        now = [] if loader is None else loader.keys(1)
        return now[0][1] if now and len(now[0][0]) == len(key) else len(key)

    def _step_weights(self, key: Key) -> list[Tensor]:
        """Return the weights of this and the following batches of the optimiser step."""
        trainer = self._active_trainer()
        parts, last = trainer.accumulate_grad_batches, trainer.num_training_batches
        number = min(parts - self._batch % parts, last - self._batch)
        loader = self._loader(trainer)
        if loader is None:
            raise ValueError(
                f"accumulate_grad_batches={parts} needs the loader of AgeOfLearning.loader(), which looks ahead."
            )
        keys = loader.keys(int(number))
        if len(keys) < number and last < float("inf"):
            raise ValueError("accumulate_grad_batches needs a loader that lasts as long as the epoch.")
        if len(keys[0][0]) != len(key):
            raise ValueError(f"key must be that of the whole batch, {len(keys[0][0])}, not {len(key)}.")
        return [self.weight(each[:real]) for each, real in keys]


class AgeLoader:
    """The batches of a `DataLoader`, with resuming within an epoch and access to the next batches.

    Not a subclass of `DataLoader`, because Lightning would replace its sampler. On resuming, an `EpochSampler`
    continues at its position; with any other sampler the used batches are fetched again and skipped.

    Args:
        batches: the `DataLoader`.
        key: function from a batch to its indices or labels.
        progress: returns the epoch and the number of its batches trained on; None outside of a loop.
    """

    def __init__(
        self, batches: DataLoader[object], key: Callable[[object], Key], progress: Callable[[], tuple[int, int] | None]
    ) -> None:
        self.batches = batches
        self._key, self._progress = key, progress
        self._iterator: Iterator[object] | None = None  # of this name, because Lightning ends its workers by it
        self._ahead: deque[object] = deque()  # fetched, not handed out
        self._keys: deque[tuple[Key, int]] = deque()  # of what was fetched and is not done with
        self._left: float = math.inf  # samples of this pass yet to be fetched, without those that fill it up
        self._begun: tuple[int, int] | None = None  # the progress at which this pass began
        self._skip = self._skipped = 0  # of an order that cannot resume: batches to leave out, and left out

    @property
    def sampler(self) -> Iterable[int]:
        """The sampler; Lightning sets its epoch."""
        return self.batches.sampler

    @property
    def dataset(self) -> Dataset[object]:
        """The data set, as the batches see it."""
        return self.batches.dataset

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[object]:
        # A generator: nothing is drawn before the first batch is asked for, however early the iterator was made.
        if self._iterator is None:
            self.batches._iterator = None  # persistent workers that Lightning has ended
        self._begun, self._left = self._progress(), _share(self.sampler)
        self._ahead.clear()
        self._keys.clear()
        self._iterator = iter(self.batches)
        skip, self._skip = self._skip, 0
        for _ in range(skip):
            next(self._iterator, None)
        self._skipped = skip
        while self._ahead or self._fetch():
            yield self._ahead.popleft()

    def _fetch(self) -> bool:
        if self._iterator is None:
            return False
        for batch in self._iterator:
            key = self._key(batch)
            self._ahead.append(batch)
            self._keys.append((key, int(max(0, min(len(key), self._left)))))
            self._left -= len(key)
            return True
        return False

    def keys(self, number: int) -> list[tuple[Key, int]]:
        """Return the keys of the current batch and of the next ones, up to a number of batches.

        Each comes with the number of real samples; the samples after them are padding.
        """
        while len(self._keys) < number and self._fetch():
            pass
        return list(self._keys)[:number]

    def done(self) -> None:
        """Record that the current batch was trained on."""
        if self._keys:
            self._keys.popleft()

    def state_dict(self) -> dict[str, object]:
        """Return the position, by what was trained on, not by what was fetched."""
        now, begun, sampler = self._progress(), self._begun, self.sampler
        used = now[1] - begun[1] if now and begun and now[0] == begun[0] else None
        if not isinstance(sampler, EpochSampler):
            return sealed({"batches": 0 if used is None else self._skipped + used})
        if used is not None:
            return {"sampler": sampler.state_dict(consumed=used * (self.batches.batch_size or 1))}
        front = {"epoch": now[0] if now else sampler.epoch, "position": 0, "order": None}
        return {"sampler": sealed({**sampler.state_dict(), **front})}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from the state of another loader with the same settings."""
        if isinstance(self.sampler, EpochSampler):
            self.sampler.load_state_dict(state.get("sampler"))  # type: ignore[arg-type]
        else:
            skip = _check.state_whole("AgeLoader", state, "batches")
            check_seal("AgeLoader", state)
            self._skip = skip


def _age_loader(loaders: object) -> AgeLoader | None:
    """Return the one `AgeLoader` in a loader or in nested collections of loaders."""
    found = [each for each in _leaves(loaders) if isinstance(each, AgeLoader)]
    if len(found) > 1:
        raise ValueError(f"AgeOfLearning can follow one loader of its own, not {len(found)}.")
    return found[0] if found else None


def _leaves(loaders: object) -> Iterable[object]:
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    return [leaf for each in loaders for leaf in _leaves(each)] if isinstance(loaders, list | tuple) else [loaders]


def _share(sampler: Iterable[int]) -> float:
    """Return the number of samples of this process in the coming pass, without padding.

    >>> from aol import ShuffledSampler
    >>> _share(ShuffledSampler(5, rank=1, world_size=2)), len(ShuffledSampler(5, rank=1, world_size=2))
    (2, 3)
    """
    if not isinstance(sampler, EpochSampler):
        return math.inf
    begin = sampler._position if sampler._resume else 0
    rank, world = sampler._world()
    return len(range(begin + rank, sampler.num_samples, world))
