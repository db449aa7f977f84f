"""Shared by plug-ins for training loops: ages, margins and records behind one key, order and mode of a clean pass.

Uses PyTorch and the library, no framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad

from aol import _check, _distributed
from aol.ages import SampleAges
from aol.class_ages import ClassAges
from aol.losses import is_correct, with_offset
from aol.margins import Margins
from aol.plugins._records import Recording, Records
from aol.records.recorder import Figure
from aol.sampling import EpochSampler
from aol.weights import ErrorRates

Ages: TypeAlias = SampleAges | ClassAges | ErrorRates
Key: TypeAlias = Tensor  # what ages are kept of: positions of samples, or labels of classes


def check_ages(ages: object) -> Ages:
    """Return ages of a single run, or raise ValueError."""
    if not isinstance(ages, SampleAges | ClassAges | ErrorRates):
        raise TypeError(f"ages must be SampleAges, ClassAges or ErrorRates, not {_check.shown(ages)}.")
    if ages.rho.dim():
        raise ValueError(f"ages must be of one run: give them one number as rho, not {ages.rho.numel()}.")
    return ages


def check_margins(margins: object) -> Margins:
    """Return margins of a single run, or raise ValueError."""
    if not isinstance(margins, Margins):
        raise TypeError(f"margins must be an aol.Margins, not {_check.shown(margins)}.")
    if margins.offsets.dim() > 1:
        raise ValueError(f"margins must be of one run: give them one number as gain and rho, not {margins!r}.")
    return margins


def by_class(name: str, value: object) -> Tensor:
    """Return one number for each class, `float32 [C]`.

    >>> by_class("offset", [0.5, -0.5])
    tensor([ 0.5000, -0.5000])
    """
    found = _check.real(name, value).detach().to(torch.float32)
    if found.dim() != 1 or not bool(found.isfinite().all()):
        raise ValueError(f"{name} must hold one finite number for each class, [C], not {_check.shown(value)}.")
    return found


def settings(signal: str, every: int | None, divide_by: str) -> tuple[str, int | None, str]:
    """Return the checked common settings: signal, steps between two calls of `advance`, divisor."""
    return (
        _check.choice("signal", signal, ("pass", "training")),
        None if every is None else _check.whole("every", every, 1),
        _check.choice("divide_by", divide_by, ("weight", "count")),
    )


class InOrder(EpochSampler):
    """Every sample once, in the order of the data set, split among processes.

    >>> list(InOrder(5, seed=0, even=False, rank=1, world_size=2))
    [1, 3]
    """

    def _draw(self) -> Tensor:
        return torch.arange(self.num_samples, device="cpu")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode without gradients; afterwards restore the mode of each module.

    >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    >>> with evaluating(model):
    ...     print([part.training for part in model])
    [False, False]
    >>> [part.training for part in model]
    [True, False]
    """
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def unreduced(criterion: nn.Module) -> Iterator[str]:
    """Let a criterion return the loss of each sample; give its own reduction, and restore it afterwards.

    >>> criterion = nn.CrossEntropyLoss()
    >>> with unreduced(criterion) as reduction:
    ...     print(reduction, criterion(torch.zeros(3, 2), torch.tensor([0, 1, 1])).shape)
    mean torch.Size([3])
    """
    own = str(criterion.reduction)
    setattr(criterion, "reduction", "none")  # noqa: B010  what is said of modules does not know of it
    try:
        yield own
    finally:
        setattr(criterion, "reduction", own)  # noqa: B010


def answers(logits: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Return which samples are predicted right, bool `[B]`, and the probabilities of classes, `[B, C]`.

    >>> answers(torch.tensor([[2.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 1]))
    (tensor([ True, False]), tensor([[0.7311, 0.2689],
            [0.9526, 0.0474]]))
    """
    return is_correct(logits, label), logits.detach().float().softmax(-1)


def log_probabilities(shares: Tensor) -> Tensor:
    """Return the logarithms of probabilities, `float32 [B, C]`; that of zero is finite.

    >>> log_probabilities(torch.tensor([[0.5, 0.5, 0.0]]))
    tensor([[ -0.6931,  -0.6931, -87.3365]])
    """
    return shares.detach().float().clamp_min(torch.finfo(torch.float32).tiny).log()


class LearningRate:
    """The learning rate of the last optimiser step and the largest so far, for `Margins.advance`.

    >>> rate = LearningRate()
    >>> for lr in (0.1, 0.4, 0.2):
    ...     rate.note([{"lr": lr}])
    >>> rate.share
    0.5
    """

    def __init__(self) -> None:
        self.last = self.largest = 0.0

    def note(self, groups: Iterable[Mapping[str, object]]) -> None:
        """Record the largest learning rate of an optimiser's parameter groups."""
        self.last = max((float(group["lr"]) for group in groups), default=0.0)  # type: ignore[arg-type]
        self.largest = max(self.largest, self.last)

    @property
    def share(self) -> float:
        """The last rate divided by the largest; one without any."""
        return self.last / self.largest if self.largest > 0 else 1.0

    def state_dict(self) -> dict[str, object]:
        """Return both rates."""
        return {"last": self.last, "largest": self.largest}

    def load_state_dict(self, state: object) -> None:
        """Load both rates."""
        last, largest = (state.get(name) if isinstance(state, Mapping) else None for name in ("last", "largest"))
        if not isinstance(last, float) or not isinstance(largest, float):
            raise ValueError(f"This state is damaged: 'rate' must hold two learning rates, not {_check.shown(state)}.")
        self.last, self.largest = last, largest


class Balance:
    r"""What a training loop is balanced by: ages and class weights for losses, margins and an offset for logits.

    .. math:: w_i = w^{\text{age}}_i \, w^{\text{class}}_{y_i}, \qquad z \to z + o^{\text{margins}} + o

    The samples of a batch have one key: their index (or id), if ages or margins are kept by sample, otherwise their
    labels.

    Args:
        ages: of a single run, or None.
        margins: of a single run, or None.
        class_weight: static weights, `[C]`, or None.
        offset: static offset of the logits, `[C]`, or None.
        recorder: as in `Records`; of ages only.
        margin_steps: margins move after every so many optimiser steps, by the answers in training (`observe_step`);
            None: when `advance` is called, with the ages.

    >>> balance = Balance(None, Margins(2, signal="error"), [3.0, 1.0], [0.5, -0.5])
    >>> balance.weight(torch.tensor([0, 1]))
    tensor([3., 1.])
    >>> balance.adjust(torch.zeros(1, 2))
    tensor([[ 0.5000, -0.5000]])
    """

    def __init__(
        self,
        ages: object,
        margins: object,
        class_weight: object,
        offset: object,
        recorder: Recording = None,
        margin_steps: object = None,
    ) -> None:
        if ages is None and margins is None and class_weight is None and offset is None:
            raise TypeError("ages, margins, class_weight or offset must be given.")
        self.ages = None if ages is None else check_ages(ages)
        self.margins = None if margins is None else check_margins(margins)
        self.class_weight = None if class_weight is None else by_class("class_weight", class_weight)
        self.offset = None if offset is None else by_class("offset", offset)
        if margin_steps is not None and margins is None:
            raise ValueError("margin_steps needs margins: it says how often they move.")
        self.margin_steps = None if margin_steps is None else _check.whole("margin_steps", margin_steps, 1)
        self._steps, self._waiting = 0, False  # since margins moved: optimiser steps, and whether answers were observed
        self.rate, self.records = LearningRate(), Records(recorder)
        if recorder is not None and not isinstance(ages, SampleAges | ClassAges):
            raise ValueError("recorder needs ages: SampleAges or ClassAges, with rho=0 for weights of one.")
        self.comparing = True  # labels, in the first epoch of a training: each comparison synchronises a GPU
        self._own_devices = [state.device for state in self.states]
        labels = [each.labels for each in self.states if isinstance(each, SampleAges | Margins)]
        known = [each.cpu().to(torch.int64) for each in labels if each is not None]
        if len(known) == 2 and not torch.equal(*known):
            raise ValueError("margins must have the labels of ages: both are those of the training set.")

    # What is known

    @property
    def states(self) -> list[Ages | Margins]:
        """The states that observe answers."""
        return [each for each in (self.ages, self.margins) if each is not None]

    @property
    def by_pass(self) -> list[Ages | Margins]:
        """The states that observe a clean pass, or what is in its place: all but margins that move by steps."""
        return [each for each in self.states if each is not self.margins or self.margin_steps is None]

    @property
    def by_index(self) -> bool:
        """Whether the key of a sample is its index, not its id or label."""
        samples = self._of_samples()
        return samples is not None

    @property
    def by_sample(self) -> bool:
        """Whether the key of a sample is its index or its id, not its label."""
        return self._of_samples() is not None

    def _of_samples(self) -> SampleAges | Margins | None:
        if isinstance(self.ages, SampleAges):
            return self.ages
        return self.margins if self.margins is not None and self.margins.labels is not None else None

    def check_size(self, size: int) -> None:
        """Raise ValueError unless states of samples and data set have the same number of samples."""
        samples = self._of_samples()
        if samples is None or samples.labels is None:
            return
        if samples.labels.numel() != size:
            name = "ages" if samples is self.ages else "margins"
            raise ValueError(f"{name} must have the {size} samples of the training set, not {samples.labels.numel()}.")

    def _index(self, key: Key) -> Key:
        """Return the indices of samples with these keys."""
        return key

    def labels(self, key: Key) -> Tensor:
        """Return the labels of samples with these keys, `int64 [B]`."""
        samples = self._of_samples()
        if samples is None or samples.labels is None:
            return torch.as_tensor(key)
        index = _check.moved(_check.integers("key", self._index(key)), samples.labels.device)
        return samples.labels[index].to(torch.int64)

    def compare(self, key: Key, label: object) -> None:
        """In a first epoch, raise ValueError unless samples with these keys have these labels, `[B]`.

        Other labels show that the data are in another order than those of the states. Labels of another form, as of
        mixed samples, are not compared.
        """
        samples = self._of_samples()
        if not self.comparing or samples is None or samples.labels is None or not isinstance(label, Tensor):
            return
        if label.dim() == 1 and not label.is_floating_point():
            index = _check.integers("key", self._index(key), device=samples.labels.device)
            _check.same_labels(index, samples.labels, label)

    def check_key(self, key: Key, own: Key) -> None:
        """In a first epoch, raise ValueError if labels were given as the keys of a batch, which are `own`."""
        if not (self.comparing and self.by_index and isinstance(key, Tensor) and isinstance(own, Tensor)):
            return
        given, own = (_check.integers("key", each, device=self.states[0].device) for each in (key, own))
        if given.shape == own.shape and bool((given == self.labels(own)).all() & (given != own).any()):
            raise ValueError("key must be the index of each sample in the training set, and is its label here.")

    # What training asks for

    def weight(self, key: Key, *, aged: bool = True) -> Tensor:
        """Return the weights of samples, `float32 [B]`; `aged=False` leaves out those from ages."""
        found: Tensor | None = None
        if self.ages is not None and aged:
            found = self.ages.weight(self._key_of(self.ages, key))  # type: ignore[arg-type]
        if self.class_weight is not None:
            label = self.labels(key)
            fixed = _check.moved(self.class_weight, label.device)[label]
            found = fixed if found is None else found * _check.moved(fixed, found.device)
        if found is not None:
            return found
        return torch.ones(len(key), device=key.device if isinstance(key, Tensor) else None)

    def adjust(self, logits: Tensor, *, growing: bool = False) -> Tensor:
        """Return the logits for the training loss; a `growing` head may have fewer classes than there are offsets."""
        part = slice(logits.shape[-1] if growing else None)
        if self.margins is not None:
            few = growing and logits.shape[-1] < self.margins.num_classes
            logits = with_offset(logits, self.margins.offsets[part]) if few else self.margins.adjust(logits)
        return logits if self.offset is None else with_offset(logits, self.offset[part])

    # Observing

    def _key_of(self, state: Ages | Margins, key: Key) -> Key:
        """Return the key by which a state knows samples."""
        if isinstance(state, SampleAges):
            return key
        if isinstance(state, Margins) and state.labels is not None:
            return self._index(key)
        return self.labels(key)

    def parse_answer(self, key: Key, answer: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return which answers are right and, if known, what margins need: probabilities or predicted classes."""
        if not isinstance(answer, Tensor) or answer.is_floating_point() != (answer.dim() == 2):
            raise TypeError(
                "answers must be bool (right or wrong) or integers (classes), [B], or probabilities, [B, C], "
                f"not {_check.shown(answer)}."
            )
        if answer.dtype != torch.bool:
            named = answer.argmax(-1) if answer.is_floating_point() else answer
            return named == _check.moved(self.labels(key), answer.device), answer
        if self.margins is not None:
            raise TypeError("margins need probabilities, [B, C], or predicted classes, [B], not which are right.")
        return answer, None

    def observe(self, key: Key, correct: Tensor, answer: Tensor | None) -> None:
        """Observe which answers were right and, for margins, probabilities or predicted classes; record the former."""
        self._observe(key, correct, answer)  # first: it may add classes, which the record must know
        self.note(key, answer)

    def note(self, key: Key, answer: Tensor | None) -> None:
        """Record probabilities `[B, C]`, as their logarithms."""
        if self.records.recorder is not None and self.ages is not None and answer is not None and answer.dim() == 2:
            self.records.observe(self._key_of(self.ages, key), log_probabilities(answer))

    def _observe(self, key: Key, correct: Tensor, answer: Tensor | None) -> None:
        if self.ages is not None:
            self.ages.observe(self._key_of(self.ages, key), correct)  # type: ignore[arg-type]
        if self.margins is not None and self.margin_steps is None:
            assert answer is not None
            self.margins.observe(self._key_of(self.margins, key), answer)  # type: ignore[arg-type]

    def observe_together(self, key: Key, correct: Tensor, answer: Tensor | None) -> None:
        """Observe on every process what all processes saw in this step, in the order of ranks. Collective.

        So a state saved within an epoch is the same on all processes, and the later of two draws of a sample counts.
        """
        if _distributed.world()[1] == 1:
            self.observe(key, correct, answer)
            return
        for index, right, told in _of_all(key, correct, correct if answer is None else answer):
            self._observe(index, right, None if answer is None else told)
        self.note(key, answer)  # each process its own share

    def note_rate(self, *optimizers: object) -> None:
        """Note the learning rate of optimisers, if margins follow it or it is recorded."""
        if self.margins is not None or self.records.given is not None:
            self.rate.note(group for each in optimizers for group in getattr(each, "param_groups", ()))

    def observed(self) -> bool:
        """Return whether anything was observed since the last `advance`."""
        if isinstance(self.ages, SampleAges):
            return bool(self.ages.pending()[0].any())
        if self.ages is not None:
            return bool(self.ages.pending()[1].any())
        return self.margins is not None and bool(self.margins.pending()[0].any())

    def advance(self, *, sync: bool) -> None:
        """End an epoch or step of all states of passes; the gain of margins follows the learning rate."""
        if self.ages is not None:
            self.ages.advance(sync=sync)
        if self.margins is not None and self.margin_steps is None:
            self.margins.advance(scale=self.rate.share, sync=sync)
        self.comparing = False

    # Margins that move every few optimiser steps

    def observe_step(self, label: Tensor, shares: Tensor) -> None:
        """Let margins observe a training batch: probabilities `[B, C]` of logits that are not adjusted."""
        assert self.margins is not None
        absent = self.margins.num_classes - shares.shape[-1]  # of a head that grows
        if absent < 0:
            wanted = f"[B, {self.margins.num_classes}]"
            raise ValueError(f"logits must have the shape {wanted} of these margins, not {list(shares.shape)}.")
        self.margins.observe(label, pad(shares, (0, max(0, absent))))
        self._waiting = True

    def end_step(self) -> None:
        """Count an optimiser step; move margins if it is their turn. Collective."""
        self._steps += 1
        if self._steps == self.margin_steps:
            self.end_steps()

    def end_steps(self) -> None:
        """Move margins if there are answers by which they have not moved, and count steps anew. Collective."""
        waiting, self._steps, self._waiting = self._waiting, 0, False
        if waiting and self.margins is not None:
            self.margins.advance(scale=self.rate.share)

    # Records and logs

    def begin(self) -> None:
        """Begin a training: compare labels again, and open the record."""
        self.comparing = True
        self.records.begin(self.ages)

    def record(self) -> None:
        """Write the epoch that `advance` has just ended. Collective."""
        found: dict[str, Figure] = {"lr": self.rate.last} if self.rate.largest else {}
        if self.ages is not None and self.margins is not None and self.margins.num_classes == self.ages.num_classes:
            found["offset"] = self.margins.offsets
        self.records.advance(**found)

    def figures(self) -> dict[str, float]:
        """Return numbers for a logger: mean and largest class age, training accuracy of the worst class, margins.

        >>> balance = Balance(SampleAges([0, 0, 1]), None, None, None)
        >>> balance.observe(torch.tensor([0, 1, 2]), torch.tensor([True, False, False]), None)
        >>> balance.advance(sync=False)
        >>> balance.figures()
        {'age_mean': 1.75, 'age_oldest_class': 2.0, 'train_worst_class': 0.0}
        """
        ages, margins = self.ages, self.margins
        found: dict[str, float] = {}
        if isinstance(ages, SampleAges | ClassAges):
            age = ages.class_age if isinstance(ages, SampleAges) else ages.ema
            found |= {"age_mean": float(age.nanmean()), "age_oldest_class": float(age.nan_to_num(0.0).max())}
        if isinstance(ages, ClassAges):
            found["age_threshold"] = float(ages.threshold)
        if ages is not None:
            found["train_worst_class"] = float(_accuracy(ages).nan_to_num(torch.inf).min())
        if margins is not None and margins.num_classes:
            found |= {"margin_smallest": float(margins.offsets.min()), "margin_largest": float(margins.offsets.max())}
        return {name: value for name, value in found.items() if abs(value) < torch.inf}

    # State

    def state_dict(self) -> dict[str, object]:
        """Return all states, with pending observations."""
        found = {name: None if state is None else state.state_dict() for name, state in self._named()}
        return {**found, "rate": self.rate.state_dict()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Load all states, or none if one does not fit."""
        before = self.state_dict()
        for name, own in self._named():
            if own is None and state.get(name) is not None:
                raise ValueError(f"This state holds {name}, which were not given here.")
        try:
            self._load(state)
        except (ValueError, TypeError):
            self._load(before)
            raise

    def _load(self, state: Mapping[str, object]) -> None:
        for name, own in self._named():
            if own is not None:
                own.load_state_dict(state.get(name))  # type: ignore[arg-type]
        if self.margins is not None:
            self.rate.load_state_dict(state.get("rate"))

    def _named(self) -> list[tuple[str, Ages | Margins | None]]:
        return [("ages", self.ages), ("margins", self.margins)]

    def to(self, device: torch.device) -> None:
        """Move everything to a device."""
        for state in self.states:
            state.to(device)
        for name in ("class_weight", "offset"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value.to(device))

    def move_back(self) -> None:
        """Move states to where they came from."""
        for state, device in zip(self.states, self._own_devices, strict=True):
            state.to(device)


def _of_all(key: Key, correct: Tensor, answer: Tensor) -> list[tuple[Key, Tensor, Tensor]]:
    """Return the keys and answers of all processes, in the order of ranks."""
    if isinstance(key, Tensor):
        lengths = torch.stack(_distributed.gather(torch.tensor(key.numel(), device=key.device))).tolist()
        shared = _distributed.gather_lists((key, correct.to(key.device), answer.to(key.device)), lengths)
        return [(index, right, each) for index, right, each in shared]
    told: list[tuple[Key, Tensor, Tensor] | None] = [None] * _distributed.world()[1]
    dist.all_gather_object(told, (key, correct.cpu(), answer.cpu()))
    return [each for each in told if each is not None]


def _accuracy(ages: Ages) -> Tensor:
    """Return the accuracy of each class when it was last observed, `[C]`; NaN if never."""
    if isinstance(ages, ClassAges):
        return ages.accuracy
    if isinstance(ages, ErrorRates):
        return 1 - ages.error_rate
    seen, label = ~ages.ema.isnan(), ages.labels
    right = seen & (ages.age == 1)
    of_class = (torch.bincount(label[some], minlength=ages.num_classes) for some in (right, seen))
    return torch.div(*of_class)
