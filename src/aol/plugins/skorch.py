"""Ages and margins for skorch: a callback that evaluates the training set after each epoch, and adjusts the next loss.

Weights and offsets are applied in calls of the criterion, for training batches only. The ages are at `net.ages_`, where
`save_params`, `load_params` and `Checkpoint` find them.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.hooks import RemovableHandle

from aol import _check, _distributed
from aol._need import framework
from aol._seal import NAME as SEAL
from aol._seal import check_seal, sealed
from aol.ages import SampleAges
from aol.ages.sample import FUSE
from aol.indexed import Indexed
from aol.losses import loss_total, weighted_mean, with_offset
from aol.margins import SIGNALS, Margins
from aol.offsets import logit_offsets
from aol.plugins._records import Recording
from aol.plugins._training import Balance, check_margins, log_probabilities, unreduced

with framework("skorch"):
    from skorch import NeuralNet
    from skorch.callbacks import Callback
    from skorch.dataset import unpack_data
    from skorch.utils import data_from_dataset, to_numpy

Output: TypeAlias = Tensor | tuple[Tensor, ...] | None  # of a module for a batch


class AgeOfLearning(Callback):
    r"""Weights the training loss by how long samples, or their classes, have been wrong.

    At the end of an epoch the net predicts its training set: a right prediction sets the age of a sample to one, a
    wrong one adds one. In the next epoch the loss of a batch is

    .. math:: L = \frac{\sum_{i \in B} w_i \ell_i}{\sum_{i \in B} w_i}

    instead of the mean. A criterion with `reduction="sum"` returns $\sum w_i \ell_i$, and one with "none" the vector
    $w_i \ell_i / \bar w$, which your `get_loss` may weight further. With `margins` or `offset`, the criterion gets
    logits plus offsets. Validation is neither weighted nor adjusted.

    Args:
        rho: smoothing rate of ages, in [0, 1]; 0 means weights of one.
        level: weights by "class" or by "sample". "sample" needs `iterator_train=IndexedLoader`.
        fuse: how the ages of a sample over time become one number: "ema", "mean" of all ages so far, or "peak",
            the largest so far.
        margins: offsets of the logits that are found while training: "probability", "error" or "age" (`aol.Margins` of
            the training set), an `aol.Margins` without `labels`, which is copied, or None.
        offset: a static offset of the logits: "counts" (`aol.logit_offsets` of the training set), `[C]`, or None.
        gain: speed of these margins.
        tau: strength of the offset "counts".
        recorder: records training and validation for `aol report`: a folder, or a function from the ages to an
            `aol.Recorder`. Costs a second evaluation of the training set.
        margin_steps: margins observe each training batch (the output of the module, before offsets are added) and move
            after every so many optimiser steps and at the end of an epoch; they then have no `labels`. None: they
            observe the training set after each epoch, as the ages do, and move once.

    Attributes:
        ages_: the `aol.SampleAges` of the training set (without skorch's validation split), in its order.
        margins_: the `aol.Margins`, or None.

    The callback becomes `net.ages_`: `net.save_params(f_ages=...)`, `Checkpoint(f_ages=...)` and `load_params` save and
    load the ages. It must come before such a `Checkpoint`. Columns of the history, which skorch's loggers take up, are
    the smoothed ages of the oldest class (`class_age`) and on average (`age_mean`), the training accuracy of the worst
    class (`train_worst_class`), and `margin_smallest` and `margin_largest`.

    >>> from skorch import NeuralNetClassifier
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
    >>> net = NeuralNetClassifier(model, max_epochs=5, verbose=0, callbacks=[AgeOfLearning(rho=0.5)])
    >>> _ = net.fit(X.astype("float32"), y)
    >>> net.ages_.class_age
    tensor([2.2281, 3.9281, 3.1312])
    """

    balance_: Balance | None = None  # before the training set is known
    pending_: dict[str, object]  # loaded, and waiting for the training set

    def __init__(
        self,
        rho: float = 0.5,
        level: str = "class",
        fuse: str = "ema",
        margins: str | Margins | None = None,
        offset: str | _check.Numbers | None = None,
        gain: float = 0.1,
        tau: float = 1.0,
        recorder: Recording = None,
        margin_steps: int | None = None,
    ) -> None:
        self.rho = rho
        self.level = level
        self.fuse = fuse
        self.margins = margins
        self.offset = offset
        self.gain = gain
        self.tau = tau
        self.recorder = recorder
        self.margin_steps = margin_steps

    # What is known

    @property
    def ages_(self) -> SampleAges | None:
        """The ages of the training set; None before the first epoch."""
        return None if self.balance_ is None else self._known()[1]

    @property
    def margins_(self) -> Margins | None:
        """The margins, if there are any; None before the first epoch."""
        return None if self.balance_ is None else self.balance_.margins

    @property
    def class_age(self) -> Tensor:
        """The smoothed age of each class, `float32 [C]`."""
        return self._known()[1].class_age

    @property
    def class_weight(self) -> Tensor:
        """The weight of each class in the next epoch, at class level, `float32 [C]`."""
        return self._known()[1].class_weight

    def _known(self) -> tuple[Balance, SampleAges]:
        if self.balance_ is None:
            raise AttributeError("There are no ages before the first epoch.")
        assert isinstance(self.balance_.ages, SampleAges)
        return self.balance_, self.balance_.ages

    def state_dict(self) -> dict[str, object]:
        """Return ages and margins as tensors and primitives."""
        if self.balance_ is None:
            return self.pending_
        state = self.balance_.state_dict()
        more = {} if self.margins_ is None else {"margins": state["margins"], "rate": state["rate"]}
        return sealed({**state["ages"], **more, "trained": self.trained_})  # type: ignore[dict-item]

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Load ages and margins; if training has not begun, they are used when it begins."""
        check_seal("AgeOfLearning", state)
        if self.balance_ is not None and state:
            self._load(self.balance_, state)
        else:
            self.balance_, self.pending_ = None, state

    def _load(self, balance: Balance, state: Mapping[str, object]) -> None:
        more = ("margins", "rate", "trained", SEAL)
        ages = {name: value for name, value in state.items() if name not in more}
        saved = {name: state[name] for name in more if name in state}  # margins that were not saved start anew
        balance.load_state_dict({**balance.state_dict(), **saved, "ages": ages})
        self.trained_ = _check.state_whole("AgeOfLearning", {"trained": 0, **state}, "trained")

    # What happens

    def initialize(self) -> Self:
        """Reset all ages, as when a net is initialized."""
        self._release()
        self.balance_, self.pending_ = None, {}
        self.trained_ = 0  # epochs of the net
        self.adjusts_ = False  # whether the current batch gets offsets
        self.weight_: Tensor | None = None  # of the current batch
        self.several_ = False  # whether several processes have a share of each batch
        self.stepped_ = False  # whether the optimiser made a step in the current batch
        self.watch_: RemovableHandle | None = None  # what sets it
        return self

    def _release(self) -> None:
        """Close the record of a training that broke off."""
        if self.balance_ is not None:
            self.balance_.records.end(finished=False)

    def on_train_begin(self, net: NeuralNet, X: object = None, y: object = None, **kwargs: object) -> None:
        """Check the settings, and set `net.ages_`."""
        self._check_settings()
        self._check_order(net)
        if not hasattr(net.criterion_, "reduction"):
            raise TypeError(
                "AgeOfLearning needs a criterion with a reduction, as those of PyTorch have, to see the loss of each "
                f"sample; {type(net.criterion_).__name__} has none."
            )
        accelerator = getattr(net, "accelerator", None)  # of skorch.hf.AccelerateMixin
        self.several_ = accelerator is not None and accelerator.num_processes > 1
        if self.level == "sample" and accelerator is not None:
            raise ValueError(
                'level="sample" cannot be used with AccelerateMixin, whose batches do not tell which samples are in '
                'them: use level="class".'
            )
        self._detach(net)  # of a training that broke off
        self._release()
        net.ages_ = self
        self.met_ = False

    def _check_settings(self) -> None:
        _check.number("rho", self.rho, 0.0, 1.0)
        _check.choice("level", self.level, ("class", "sample"))
        _check.choice("fuse", self.fuse, FUSE)
        _check.number("gain", self.gain, 0.0, 1e3)
        _check.number("tau", self.tau, 0.0, 1e6)
        if isinstance(self.margins, str):
            _check.choice("margins", self.margins, SIGNALS)
        elif self.margins is not None and check_margins(self.margins)._labels is not None:
            raise ValueError(
                'margins must be without labels, or a signal such as "error": the net chooses its training set.'
            )
        if isinstance(self.offset, str):
            _check.choice("offset", self.offset, ("counts",))

    def _check_order(self, net: NeuralNet) -> None:
        names = [name for name, each in net.callbacks_]
        alike = [name for name, each in net.callbacks_ if isinstance(each, AgeOfLearning)]
        if len(alike) > 1:
            raise ValueError(f"callbacks must hold one AgeOfLearning at most, not {' and '.join(alike)}.")
        own = next(i for i, (_, each) in enumerate(net.callbacks_) if each is self)
        for name, each in net.callbacks_[:own]:
            if getattr(each, "f_ages", None) is not None or getattr(each, "f_pickle", None) is not None:
                raise ValueError(
                    f"{names[own]} must stand before {name} among the callbacks: what {name} keeps would hold the ages "
                    "of the epoch before."
                )

    def on_epoch_begin(self, net: NeuralNet, dataset_train: Dataset[object] | None = None, **kwargs: object) -> None:
        """Read the training set, once per training."""
        if self.met_:
            return
        ages = SampleAges(_labels(net, dataset_train), rho=self.rho, level=self.level, fuse=self.fuse)
        state = self.pending_
        if state:
            self._check_trained(net)
        elif self.ages_ is not None:
            if torch.equal(self.ages_.labels, ages.labels):
                state = {**self.state_dict(), "rho": ages.state_dict()["rho"]}  # it may have been changed
            else:
                warnings.warn("These are other samples than before: their ages start anew.", stacklevel=2)
        balance = self._made(net, dataset_train, ages)
        if state:
            self._load(balance, state)
        self.balance_, self.pending_, self.met_ = balance, {}, True
        balance.begin()

    def _made(self, net: NeuralNet, dataset: Dataset[object] | None, ages: SampleAges) -> Balance:
        """Return ages of a training set with new margins and offset."""
        margins = copy.deepcopy(self.margins)
        if isinstance(margins, str):
            labels = ages.labels if self.margin_steps is None else None
            margins = Margins(_num_classes(net, dataset), labels=labels, signal=margins, gain=self.gain)
        counted = isinstance(self.offset, str)
        offset = logit_offsets(torch.bincount(ages.labels), self.tau) if counted else self.offset
        return Balance(ages, margins, None, offset, self.recorder, self.margin_steps)

    def _check_trained(self, net: NeuralNet) -> None:
        """Raise ValueError if the history that was loaded is of another epoch than the ages."""
        trained = len(net.history) - 1  # without the epoch that begins
        saved = self.pending_.get("trained")
        if saved is not None and trained and saved != trained:
            raise ValueError(
                f"These ages were saved after {saved} epochs, the history after {trained}: the files are of different "
                "checkpoints."
            )

    def on_batch_begin(self, net: NeuralNet, batch: object = None, training: bool = False, **kwargs: object) -> None:
        """Weight a training batch, and let the criterion adjust its logits."""
        balance, ages = self._known()
        self.adjusts_ = training and (balance.margins is not None or balance.offset is not None)
        if training:
            balance.note_rate(getattr(net, "optimizer_", None))
            if balance.margin_steps is not None:
                self._watch(net)
        weighs = training and ages.epoch > 0 and self.rho > 0  # else the criterion's own mean, to the last bit
        if self.adjusts_ or weighs:
            self._attach(net)
        plain = _plain(net.criterion_)
        if plain is not net.criterion_:
            plain.train(training)  # skorch sets the mode of the copy
        if not weighs:
            return
        if self.level == "class":
            _, y = unpack_data(batch)
            self.weight_ = ages.class_weight[torch.as_tensor(y, device="cpu").long()]
            return
        samples = getattr(batch, "samples", None)
        if samples is None:
            raise ValueError(
                'level="sample" must know which samples are in a batch: give the net '
                "iterator_train=aol.plugins.skorch.IndexedLoader."
            )
        self.weight_ = ages.weight(samples)

    def on_batch_end(
        self, net: NeuralNet, batch: object = None, training: bool = False, y_pred: Output = None, **kwargs: object
    ) -> None:
        """Stop weighting and adjusting: other calls of the criterion are left alone.

        Record a validation batch; let margins observe a training batch, and move if it is their turn.
        """
        self.weight_, self.adjusts_ = None, False
        balance, ages = self._known()
        if training and balance.margin_steps is not None:
            self._unwatch()
            if y_pred is None:
                raise ValueError("margin_steps needs a net whose train_step returns y_pred, as that of skorch does.")
            balance.observe_step(_batch_labels(batch), _probabilities(net, y_pred))
            if self.stepped_:
                balance.end_step()
        if not training and y_pred is not None and balance.records.recorder is not None:
            label = _batch_labels(batch)
            known = label < ages.num_classes
            shares = _probabilities(net, y_pred)
            balance.records.test(label[known], log_probabilities(shares).cpu()[known, : ages.num_classes])

    def on_epoch_end(self, net: NeuralNet, dataset_train: Dataset[object] | None = None, **kwargs: object) -> None:
        """Evaluate the training set, and advance ages and margins."""
        balance, ages = self._known()
        balance.end_steps()
        margins = balance.margins if balance.margin_steps is None else None
        soft = margins is not None and margins.signal == "probability"
        known = soft or balance.records.recorder is not None
        shares = torch.as_tensor(net.predict_proba(dataset_train)) if known else None
        named = np.asarray(shares.argmax(1) if soft and shares is not None else net.predict(dataset_train))
        if named.shape != ages.labels.shape:
            raise TypeError(
                f"AgeOfLearning needs a net whose predict gives a class for each sample, {list(ages.labels.shape)}, "
                f"not {list(named.shape)}."
            )
        index, told = torch.arange(len(named)), torch.from_numpy(named.astype(np.int64))
        right = torch.from_numpy(named == ages.labels.numpy())
        balance._observe(index, right, shares if soft else told)
        if shares is not None:
            rank, processes = _distributed.world()
            own = slice(rank, None, processes)  # every process has all predictions, and records a share
            balance.note(index[own], shares[own, : ages.num_classes])
        balance.advance(sync=False)
        self.trained_ = len(net.history)
        balance.record()
        for name, value in balance.figures().items():
            net.history.record("class_age" if name == "age_oldest_class" else name, value)

    def on_train_end(self, net: NeuralNet, X: object = None, y: object = None, **kwargs: object) -> None:
        """Restore the criterion, and finish the record."""
        self._detach(net)
        if self.balance_ is not None:  # a training of no epochs has none
            self.balance_.records.end(finished=True)

    # Where weights and offsets enter

    def _attach(self, net: NeuralNet) -> None:
        """Let a copy of the criterion, with its parameters, weight and adjust: others may use the criterion itself."""
        if _plain(net.criterion_) is net.criterion_:
            weighting = copy.copy(net.criterion_)
            weighting.forward = partial(self._loss, net.criterion_)
            net.criterion_ = weighting

    def _detach(self, net: NeuralNet) -> None:
        net.criterion_ = _plain(net.criterion_)
        self.weight_, self.adjusts_ = None, False
        self._unwatch()

    # Steps of the optimiser, which are fewer than batches where a train_step accumulates gradients

    def _watch(self, net: NeuralNet) -> None:
        """Note whether the optimiser makes a step in this batch; where it cannot say so, every batch is one."""
        self._unwatch()
        given = getattr(net, "optimizer_", None)
        optimizer = getattr(given, "optimizer", given)  # that of Accelerate has one within
        self.stepped_ = not isinstance(optimizer, torch.optim.Optimizer)
        if isinstance(optimizer, torch.optim.Optimizer):
            self.watch_ = optimizer.register_step_post_hook(self._note_step)

    def _note_step(self, *step: object) -> None:
        self.stepped_ = True

    def _unwatch(self) -> None:
        if self.watch_ is not None:
            self.watch_.remove()
            self.watch_ = None

    def _loss(self, criterion: nn.Module, output: Tensor, target: Tensor, *more: object, **named: object) -> Tensor:
        """Return the loss of a batch: adjusted and weighted in training."""
        if self.adjusts_:
            output = self._adjusted(criterion, output)
        if self.weight_ is None:
            return criterion.forward(output, target, *more, **named)
        with unreduced(criterion) as reduction:
            loss = criterion.forward(output, target, *more, **named)
        return _weighted(loss, self.weight_, reduction, _own_weight(criterion, target), several=self.several_)

    def _adjusted(self, criterion: nn.Module, output: Tensor) -> Tensor:
        """Return the output of a net for the loss: with offset and margins."""
        balance, _ = self._known()
        for offset in (balance.offset, None if balance.margins is None else balance.margins.offsets):
            output = output if offset is None else _moved_logits(criterion, output, offset)
        return output


def _plain(criterion: nn.Module) -> nn.Module:
    """Return the criterion of the net, of which `criterion` may be the copy that weights."""
    forward = vars(criterion).get("forward")
    if isinstance(forward, partial) and isinstance(getattr(forward.func, "__self__", None), AgeOfLearning):
        return forward.args[0]
    return criterion


def _moved_logits(criterion: nn.Module, output: Tensor, offset: Tensor) -> Tensor:
    """Return logits plus offset `[C]`: for one logit of two classes their difference, for log-probabilities renormed.

    >>> _moved_logits(nn.BCEWithLogitsLoss(), torch.zeros(1), torch.tensor([-1.0, 1.0]))
    tensor([2.])
    >>> _moved_logits(nn.NLLLoss(), torch.tensor([[0.5, 0.5]]).log(), torch.tensor([-1.0, 1.0])).exp()
    tensor([[0.1192, 0.8808]])
    """
    if output.dim() == 1 or output.shape[-1] == 1:
        if offset.numel() != 2:
            raise ValueError(f"offset must hold two numbers for a net with one logit, not {offset.numel()}.")
        return output + (offset[1] - offset[0]).to(output)
    missing = output.shape[-1] - offset.numel()
    if output.dim() != 2 or missing < 0:
        raise ValueError(f"The net must return logits of {offset.numel()} classes or more, not {list(output.shape)}.")
    moved = with_offset(output, nn.functional.pad(offset, (0, missing)))  # classes that have no samples
    return moved.log_softmax(-1) if isinstance(criterion, nn.NLLLoss) else moved


def _batch_labels(batch: object) -> Tensor:
    """Return the labels of a batch, `int64 [B]`, on the CPU."""
    return torch.as_tensor(unpack_data(batch)[1]).cpu().long()


def _probabilities(net: NeuralNet, y_pred: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Return the probabilities of classes, `[B, C]`, by the output of the module for a batch."""
    output = (y_pred[0] if isinstance(y_pred, tuple) else y_pred).detach()
    precise = torch.promote_types(output.dtype, torch.float32)  # half precision would round the sum
    return net._get_predict_nonlinearity()(output.to(precise))


def _weighted(
    loss: Tensor, weight: Tensor, reduction: str, own: Tensor | None = None, *, several: bool = False
) -> Tensor:
    """Return weighted losses, reduced as the criterion does; `own` are its own weights.

    `several`: the mean is over the batches of several processes, whose gradients are averaged. Collective.

    >>> _weighted(torch.tensor([1.0, 3.0]), torch.tensor([3.0, 1.0]), "mean")
    tensor(1.5000)
    """
    precise = torch.promote_types(loss.dtype, torch.float32)  # half precision would round the weights
    weight = _check.moved(weight, loss.device).to(precise)
    if loss.dim() == 0 or len(loss) != len(weight):
        raise ValueError(f"The criterion must give one loss for each of {len(weight)} samples, not {list(loss.shape)}.")
    if reduction == "none":
        return loss * (weight / weight.mean()).to(loss.dtype).view(-1, *[1] * (loss.dim() - 1))
    each = loss.flatten(1).mean(1) if loss.dim() > 1 else loss
    if reduction == "sum":
        return weighted_mean(each, weight, total=1.0)
    divisors = weight if own is None else weight * own
    return weighted_mean(each, weight, total=loss_total(divisors) if several else divisors.sum())


def _own_weight(criterion: nn.Module, target: Tensor) -> Tensor | None:
    """Return the label weights by which a criterion with its own weights divides, if it does."""
    if not isinstance(criterion, nn.NLLLoss | nn.CrossEntropyLoss) or target.is_floating_point():
        return None
    kept = (target != criterion.ignore_index).float()
    return kept if criterion.weight is None else kept * criterion.weight[target.clamp_min(0)]


def _labels(net: NeuralNet, dataset: Dataset[object] | None) -> npt.NDArray[np.int64]:
    """Return the label of each sample of a data set, from an attribute if there is one, else item by item."""
    try:
        y = data_from_dataset(dataset)[1]
    except AttributeError:
        y = None
    if y is None:
        accelerator = getattr(net, "accelerator", None)  # its batches are the share of this process
        parts = (torch.as_tensor(unpack_data(batch)[1]) for batch in net.get_iterator(dataset, training=False))
        y = torch.cat([part if accelerator is None else accelerator.gather_for_metrics(part) for part in parts])
    found = np.asarray(to_numpy(y))
    whole = found.astype(np.int64) if found.dtype.kind in "biuf" else None
    if found.ndim != 1 or whole is None or not np.array_equal(whole, found):
        raise TypeError(f"y must hold one class for each sample, 0 to C - 1, not {_check.shown(found)}.")
    return whole


def _num_classes(net: NeuralNet, dataset: Dataset[object] | None) -> int:
    """Return how many classes a net tells apart, by its output for the first samples; of one logit, two."""
    with torch.random.fork_rng(devices=[]):  # a loader draws a number
        output = next(net.forward_iter(dataset))
    output = output[0] if isinstance(output, tuple) else output
    return output.shape[-1] if output.dim() > 1 and output.shape[-1] > 1 else 2


class _IndexedBatch(tuple[object, ...]):
    """A batch with the indices of its samples."""

    samples: Tensor

    def __new__(cls, items: Sequence[object], samples: Tensor) -> Self:
        """Store the batch and the index of each sample."""
        batch = super().__new__(cls, items)
        batch.samples = samples
        return batch


class IndexedLoader(DataLoader[object]):
    """A `DataLoader` whose batches know the indices of their samples: `iterator_train` for sample level.

    >>> batch = next(iter(IndexedLoader([(0.5, 1), (0.25, 0)], batch_size=2)))
    >>> batch
    (tensor([0.5000, 0.2500], dtype=torch.float64), tensor([1, 0]))
    >>> batch.samples
    tensor([0, 1])
    """

    def __init__(
        self,
        dataset: Dataset[object],
        *,
        collate_fn: Callable[[list[object]], Sequence[object]] | None = None,
        **kwargs: object,
    ) -> None:
        collate = _Collate(collate_fn or default_collate)
        super().__init__(Indexed(dataset), collate_fn=collate, **kwargs)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[_IndexedBatch]:  # type: ignore[override]
        for items, samples in super().__iter__():
            yield _IndexedBatch(items, samples)


class _Collate:
    def __init__(self, collate_fn: Callable[[list[object]], Sequence[object]]) -> None:
        self.collate_fn = collate_fn

    def __call__(self, items: list[Sequence[object]]) -> tuple[Sequence[object], Tensor]:
        return self.collate_fn([item[:-1] for item in items]), torch.tensor([item[-1] for item in items])
