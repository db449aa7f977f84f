"""Ages and margins in Lightning 2: a callback that watches, and hands weights and offsets to your own loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from aol._need import framework
from aol.indexed import Indexed
from aol.margins import Margins
from aol.plugins._records import Recording
from aol.plugins._training import Ages, Balance, evaluating
from aol.sampling import AgeSampler, ShuffledSampler

with framework("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer


def _answer_of(module: LightningModule, batch: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return logits, labels and indices of a batch (x, y, ..., index); without an index, of (x, y)."""
    x, label, *rest = batch
    return module(x), label, rest[-1] if rest else None


class AgeOfLearning(Callback):
    """Updates ages and margins during `Trainer.fit`, and stores them in checkpoints.

    Args:
        ages: `SampleAges`, for batches with the index of each sample; `ClassAges` or `ErrorRates`; or None.
        margins: an `aol.Margins`, or None.
        signal: "pass": a clean pass over the training set at the end of each epoch (evaluation mode, without
            gradients); "training": what `training_step` hands to `observe`, without a pass.
        clean: the training set without augmentation, for the pass, or a function that returns it; by default the
            training set.
        answer: function of the module and a batch of the pass that returns logits, labels and indices; by default for
            batches (x, y, ..., index), with `module(x)` as logits.
        every: advance after so many optimiser steps instead of at the end of an epoch, for endless streams, and
            for margins in short trainings.
        recorder: records the training for `aol report`: a folder, a function from the ages to an `aol.Recorder`, or an
            `aol.Recorder` of these ages, which you close. Several processes need one of the first two.

    Mean age, age of the oldest class, and the smallest and largest margin are logged as `age_mean` and so on. Weights
    and offsets do not change within an optimiser step.

    >>> import aol
    >>> aging = AgeOfLearning(aol.SampleAges([0, 0, 1]))
    >>> data = [(torch.zeros(2), 0), (torch.zeros(2), 0), (torch.ones(2), 1)]
    >>> [batch[-1].tolist() for batch in aging.loader(data, batch_size=2, seed=1)]
    [[1, 2], [0]]
    """

    def __init__(
        self,
        ages: Ages | None = None,
        *,
        margins: Margins | None = None,
        signal: str = "pass",
        clean: Dataset[object] | Callable[[], Dataset[object]] | None = None,
        answer: Callable[[LightningModule, Any], tuple[Tensor, Tensor, Tensor | None]] = _answer_of,
        every: int | None = None,
        recorder: Recording = None,
    ) -> None:
        self._balance = Balance(ages, margins, signal=signal, every=every, recorder=recorder)
        self.ages, self.margins = ages, margins
        self._clean, self._answer = clean, answer
        self._trainer: Trainer | None = None
        self._open: int | None = None  # the epoch that was trained and has not ended for the ages
        self._step = 0  # the optimiser step at which the ages last advanced
        self._restored = False

    # What the module asks for; a compiled module outside of its graph

    @torch.compiler.disable
    def weight(self, key: Tensor) -> Tensor:
        """Return the weights of samples by index (with ages of classes by label), `float32 [B]`."""
        return self._balance.weight(key)

    @torch.compiler.disable
    def adjust(self, logits: Tensor) -> Tensor:
        """Return the logits plus margins, `[B, C]`, for the training loss."""
        return self._balance.adjust(logits)

    @torch.compiler.disable
    def observe(self, logits: Tensor, label: Tensor, index: Tensor | None = None) -> None:
        """Observe a training batch, for `signal="training"`: logits `[B, C]` that are not adjusted. Collective."""
        if self._balance.signal != "training":
            raise ValueError('observe is for signal="training"; with "pass" the callback looks by itself.')
        if self._trainer is not None and self in self._trainer.callbacks:  # else Lightning tunes
            self._balance.observe(logits, label, index)
            self._open = self._trainer.current_epoch

    def test(self, label: Tensor, logits: Tensor) -> None:
        """Record predictions `[B, C]` in `validation_step`; without a recorder, and outside of training, do nothing."""
        self._balance.records.test(label, logits)

    def loader(
        self, dataset: Dataset[object], *, batch_size: int = 1, resample: bool = False, seed: int = 0, **options: Any
    ) -> AgeLoader:
        """Return a loader of a map-style data set; with `SampleAges`, batches have the index of each sample.

        Every epoch has a new order, the same on any number of processes, or is drawn with replacement by weight
        (`resample`). A checkpoint within an epoch holds the position. `options` are those of the `DataLoader`.
        """
        data = Indexed(dataset) if self._balance.by_index and not isinstance(dataset, Indexed) else dataset
        self._balance.check_size(len(data))  # type: ignore[arg-type]
        if resample and self._balance.every is not None:
            raise ValueError("every cannot go with resample: an order is drawn once an epoch.")
        order = AgeSampler(self.ages, seed=seed) if resample else ShuffledSampler(data, seed=seed)  # type: ignore[arg-type]
        batches = _Batches(order, batch_size, options.pop("drop_last", False))
        options.setdefault("generator", torch.Generator().manual_seed(seed))  # leaves the global one alone
        return AgeLoader(DataLoader(data, batch_sampler=batches, **options), self)

    # Hooks

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Store the Trainer, to read its progress."""
        self._trainer, self._restored = trainer, False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move ages and margins to the device of the model."""
        if trainer.strategy.root_device.type == "cuda":
            self._balance.to(trainer.strategy.root_device)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End an epoch that a checkpoint of its last batch left open; Lightning does not end it again."""
        self._balance.records.begin(self.ages)
        if self._balance.signal == "pass":
            self._clean_set(trainer)  # says now, and not after an epoch, that there is nothing to look at
        if not self._restored:
            self._open, self._step = None, trainer.global_step
        elif self._due(trainer) or (self._balance.every is None and self._open not in (None, trainer.current_epoch)):
            self._end_epoch(trainer, pl_module, log=False)
        self._restored = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Note the learning rate of this step."""
        self._open = trainer.current_epoch
        self._balance.note_rate(*trainer.optimizers)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Advance, if `every` counts optimiser steps."""
        if self._due(trainer):
            self._end_epoch(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Advance, unless the checkpoint was made after it."""
        if self._balance.every is None and self._open is not None:
            self._end_epoch(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finish the record."""
        self._balance.records.end(finished=not trainer.interrupted)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Release the record, which can be resumed."""
        self._balance.records.end(finished=False)

    def state_dict(self) -> dict[str, object]:
        """Return ages and margins, also within an epoch."""
        return {**self._balance.state_dict(), "open": self._open, "step": self._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load ages and margins of a checkpoint."""
        self._balance.load_state_dict(state_dict)
        self._open, self._step, self._restored = state_dict["open"], state_dict["step"], True

    # What the hooks do

    def _due(self, trainer: Trainer) -> bool:
        return self._balance.every is not None and trainer.global_step - self._step >= self._balance.every

    def _end_epoch(self, trainer: Trainer, module: LightningModule, *, log: bool = True) -> None:
        if self._balance.signal == "pass":
            self._evaluate_train_set(trainer, module)
        self._balance.advance()
        self._balance.record()
        self._open, self._step = None, trainer.global_step
        if log and not trainer.barebones:
            by_step = self._balance.every is not None
            options = {"on_step": by_step, "on_epoch": not by_step, "sync_dist": not by_step}
            module.log_dict(self._balance.figures(), batch_size=1, **options)

    def _evaluate_train_set(self, trainer: Trainer, module: LightningModule) -> None:
        data, loader = self._clean_set(trainer), _data_loader(trainer)
        names = ("num_workers", "collate_fn", "pin_memory", "worker_init_fn")
        options: dict[str, Any] = {name: getattr(loader, name) for name in names if hasattr(loader, name)}
        own = range(trainer.global_rank, len(data), trainer.world_size)  # type: ignore[arg-type]  # every sample once
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", 1)
        batches = DataLoader(data, size, sampler=own, generator=torch.Generator(), **options)
        limit = trainer.limit_train_batches if trainer.fast_dev_run else None
        trainer.validating = True  # so that hooks which augment in training do not
        try:
            with evaluating(module), trainer.precision_plugin.forward_context():
                for fetched in islice(batches, limit):
                    batch = module._on_before_batch_transfer(trainer.precision_plugin.convert_input(fetched))
                    batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
                    self._balance.observe(*self._answer(module, batch))
        finally:
            trainer.training = True

    def _clean_set(self, trainer: Trainer) -> Dataset[object]:
        """Return the data set of a clean pass, with indices if the training set has them."""
        given = getattr(_data_loader(trainer), "dataset", None)
        data = self._clean() if callable(self._clean) else self._clean
        if data is None:
            data = given
        elif isinstance(given, Indexed) and not isinstance(data, Indexed):
            data = Indexed(data)
        if data is None or isinstance(data, IterableDataset):
            raise ValueError('clean must be a map-style data set here: signal="pass" has none to look at.')
        if isinstance(data, Indexed):
            self._balance.check_size(len(data))
        return data

    def _progress(self) -> int:
        """Return how many batches of the epoch were trained on; after the last one, 0."""
        if self._trainer is None:
            return 0
        batches = self._trainer.fit_loop.epoch_loop.batch_progress
        over = batches.is_last_batch and batches.current.processed == batches.current.ready
        return 0 if over else batches.current.processed


def _data_loader(trainer: Trainer) -> Any:
    loader = trainer.train_dataloader
    return loader.batches if isinstance(loader, AgeLoader) else loader


class _Batches(BatchSampler):
    """Batches of indices; the next pass leaves out the first `skip`."""

    skip = 0

    def __iter__(self) -> Iterator[list[int]]:
        skip, self.skip = self.skip, 0
        yield from islice(super().__iter__(), skip, None)  # a generator: a loader with workers calls this twice


class AgeLoader:
    """The batches of a `DataLoader`, resumed within an epoch by what was trained on, not by what was fetched.

    Not a subclass of `DataLoader`, because Lightning would replace its sampler.
    """

    def __init__(self, batches: DataLoader[object], aging: AgeOfLearning) -> None:
        self.batches, self._aging = batches, aging
        self.dataset, self.batch_sampler = batches.dataset, batches.batch_sampler  # Lightning sets the sampler's epoch

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[object]:
        yield from self.batches  # a generator: nothing is drawn before the first batch is asked for

    def state_dict(self) -> dict[str, object]:
        """Return how many batches of the epoch were trained on."""
        return {"batches": self._aging._progress()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Leave out the batches of the epoch that were trained on."""
        self.batch_sampler.skip = state["batches"]  # type: ignore[union-attr]
