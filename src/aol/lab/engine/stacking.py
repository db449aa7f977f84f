"""How several runs become one network: on a GPU, training steps of each way are timed once.

Results of a run do not depend on it, except for rounding.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from aol.lab import nets
from aol.lab.engine.capture import Captured
from aol.lab.engine.learner import Learner, make_network
from aol.lab.nets import fused
from aol.lab.nets.by_run import options_of
from aol.lab.settings import Settings

ALONE = "alone"  # one run after the other
CHOICES = ("auto", *nets.STACKINGS, ALONE)
_MOST = 16  # runs in a measurement
_SHORT = 10.0  # seconds of training that are worth a measurement
# Of 16 runs of three networks on an H200 (benchmarks/README.md): compiling took 54 to 90 s, and made a step 21, 47 and
# 63 % shorter than the best way without it.
_COMPILING, _SAVING = 90.0, 0.4
_REPLAYS, _RATE = 10, 1e-3


@dataclass(frozen=True)
class Choice:
    """A way to train several runs: one of `nets.STACKINGS`, or "alone" and why; ms of a run's step by way, if timed."""

    stacking: str
    reason: str | None = None
    timed: Mapping[str, float] = field(default_factory=dict)

    @property
    def gain(self) -> float | None:
        """How many times as fast as one run after the other a step was."""
        return self.timed[ALONE] / self.timed[self.stacking] if self.timed else None


@dataclass(frozen=True)
class Case:
    """What a choice depends on: a run, the shape of its images, classes, device, and the images of an epoch."""

    run: Settings
    shape: tuple[int, int, int]
    num_classes: int
    device: torch.device
    samples: int

    def seconds(self, number: int, milliseconds: float) -> float:
        """Return how long the training steps of so many runs take."""
        return number * self.run.epochs * -(-self.samples // self.run.batch_size) * milliseconds / 1e3

    def network(self) -> nets.Network:
        """Return a network of the run."""
        return make_network(self.run, self.num_classes, self.shape)


_CHOSEN: dict[object, Choice] = {}


def choose(case: Case, number: int, wanted: str = "auto") -> Choice:
    """Return how to train `number` such runs; the same answer for the same question in this process.

    A CPU stacks by groups or not at all. On a GPU, "auto" takes aol's kernels where they apply, else what is quickest.
    That is a measurement, so another process may choose otherwise. Nothing is measured for a short training, nor with
    deterministic algorithms: only groups are taken then. What compiles is tried where it is expected to save more time
    than compiling takes. A way whose first steps are not those of a single run is not taken.
    """
    if number == 1 or wanted == ALONE:
        return Choice(ALONE)
    number = min(_MOST, 1 << (number.bit_length() - 1))
    s = case.run
    key = (
        (s.net, s.batch_size, s.epochs, s.optimiser, s.average, s.precision),
        (case.shape, case.num_classes, case.device, case.samples),
        (number, wanted),
    )
    if key not in _CHOSEN:
        _CHOSEN[key] = _choose(case, number, wanted)
    return _CHOSEN[key]


def stacking_of_group(case: Case, number: int, wanted: str = "auto") -> str:
    """Return which of `nets.STACKINGS` trains a group that exists already, also where `choose` says "alone".

    The quickest where ways were timed, else the first that the network allows.
    """
    chosen = choose(case, number, wanted)
    if chosen.stacking != ALONE:
        return chosen.stacking
    timed = {each: taken for each, taken in chosen.timed.items() if each != ALONE}
    if timed:
        return min(timed, key=timed.__getitem__)
    net = case.network()
    return next((each for each in nets.STACKINGS if _obstacle(net, each, case) is None), "grouped")


def _choose(case: Case, number: int, wanted: str) -> Choice:
    net = case.network()
    if case.device.type != "cuda" and wanted == "auto":
        wanted = "grouped"
    if wanted == "auto" and _has_kernels(net, case):
        return Choice("grouped")
    reasons = {each: _obstacle(net, each, case) for each in (nets.STACKINGS if wanted == "auto" else (wanted,))}
    possible = [each for each, reason in reasons.items() if reason is None]
    if not possible:
        return Choice(ALONE, next(iter(reasons.values())))
    if wanted != "auto":
        return Choice(wanted)
    untimed = Choice("grouped") if "grouped" in possible else Choice(ALONE, "that is not timed for so short a training")
    if torch.are_deterministic_algorithms_enabled():
        return replace(untimed, reason=untimed.reason and "nothing is timed with deterministic algorithms")
    alone, wanted_losses = _steps(case, 1, "grouped")
    timed = {ALONE: alone}
    if case.seconds(number, timed[ALONE]) < _SHORT:
        return untimed
    for each in possible:
        saved = _SAVING * case.seconds(number, min(timed.values()))
        if each.startswith("compiled") and saved <= 2 * _COMPILING:  # once to time it, and once to train
            continue
        try:
            taken, losses = _steps(case, number, each)
        except RuntimeError:  # too little memory, or nothing that a graph can hold
            continue
        finally:
            _tidy()
        if _same(losses, wanted_losses):
            timed[each] = taken
        else:
            warnings.warn(f"stacking={each!r} is not used: its first steps are not those of a single run", stacklevel=2)
    best = min(timed, key=timed.__getitem__)
    return Choice(best, "that is quicker here" if best == ALONE else None, timed)


def _has_kernels(net: nets.Network, case: Case) -> bool:
    if case.run.precision != "bf16" or not nets.can_stack(net):
        return False
    return fused.can_fuse(nets.stack([net]).to(case.device), case.shape[1:])


def _obstacle(net: nets.Network, stacking: str, case: Case) -> str | None:
    if stacking == "grouped":
        return nets.obstacle(net)
    images = torch.rand((2, *case.shape), generator=torch.Generator().manual_seed(0)).to(case.device)
    return nets.obstacle_by_run(net.to(case.device), images, **options_of(stacking))


def training_step(case: Case, number: int, stacking: str) -> tuple[Captured, Tensor]:
    """Return a training step of so many runs on random images, and the tensor for its losses [R]."""
    runs = [replace(case.run, seed=seed) for seed in range(number)]
    device, batch = case.device, case.run.batch_size
    learner = Learner(runs, num_classes=case.num_classes, shape=case.shape, device=device, stacking=stacking)
    generator = torch.Generator().manual_seed(0)  # every run gets the images of a single one
    images = torch.rand((1, batch, *case.shape), generator=generator).expand(number, -1, -1, -1, -1).to(device)
    label = torch.randint(case.num_classes, (1, batch), generator=generator).expand(number, -1).to(device)
    weight, rate = torch.ones((number, batch), device=device), torch.full((), _RATE, device=device)
    losses = torch.zeros(number, device=device)

    def work() -> None:
        losses.copy_(learner.step(images, label, weight, rate)[0])

    return Captured(work, device=device, touched=lambda: (losses, *learner.tensors())), losses


def milliseconds(step: Captured, device: torch.device) -> float:
    """Return how long a step takes, on average; it was called before."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(_REPLAYS):
        step()
    _wait(device)
    return (time.perf_counter() - start) / _REPLAYS * 1e3


def _steps(case: Case, number: int, stacking: str) -> tuple[float, Tensor]:
    """Return the milliseconds of a training step, divided by the number of runs, and the losses [R] after some."""
    step, losses = training_step(case, number, stacking)
    step()
    return milliseconds(step, case.device) / number, losses.cpu()


def _same(losses: Tensor, alone: Tensor) -> bool:
    """Return whether all losses are finite where a single run's is, and that of the same run is near it."""
    if not alone.isfinite().all():
        return True
    return bool(losses.isfinite().all() and (losses[0] - alone[0]).abs() <= 0.05 + 0.05 * alone[0].abs())


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _tidy() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
