"""Class ages and margins in Avalanche: weights the loss, adjusts logits, evaluates a memory after each experience.

Needs a supervised strategy, for ages one whose criterion can return per-sample losses, and labels below the
`num_classes` of the states. The plug-in has its own seed and does not change the random numbers of a strategy.
"""

from __future__ import annotations

import inspect
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from aol import _check, _seeds
from aol._need import framework
from aol.ages import ClassAges
from aol.losses import weighted_mean
from aol.margins import Margins
from aol.plugins._records import Recording
from aol.plugins._training import Balance, answers, evaluating, unreduced
from aol.weights import ErrorRates

try:
    with framework("avalanche"):
        from avalanche.benchmarks.utils import AvalancheDataset
        from avalanche.core import SupervisedPlugin
        from avalanche.evaluation import PluginMetric
        from avalanche.evaluation.metric_results import MetricValue
        from avalanche.training.storage_policy import ExemplarsBuffer
        from avalanche.training.templates import SupervisedTemplate
except RuntimeError as error:  # what torchvision says when it was built for another PyTorch
    raise ImportError(
        f"Avalanche could not be imported: {error}. If this names torchvision, install torch and torchvision together, "
        "from one place, in versions that belong to each other."
    ) from error


class AgePlugin(SupervisedPlugin):
    r"""Weights the loss of a strategy by class ages, adjusts its logits by margins, and updates both.

    After training on an experience, its samples are added to the memory, the model is evaluated on the whole memory,
    and ages and margins advance. They are used in the next experience. The memory is not trained on, unless another
    plug-in replays it. With `margin_steps`, margins move within an experience instead.

    .. math:: L = \frac{\sum_{i \in B} w_{y_i} \ell(z_i + o, y_i)}{\sum_{i \in B} w_{y_i}}

    Args:
        ages: a `ClassAges`, or an `ErrorRates`, for all classes that will occur; or None. Where classes come one after
            another, give `ClassAges` a threshold that stays above zero, such as "positive-median".
        margins: an `aol.Margins` without `labels`, for all classes that will occur; or None.
        class_weight: static weights of classes, `[C]`, such as `aol.frequency_weight`; multiplies those from ages.
        offset: a static offset of the logits, `[C]`, such as `aol.logit_offsets`; or None.
        memory: one of Avalanche's buffers, to estimate accuracies on. The plug-in fills it, unless another plug-in of
            the strategy has the same buffer; that one must come first. None: accuracies are estimated on the current
            experience.
        every: evaluate the memory after every so many experiences; more than one for very small experiences.
        margin_steps: margins do not observe the memory, but each training batch, and move after every so many
            optimiser steps and after the last step of an experience (of `every` experiences). None: they observe the
            memory, and move when the ages advance.
        batch_size: of the evaluation; does not change the result.
        divide_by: "weight" or "count", as in `aol.weighted_mean`.
        seed: of the random draws that fill the memory.
        recorder: records what is examined, an epoch per examination, for `aol report`: a folder, a function from the
            ages to an `aol.Recorder`, or an `aol.Recorder` of these ages. Only ages can be recorded, not error rates.
            The folder is released after each call of `strategy.train`, and continued by the next.

    For ages and class weights, the criterion must have an attribute `reduction`, as those of PyTorch have, or be a
    function that takes it. Only the training loss is weighted and adjusted, not evaluation or calls by other plug-ins.

    Avalanche's checkpoints contain the plug-in.

    >>> from avalanche.benchmarks import benchmark_from_datasets
    >>> from avalanche.benchmarks.utils import as_classification_dataset
    >>> from avalanche.training import Naive
    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.eye(3).repeat(8, 1), torch.arange(3).repeat(8))
    >>> data.targets = data.tensors[1].tolist()
    >>> benchmark = benchmark_from_datasets(train=[as_classification_dataset(data)] * 2)
    >>> model = torch.nn.Linear(3, 3, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)  # answers 0 to everything, and learns nothing
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    >>> plugin = AgePlugin(ClassAges(3, rho=0.5, threshold=0.5))
    >>> strategy = Naive(model=model, optimizer=optimizer, plugins=[plugin], evaluator=None)
    >>> _ = strategy.train(benchmark.train_stream)
    >>> plugin.ages.age
    tensor([1, 3, 3], dtype=torch.int32)
    """

    def __init__(
        self,
        ages: ClassAges | ErrorRates | None = None,
        *,
        margins: Margins | None = None,
        class_weight: _check.Numbers | None = None,
        offset: _check.Numbers | None = None,
        memory: ExemplarsBuffer | None = None,
        every: int = 1,
        margin_steps: int | None = None,
        batch_size: int = 256,
        divide_by: str = "weight",
        seed: int = 0,
        recorder: Recording = None,
    ) -> None:
        super().__init__()
        if ages is not None and not isinstance(ages, ClassAges | ErrorRates):
            raise TypeError(f"ages must be an aol.ClassAges or an aol.ErrorRates, not {_check.shown(ages)}.")
        self._balance = Balance(ages, margins, class_weight, offset, recorder, margin_steps)
        if margins is not None and margins._labels is not None:
            raise ValueError("margins must be without labels: samples of a stream have no index.")
        if memory is not None and not isinstance(memory, ExemplarsBuffer):
            raise TypeError(
                "memory must be one of Avalanche's buffers (avalanche.training.storage_policy) or None, "
                f"not {_check.shown(memory)}."
            )
        self.ages, self.margins = ages, margins
        self.margin_steps = self._balance.margin_steps
        self.memory = memory
        self.every = _check.whole("every", every, 1)
        self.batch_size = _check.whole("batch_size", batch_size, 1)
        self.divide_by = _check.choice("divide_by", divide_by, ("weight", "count"))
        # States of generators, which pickle, in place of generators, which do not: checkpoints keep the whole plug-in.
        self._torch_draws = _seeds.generator(_seeds.seed(seed)).get_state()
        self._python_draws = random.Random(seed).getstate()
        self._experiences = 0
        self._weighed = 0
        self._plain: Callable[..., Tensor] | None = None

    @property
    def _weighs(self) -> bool:
        return self.ages is not None or self._balance.class_weight is not None

    # The weighted loss

    def before_training(self, strategy: SupervisedTemplate, **kwargs: object) -> None:
        """Check that the strategy can be weighted."""
        if sum(isinstance(each, AgePlugin) for each in strategy.plugins) > 1:
            raise ValueError("plugins must hold one AgePlugin at most: two would weight one loss twice.")
        self._restore(strategy)
        if self._weighs:
            _check_criterion(strategy._criterion)
        self._filler(strategy)
        self._balance.to(strategy.device)
        self._balance.begin()

    def after_training(self, strategy: SupervisedTemplate, **kwargs: object) -> None:
        """Release the record; the next training continues it."""
        self._balance.records.end(finished=True)

    def before_training_exp(self, strategy: SupervisedTemplate, **kwargs: object) -> None:
        """Reset the count of weighted losses."""
        self._weighed = 0

    def after_forward(self, strategy: SupervisedTemplate, **kwargs: object) -> None:
        """Install the weighted criterion for the next loss only, note the learning rate, and observe the batch."""
        self._balance.note_rate(strategy.optimizer)
        if self.margin_steps is not None:
            self._balance.observe_step(strategy.mb_y, answers(strategy.mb_output, strategy.mb_y)[1])
        if self._plain is None:
            self._plain = strategy._criterion
            strategy._criterion = partial(self._once, strategy)

    def before_backward(self, strategy: SupervisedTemplate, **kwargs: object) -> None:
        """Restore the strategy's own criterion if it was not called."""
        self._restore(strategy)

    def after_update(self, strategy: SupervisedTemplate, **kwargs: object) -> None:
        """Move margins, if it is their turn after this step of the optimiser."""
        if self.margin_steps is not None:
            self._balance.end_step()

    def before_eval(self, strategy: SupervisedTemplate, **kwargs: object) -> None:
        """Restore the strategy's own criterion if training was interrupted."""
        self._restore(strategy)

    def _restore(self, strategy: SupervisedTemplate) -> None:
        if self._plain is not None:
            strategy._criterion, self._plain = self._plain, None

    def _once(self, strategy: SupervisedTemplate, output: Tensor, label: Tensor) -> Tensor:
        self._restore(strategy)  # first: whoever asks next, or after an error, asks the strategy's own
        return self._weigh(strategy._criterion, output, label)

    def _weigh(self, criterion: Callable[..., Tensor], output: Tensor, label: Tensor) -> Tensor:
        output = self._balance.adjust(output, growing=True)
        if not self._weighs:
            self._weighed += 1
            return criterion(output, label)
        loss = _losses(criterion, output, label)
        if loss.shape != label.shape:
            raise ValueError(
                f"The criterion must give one loss a sample, {list(label.shape)}, when its reduction is 'none', "
                f"not {list(loss.shape)}."
            )
        weight = self._balance.weight(label)
        self._weighed += 1
        if getattr(criterion, "reduction", "mean") == "sum":
            return weighted_mean(loss, weight, total=1.0)
        own = getattr(criterion, "weight", None)  # class weights of the criterion's own are in its losses already
        if isinstance(own, Tensor) and self.divide_by == "weight":
            return weighted_mean(loss, weight, total=(weight * own[label]).sum())
        return weighted_mean(loss, weight, divide_by=self.divide_by)

    # Ageing

    def after_training_exp(self, strategy: SupervisedTemplate, **kwargs: object) -> None:
        """Fill the memory, evaluate the model on it, and advance ages and margins."""
        if not self._weighed and len(strategy.experience.dataset):
            warnings.warn(
                f"{type(strategy).__name__} asked its criterion for no loss between after_forward and before_backward "
                "in this experience: ages advance, but no loss is weighted.",
                stacklevel=2,
            )
        if self.memory is not None and self._filler(strategy) is None:
            with self._own_draws():
                _fill(self.memory, strategy)
        self._experiences += 1
        if self._balance.states and self._experiences % self.every == 0:
            self._balance.end_steps()
            if self._balance.by_pass:
                self._evaluate_memory(strategy, kwargs.get("num_workers", 0))
            self._balance.advance(sync=True)
            self._balance.record()

    def _filler(self, strategy: SupervisedTemplate) -> SupervisedPlugin | None:
        """Return the other plug-in that has the memory, or raise if it would fill it too late."""
        if self.memory is None:
            return None
        plugins = list(strategy.plugins)
        for place, other in enumerate(plugins):
            if other is not self and _holds(other, self.memory):
                if place > plugins.index(self):
                    raise ValueError(
                        f"plugins must have {type(other).__name__}, which fills the memory, before AgePlugin, "
                        "which examines it."
                    )
                return other
        return None

    def _evaluate_memory(self, strategy: SupervisedTemplate, num_workers: object) -> None:
        # The strategy's own forward pass: it knows about tasks, heads and whatever a subclass has made of it.
        data = strategy.experience.dataset if self.memory is None else self.memory.buffer
        before, states = strategy.mbatch, self._balance.by_pass
        grow = any(getattr(state, "grows", False) for state in states)
        try:
            with evaluating(strategy.model):
                for strategy.mbatch in self._batches(data, num_workers) if len(data) else ():
                    strategy._unpack_minibatch()
                    correct, shares = answers(strategy.forward(), strategy.mb_y)
                    absent = max(state.num_classes for state in states) - shares.shape[1]  # of a head that grows
                    shares = pad(shares, (0, max(0, absent) if grow else absent))
                    self._balance.observe(strategy.mb_y, correct, shares)
        finally:
            strategy.mbatch = before

    def _batches(self, data: AvalancheDataset, num_workers: object) -> torch.utils.data.DataLoader[list[Tensor]]:
        return torch.utils.data.DataLoader(
            data.eval(),  # the evaluation transforms
            batch_size=self.batch_size,
            num_workers=_check.whole("num_workers", num_workers, 0),
            collate_fn=getattr(data, "collate_fn", None),
            generator=torch.Generator(),  # a loader draws one number, even in order; not from the strategy's
        )

    @contextmanager
    def _own_draws(self) -> Iterator[None]:
        """Let Avalanche's buffers, which use the global generators, use the generator of this plug-in."""
        theirs, pythons = torch.get_rng_state(), random.getstate()
        torch.set_rng_state(self._torch_draws)
        random.setstate(self._python_draws)
        try:
            yield
        finally:
            self._torch_draws, self._python_draws = torch.get_rng_state(), random.getstate()
            torch.set_rng_state(theirs)
            random.setstate(pythons)


class AgeMetric(PluginMetric[dict[int, float]]):
    """The smoothed age of each class after each experience, for Avalanche's evaluator and its loggers.

    Also the mean, the oldest class, the threshold, the accuracy of the worst class, and the smallest and the largest
    margin. Finds the strategy's `AgePlugin`; without one it reports nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[int, float] = {}
        self._figures: dict[str, float] = {}

    def reset(self) -> None:
        """Forget the last values."""
        self._last, self._figures = {}, {}

    def result(self) -> dict[int, float]:
        """Return the last smoothed age of each class."""
        return dict(self._last)

    def after_training_exp(self, strategy: SupervisedTemplate) -> list[MetricValue]:
        """Report one value per class, and the figures of all."""
        for plugin in strategy.plugins:
            if isinstance(plugin, AgePlugin):
                self._figures = plugin._balance.figures()
                self._last = dict(enumerate(plugin.ages.ema.tolist())) if isinstance(plugin.ages, ClassAges) else {}
        values = {f"{self}/Class{label:03d}": age for label, age in self._last.items()}
        values |= {f"AoL/{name}": value for name, value in self._figures.items()}
        step = strategy.clock.train_iterations
        return [MetricValue(self, name, value, step) for name, value in values.items()]

    def __str__(self) -> str:
        return "Smoothed_Age"


def _holds(plugin: object, memory: ExemplarsBuffer) -> bool:
    return any(value is memory for value in getattr(plugin, "__dict__", {}).values())


def _check_criterion(criterion: object) -> None:
    """Raise TypeError unless a criterion can give the loss of each sample."""
    if not (_has_reduction(criterion) or (callable(criterion) and _takes_reduction(criterion))):
        raise TypeError(
            "The strategy's criterion must be able to give the loss of each sample: an object whose attribute "
            f"reduction is 'mean' or 'sum', or a function that takes reduction, not {_check.shown(criterion)}."
        )


def _has_reduction(criterion: object) -> bool:
    return callable(criterion) and getattr(criterion, "reduction", None) in ("mean", "sum")


def _takes_reduction(criterion: Callable[..., Tensor]) -> bool:
    try:
        return "reduction" in inspect.signature(criterion).parameters
    except (TypeError, ValueError):  # some compiled functions keep theirs to themselves
        return False


def _losses(criterion: Callable[..., Tensor], output: Tensor, label: Tensor) -> Tensor:
    """Return the loss of each sample, `[B]`."""
    _check_criterion(criterion)
    if not _has_reduction(criterion):
        return criterion(output, label, reduction="none")
    # On the object itself and not on a copy: some criteria learn about classes along the stream.
    with unreduced(criterion):  # type: ignore[arg-type]
        return criterion(output, label)


def _fill(memory: ExemplarsBuffer, strategy: SupervisedTemplate) -> None:
    """Offer the experience to the memory, in the old way to buffers that know no other."""
    if type(memory).update is not ExemplarsBuffer.update:
        memory.update(strategy)
    else:
        memory.post_adapt(strategy, strategy.experience)
