"""What the common checks run over: every state, sampler, stream and memory of the library, each in its variants.

A subject is made from a seed, does numbered pieces of work (each the same whenever it has that number), and can be
looked at: a list of everything that can be seen of it from outside.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

import aol
from tests.support.bad_calls import (
    BAD_CLASS_CALLS,
    BAD_CLASS_RUN_CALLS,
    BAD_MARGIN_RUN_CALLS,
    BAD_MARGIN_SINGLE_CALLS,
    BAD_MEMORY_CALLS,
    BAD_RUN_CALLS,
    BAD_SAMPLE_CALLS,
    BAD_SAMPLER_CALLS,
    BAD_STREAM_CALLS,
)

LABELS = [0, 1, 1, 2, 2, 2, 2]


@dataclass(frozen=True)
class Subject:
    """One kind of object, in one variant."""

    make: Callable[[int], object]
    work: Callable[[object, int], None]
    look: Callable[[object], list]
    others: tuple[Callable[[], object], ...]  # near relatives, whose states it must refuse
    seeded: bool = False
    grows: bool = False  # by its nature
    starts_over: bool = False  # a pass that is broken off, unless its state is loaded
    bad_calls: tuple = field(default=())  # (call, error, name of the argument)


def seen_of_state(*names: str) -> Callable[[object], list]:
    def look(state) -> list:
        tensors = [getattr(state, name) for name in names]
        kept = [value for _, value in sorted(state.state_dict().items())]
        return [state.epoch, *tensors, *kept]

    return look


def work_on(keys: int, runs: int | None, own: bool, answers: int = 2):
    """Observe answers, right or wrong, or one of several classes; every other piece of work leaves an epoch open."""

    def work(state, number: int) -> None:
        generator = torch.Generator().manual_seed(1000 + number)
        key = torch.randint(0, keys, (runs, 5) if own else (5,), generator=generator)
        answer = torch.randint(0, answers, (5,) if runs is None else (runs, 5), generator=generator)
        state.observe(key, answer == 0 if answers == 2 else answer)
        if number % 2:
            state.advance()

    return work


def samples(runs: int | None = None, own: bool = False, **more) -> Subject:
    def near(labels=LABELS, **changed):
        return lambda: aol.SampleAges(labels, **{"rho": 0.3, **more, **changed})

    return Subject(
        make=lambda seed: aol.SampleAges(LABELS, **{"rho": 0.3, **more}),
        work=work_on(7, runs, own),
        look=seen_of_state("age", "ema", "class_age", "class_weight", "sample_weight", "weights", "rho"),
        others=(
            near(labels=[*LABELS, 0]),
            near(labels=LABELS[::-1]),
            near(num_classes=9),
            near(rho=0.31),
            near(rho=[0.3] * 4),
            near(fuse="peak" if more.get("fuse") != "peak" else "ema"),
            near(absent="grow" if more.get("absent") != "grow" else "keep"),
        ),
        bad_calls=BAD_SAMPLE_CALLS if runs is None else BAD_RUN_CALLS,
    )


def in_the_middle(accuracy: torch.Tensor) -> float:
    """A threshold function that can be pickled."""
    return 0.5


def classes(kind, names: tuple[str, ...], runs: int | None = None, own: bool = False, **more) -> Subject:
    others = [lambda: kind(4, **more), lambda: kind(3, rho=0.77), lambda: kind(3, rho=[0.1] * 5)]
    if kind is aol.ClassAges:
        others.append(lambda: kind(3, **{**more, "threshold": 0.123}))
    return Subject(
        make=lambda seed: kind(3, **more),
        work=work_on(3, runs, own),
        look=seen_of_state(*names),
        others=tuple(others),
        bad_calls=BAD_CLASS_CALLS if runs is None else BAD_CLASS_RUN_CALLS,
    )


def margins(runs: int | None = None, own: bool = False, **more) -> Subject:
    settings = {"signal": "age", "gain": 0.1 if runs is None else [0.1, 0.3], "rho": 0.3, "width": 0.1, **more}

    def near(num_classes=3, **changed):
        return lambda: aol.Margins(num_classes, **{**settings, **changed})

    return Subject(
        make=lambda seed: aol.Margins(3, **settings),
        work=work_on(7 if "labels" in more else 3, runs, own, answers=3),
        look=seen_of_state("offsets", "missed", "claimed", "rho"),
        others=(
            near(num_classes=4),
            near(gain=0.7),
            near(gain=[0.1] * 5),
            near(rho=0.31),
            near(width=0.2),
            near(labels=LABELS[::-1]),
            near(signal="error" if settings["signal"] == "age" else "age"),
        ),
        bad_calls=BAD_MARGIN_SINGLE_CALLS if runs is None else BAD_MARGIN_RUN_CALLS,
    )


# Samplers, streams and memories


def goes_on_like(thing) -> list:
    """What is left of the pass under way, and the next one: seen through a twin, so that nothing moves."""
    twin = CLEAN[type(thing).__name__](thing)
    twin.load_state_dict(thing.state_dict())
    return [_plain(twin), _plain(twin)]


def _plain(things) -> list:
    return [each.tolist() if isinstance(each, torch.Tensor) else each for each in things]


CLEAN = {
    "ShuffledSampler": lambda s: aol.ShuffledSampler(s.num_samples, seed=s.seed),
    "AgeSampler": lambda s: aol.AgeSampler(s._given, num_samples=s.num_samples, seed=s.seed),
    "WeightedSampler": lambda s: aol.WeightedSampler(s._given, num_samples=s.num_samples, seed=s.seed),
    "LimitedAccess": lambda s: aol.LimitedAccess(s._labels, s.fraction, steps=s.steps, seed=s.seed),
    "Arrivals": lambda s: aol.Arrivals(s._labels, s.fraction, steps=s.steps, seed=s.seed),
    "ShiftingTail": lambda s: aol.ShiftingTail(s._labels, s.imbalance, period=s.period, steps=s.steps, seed=s.seed),
}


def take_some(thing, number: int) -> None:
    """Passes broken off after a few, and whole ones."""
    for _ in itertools.islice(iter(thing), None if number % 2 else 3):
        pass


def look_at_passes(thing) -> list:
    state = thing.state_dict()
    return [state[key] for key in sorted(state)] + goes_on_like(thing)


def aged() -> aol.SampleAges:
    ages = aol.SampleAges(LABELS, rho=0.5, level="sample")
    ages.observe(range(7), [i % 2 == 0 for i in range(7)])
    ages.advance()
    return ages


def passes(make, *others, bad=()) -> Subject:
    return Subject(
        make=make, work=take_some, look=look_at_passes, others=others, seeded=True, starts_over=True, bad_calls=bad
    )


def remember(memory, number: int) -> None:
    memory.add(torch.arange(number * 5, number * 5 + 5))


CLASS_LOOK = ("age", "ema", "class_weight", "accuracy", "threshold", "rho")
RATE_LOOK = ("error_rate", "class_weight", "rho")
POOL = [i % 3 for i in range(30)]

SUBJECTS: dict[str, Subject] = {
    "SampleAges": samples(),
    "SampleAges-peak": samples(fuse="peak", absent="grow", level="sample"),
    "SampleAges-runs": samples(2, rho=[0.3, 0.0]),
    "SampleAges-own-runs": samples(2, own=True, rho=[0.3, 1.0], level="sample"),
    "ClassAges": classes(aol.ClassAges, CLASS_LOOK),
    "ClassAges-function": classes(aol.ClassAges, CLASS_LOOK, threshold=in_the_middle),
    "ClassAges-runs": classes(aol.ClassAges, CLASS_LOOK, 2, own=True, rho=[0.1, 0.5], threshold=["mean", 0.4]),
    "ErrorRates": classes(aol.ErrorRates, RATE_LOOK),
    "ErrorRates-runs": classes(aol.ErrorRates, RATE_LOOK, 2, rho=[0.3, 1.0]),
    "Margins": margins(),
    "Margins-samples": margins(labels=LABELS),
    "Margins-probability": margins(signal="probability"),
    "Margins-runs": margins(2, signal="error"),
    "Margins-samples-own-runs": margins(2, own=True, labels=LABELS),
    "ShuffledSampler": passes(
        lambda seed: aol.ShuffledSampler(11, seed=seed),
        lambda: aol.ShuffledSampler(12),
        lambda: aol.ShuffledSampler(11, seed=99),
        lambda: aol.AgeSampler(aged(), num_samples=11),
        bad=BAD_SAMPLER_CALLS,
    ),
    "AgeSampler": passes(
        lambda seed: aol.AgeSampler(aged(), num_samples=9, seed=seed),
        lambda: aol.AgeSampler(aged()),
        lambda: aol.AgeSampler(aged(), num_samples=9, seed=99),
        lambda: aol.ShuffledSampler(9),
        bad=BAD_SAMPLER_CALLS,
    ),
    "WeightedSampler": passes(
        lambda seed: aol.WeightedSampler([3.0, 0.0, 1.0, 0.5], num_samples=9, seed=seed),
        lambda: aol.WeightedSampler([3.0, 0.0, 1.0, 0.5]),
        lambda: aol.WeightedSampler([3.0, 0.0, 1.0, 0.5], num_samples=9, seed=99),
        lambda: aol.AgeSampler(aged(), num_samples=9),
        bad=BAD_SAMPLER_CALLS,
    ),
    "LimitedAccess": passes(
        lambda seed: aol.LimitedAccess(POOL, 0.3, steps=6, seed=seed),
        lambda: aol.LimitedAccess(POOL, 0.4, steps=6),
        lambda: aol.LimitedAccess(POOL, 0.3, steps=5),
        lambda: aol.LimitedAccess([*POOL, 0], 0.3, steps=6),
        lambda: aol.Arrivals(POOL, 0.3, steps=6),
        bad=BAD_STREAM_CALLS,
    ),
    "Arrivals": passes(
        lambda seed: aol.Arrivals(POOL, 0.1, steps=6, seed=seed),
        lambda: aol.Arrivals(POOL, 0.1, steps=6, seed=99),
        lambda: aol.LimitedAccess(POOL, 0.1, steps=6),
        bad=BAD_STREAM_CALLS,
    ),
    "ShiftingTail": passes(
        lambda seed: aol.ShiftingTail(POOL, 4, period=2, steps=6, seed=seed),
        lambda: aol.ShiftingTail(POOL, 5, period=2, steps=6),
        lambda: aol.ShiftingTail(POOL, 4, period=3, steps=6),
        lambda: aol.ShiftingTail(POOL[::-1], 4, period=2, steps=6),
        bad=BAD_STREAM_CALLS,
    ),
    "KeepAll": Subject(
        make=lambda seed: aol.KeepAll(),
        work=remember,
        look=lambda m: [m.indices, len(m)],
        others=(lambda: aol.Reservoir(8),),
        grows=True,
        bad_calls=BAD_MEMORY_CALLS,
    ),
    "Reservoir": Subject(
        make=lambda seed: aol.Reservoir(8, seed=seed),
        work=remember,
        look=lambda m: [m.indices, len(m), m.seen, m.state_dict()["generator"]],
        others=(lambda: aol.KeepAll(), lambda: aol.Reservoir(9), lambda: aol.Reservoir(8, seed=99)),
        seeded=True,
        bad_calls=BAD_MEMORY_CALLS,
    ),
}
