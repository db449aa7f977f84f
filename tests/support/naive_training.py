"""Training as the protocol tells it, in plain Python, one run and one sample at a time.

Only draws (long tails, streams, orders, reservoirs) and initial networks are taken from the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean, median

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

import aol
from aol import _seeds
from aol.lab.data.images import ImageSet, Pair, split_per_class
from aol.lab.engine.source import mixtures
from aol.lab.nets.registry import make
from aol.lab.settings import Settings
from aol.longtail import long_tail
from aol.memory import Reservoir
from aol.streams import Arrivals, LimitedAccess, ShiftingTail
from tests.support.margin_oracle import MarginOracle

Draw = Callable[[list[float]], list[int]]


@dataclass
class Told:
    """What the naive run saw, epoch by epoch."""

    rate: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    age: list[list[int]] = field(default_factory=list)
    class_age: list[list[float]] = field(default_factory=list)
    smoothed_age: list[list[float]] = field(default_factory=list)
    weight: list[list[float]] = field(default_factory=list)
    train: list[list[float]] = field(default_factory=list)
    test: list[float] = field(default_factory=list)
    test_age: list[list[int]] = field(default_factory=list)
    threshold: list[float] = field(default_factory=list)
    offset: list[list[float]] = field(default_factory=list)


def one_mean(values: list[float]) -> list[float]:
    known = [v for v in values if v == v]
    middle = mean(known) if known else math.nan
    return [v / middle if v == v and middle else 1.0 for v in values]


def loss_of(z: Tensor, y: int, run: Settings) -> Tensor:
    if run.loss == "softmax":
        return z.logsumexp(0) - z[y]
    p = 1 / (1 + (-z).exp())
    gamma = run.gamma if run.loss == "focal" else 0.0
    parts = [
        -((1 - p[k]) ** gamma) * p[k].log() if k == y else -(p[k] ** gamma) * (1 - p[k]).log() for k in range(len(z))
    ]
    return torch.stack(parts).sum()


def rate_of(run: Settings, step: int, steps: int) -> float:
    epoch = step // steps + 1
    if run.scenario == "stream" and run.schedule == "fixed":
        return run.lr
    warm, epochs = round(run.warmup * steps), run.epochs - run.retrain
    if epoch > epochs:
        return run.lr * (1 + math.cos(math.pi * (step - epochs * steps) / (run.retrain * steps))) / 2
    if step < warm:
        return run.lr * (step + 1) / warm
    if run.schedule == "cosine":
        whole, done = epochs * steps - warm, step - warm
        return run.lr * (1 + math.cos(math.pi * done / whole)) / 2
    if run.schedule == "paper":
        return run.lr * (1e-4 if epoch >= 0.9 * epochs else 1e-2 if epoch >= 0.8 * epochs else 1.0)
    return run.lr


class Naive:
    """One run."""

    def __init__(self, run: Settings, pair: Pair[ImageSet], draw: Draw | None = None) -> None:
        self.run, self.pair, self.draw, self.told = run, pair, draw, Told()
        self.classes = pair.num_classes
        self.net = make("cnn", num_classes=self.classes, in_channels=1, image_size=8, seed=run.seed)
        if run.loss != "softmax":
            self.net.head.bias.data.fill_(-math.log(self.classes - 1))  # type: ignore[union-attr, operator]
        self.speed: dict[str, Tensor] = {}
        labels = pair.train.labels
        kept = torch.arange(labels.numel())
        if run.validation:
            kept, self.held = split_per_class(labels, run.validation, seed=run.seed)
        if run.imbalance and not (run.scenario == "stream" and run.stream == "shifting"):
            kept = kept[long_tail(labels[kept], run.imbalance, seed=run.seed)]
        self.pool = sorted(kept.tolist(), key=lambda i: int(labels[i]))
        self.labels = [int(labels[i]) for i in self.pool]
        self.count = [self.labels.count(c) for c in range(self.classes)]
        size = len(self.pool)
        self.age, self.ema = [1] * size, [math.nan] * size
        self.past: list[list[int]] = [[] for _ in range(size)]  # every age of each sample
        self.answers: list[dict[int, bool]] = [{} for _ in range(size)]  # by epoch, from one
        self.last_loss = [math.nan] * size
        self.class_ages, self.class_ema = [1] * self.classes, [math.nan] * self.classes
        self.error = [math.nan] * self.classes
        self.test_ages = [1] * len(pair.test)
        self.offset = [0.0] * self.classes
        self.counted = [0.0] * self.classes
        self.control = None
        self.module: aol.LogitAdjustedLoss | aol.MarginLoss | aol.AgeWeightedLoss | None = None
        if run.margin == "counts-seen" and run.mixup:
            self.module = aol.LogitAdjustedLoss(self.classes, tau=run.tau, memory=run.margin_memory)
        elif run.margin == "probability-seen":
            self.module = aol.MarginLoss(self.classes, tau=run.tau, every=run.margin_steps or 0)
        elif run.weighting == "aol-seen":
            self.module = aol.AgeWeightedLoss(self.classes, rho=run.rho)
        self.shown_in_window: list[tuple[int, int | list[float], int]] = []
        if run.margin in ("age", "error", "probability"):
            self.control = MarginOracle(
                self.classes, labels=None if run.scenario == "stream" else self.labels, signal=run.margin,
                gain=run.gain, rho=0.3, width=1.0, limit=5.0, floor=0.02, tau=run.tau,
            )  # fmt: skip

    # One step, one look

    def images(self, source: ImageSet, places: list[int]) -> Tensor:
        n = self.pair.normalisation if self.run.normalisation == "centred" else self.pair.standardised
        return torch.stack([source.images[i].float() * n.scale[0] + n.shift[0] for i in places])

    def answers_of(self, logits: Tensor) -> list[int | list[float]]:
        """What margins are shown: the probability of each class, or the predicted class."""
        if self.run.margin == "probability":
            return logits.detach().double().softmax(1).tolist()  # type: ignore[no-any-return]
        return [int(z.argmax()) for z in logits]

    def right(self, source: ImageSet, places: list[int], state: dict[str, Tensor] | None = None) -> list[bool]:
        self.net.eval()
        with torch.no_grad():
            logits = functional_call(self.net, state or dict(self.net.state_dict()), (self.images(source, places),))
        self.named = self.answers_of(logits)
        self.losses = [float(z.logsumexp(0) - z[source.labels[i]]) for z, i in zip(logits, places, strict=True)]
        return [int(z.argmax()) == int(source.labels[i]) for z, i in zip(logits, places, strict=True)]

    def learn(self, order: list[int], weights: list[float]) -> list[bool]:
        """Train on positions of the pool in this order; return the answers given while training."""
        run, answers, losses = self.run, [], []
        self.named = []
        steps = math.ceil(len(order) / run.batch_size)
        again = len(self.told.rate) >= run.epochs - run.retrain  # the head alone is trained
        if len(self.told.rate) == run.epochs - run.retrain:
            self.speed = {}
        mixes = run.mixup > 0 and not again
        if mixes:
            real = torch.ones(len(order), dtype=torch.bool)
            partner, shares = mixtures([run], real, run.batch_size, len(self.told.rate))
        for step in range(steps):
            start = step * run.batch_size
            part = order[start : start + run.batch_size]
            rate = rate_of(run, len(self.told.rate) * steps + step, steps)
            if run.margin == "counts-seen":
                self.count_labels([self.labels[i] for i in part])
            self.net.train(not again)
            images, weight = self.images(self.pair.train, [self.pool[i] for i in part]), [weights[i] for i in part]
            soft = torch.nn.functional.one_hot(torch.tensor([self.labels[i] for i in part]), self.classes).float()
            if again:
                soft = (1 - run.smoothing) * soft + run.smoothing / self.classes
            if mixes:
                share = float(shares[0, step])
                others = [int(i) - start for i in partner[0, start : start + len(part)]]
                assert sorted(others) == list(range(len(part)))
                assert 0.5 <= share <= 1
                images = torch.stack([share * images[i] + (1 - share) * images[j] for i, j in enumerate(others)])
                soft = torch.stack([share * soft[i] + (1 - share) * soft[j] for i, j in enumerate(others)])
                weight = [share * weight[i] + (1 - share) * weight[j] for i, j in enumerate(others)]
            logits = self.net(images)
            used = self.module.offsets.tolist() if isinstance(self.module, aol.MarginLoss) else list(self.offset)
            if self.module is not None:
                loss = self.module(logits, soft if run.mixup else soft.argmax(1))
                if isinstance(self.module, aol.LogitAdjustedLoss):
                    assert self.module.offsets.tolist() == pytest.approx(self.offset, abs=1e-5)  # counted once
            else:
                moved = logits + torch.tensor(used)
                terms = [
                    w * sum(float(s) * loss_of(z, y, run) for y, s in enumerate(target) if s)
                    for w, z, target in zip(weight, moved, soft, strict=True)
                ]
                divisor = sum(weight) if run.divide_by == "weight" else len(part)
                loss = torch.stack(terms).sum() / (divisor or 1.0)  # no weight at all: a loss of zero
            answers += [int(z.argmax()) == self.labels[i] for z, i in zip(logits, part, strict=True)]
            self.named += self.answers_of(logits)
            losses.append(loss.item())
            self.net.zero_grad()
            loss.backward()
            for name, parameter in self.net.named_parameters():
                if again and not name.startswith("head"):
                    continue
                decay = 0.0 if name == "head.bias" and run.loss != "softmax" else run.weight_decay
                slope = parameter.grad + decay * parameter.detach()  # type: ignore[operator]
                self.speed[name] = slope + run.momentum * self.speed.get(name, torch.zeros_like(slope))
                parameter.data -= rate * self.speed[name]
            if self.control is not None and run.margin_steps is not None:
                self.steer_by_step(part, self.named[-len(part) :], rate, step + 1, steps)
        self.told.rate.append(rate)
        self.told.loss.append(mean(losses))
        self.told.offset.append(used)
        return answers

    # Weights

    def weighted(self, epoch: int) -> bool:
        return epoch >= round(self.run.start * self.run.epochs)

    def class_weights(self, counts: list[int], ages: list[float]) -> list[float]:
        run, found = self.run, [1.0] * self.classes
        if "cb" in run.weighting:
            cb = [(1 - run.beta) / (1 - run.beta**n) if n else math.nan for n in counts]
            found = [a * b for a, b in zip(found, one_mean(cb), strict=True)]
        if run.weighting == "frequency":
            found = one_mean([n**-run.power if n else math.nan for n in counts])
        if "aol" in run.weighting and run.level == "class" and run.rho > 0:
            found = [a * b for a, b in zip(found, one_mean(ages), strict=True)]
        if run.weighting == "error" and run.rho > 0:
            found = one_mean(self.error)
        return one_mean(found)

    def sample_weights(self, epoch: int) -> list[float]:
        if not self.weighted(epoch):
            return [1.0] * len(self.labels)
        by_class = self.class_weights(self.count, self.mean_ages(self.ema))
        found = [by_class[label] for label in self.labels]
        if "aol" in self.run.weighting and self.run.level == "sample":
            own = one_mean(self.ema) if self.run.rho > 0 else [1.0] * len(found)
            found = one_mean([a * b for a, b in zip(found, own, strict=True)])
            return one_mean([w**self.run.temper for w in found])
        if self.run.weighting in ("old", "jtt", "sample-error", "sample-loss"):
            return one_mean([w**self.run.temper for w in one_mean(self.own_weights())])
        tempered = one_mean([w**self.run.temper for w in by_class])
        return [tempered[label] for label in self.labels]

    def own_weights(self) -> list[float]:
        """Weights from what is known of each sample, at sample level only."""
        run = self.run
        if run.weighting == "sample-loss":
            return self.last_loss
        if run.weighting == "sample-error":
            return [mean(not r for r in told.values()) if told else math.nan for told in self.answers]
        if run.weighting == "old":
            member = [max(past, default=0) > run.after for past in self.past]
        else:
            member = [told.get(run.after) is False for told in self.answers]
        factor = run.factor or max(1.0, member.count(False) / max(1, member.count(True)))
        return [factor if inside else 1.0 for inside in member]

    def mean_ages(self, ages: list[float]) -> list[float]:
        found = []
        for c in range(self.classes):
            known = [a for a, e, label in zip(ages, self.ema, self.labels, strict=True) if label == c and e == e]
            found.append(mean(known) if known else math.nan)
        return found

    def rates(self, labels: list[int], right: list[bool]) -> list[float]:
        found = []
        for c in range(self.classes):
            own = [r for r, label in zip(right, labels, strict=True) if label == c]
            found.append(mean(own) if own else math.nan)
        return found

    def set_offset(self, counts: list[int]) -> None:
        """Offsets for the coming training: from the counts of what is trained on, or as the control left them."""
        if self.run.margin == "counts":
            logs = [math.log(n) if n else math.nan for n in counts]
            middle = mean(log for log in logs if log == log)
            self.offset = [self.run.tau * (log - middle) if log == log else 0.0 for log in logs]
        if self.control is not None:
            self.offset = [self.control.tau * o for o in self.control.offsets]

    def count_labels(self, labels: list[int]) -> None:
        """Set the offsets for the coming step from the labels so far, with those of the step."""
        memory, keep, share = self.run.margin_memory, 1.0, 1.0
        if memory is not None:
            keep = math.exp(-len(labels) / memory)
            share = (1 - keep) * memory / len(labels)
        self.counted = [keep * n + share * labels.count(c) for c, n in enumerate(self.counted)]
        logs = [math.log(max(n, 1)) for n in self.counted]
        self.offset = [self.run.tau * (log - mean(logs)) for log in logs]

    def keys(self, seen: list[int]) -> list[int]:
        return [self.labels[i] for i in seen] if self.run.scenario == "stream" else seen

    def steer_by_step(
        self, part: list[int], named: list[int | list[float]], rate: float, done: int, steps: int
    ) -> None:
        """Tell the control, after every so many training steps and after the last, what was answered in them."""
        assert self.control is not None
        assert self.run.margin_steps is not None
        self.shown_in_window += zip(self.keys(part), named, [1] * len(part), strict=True)
        if done % self.run.margin_steps == 0 or done == steps:
            self.control.epoch(self.shown_in_window, rate / self.run.lr)
            self.shown_in_window = []
            self.offset = [self.control.tau * o for o in self.control.offsets]

    def steer(self, seen: list[int], epoch: int) -> None:
        """Tell the control what was answered; it moves as fast as the rate at the end of the epoch is high."""
        if self.control is not None and self.run.margin_steps is None:
            keys = self.keys(seen)
            scale = rate_of(self.run, 1000 * epoch + 999, 1000) / self.run.lr
            self.control.epoch(zip(keys, self.named, [1] * len(keys), strict=True), scale)

    def note_errors(self, accuracy: list[float]) -> None:
        for c, r in enumerate(accuracy):
            if r == r:
                before = self.error[c] if self.error[c] == self.error[c] else 1 - r
                self.error[c] = (1 - self.run.rho) * before + self.run.rho * (1 - r)

    def look_at_test(self) -> None:
        right = self.right(self.pair.test, list(range(len(self.pair.test))))
        self.told.test.append(mean(right))
        self.test_ages = [1 if r else a + 1 for a, r in zip(self.test_ages, right, strict=True)]
        self.told.test_age.append(list(self.test_ages))

    def order(self, epoch: int, weights: list[float]) -> list[int]:
        if self.run.mechanism == "resample" and self.weighted(epoch):
            assert self.draw is not None
            return self.draw(weights)
        return torch.randperm(len(weights), generator=_seeds.generator(self.run.seed, 1_000_001, epoch)).tolist()

    # The three loops

    def offline(self) -> Told:
        run, told = self.run, self.told
        arrivals = run.scenario == "arrival"
        for epoch in range(run.epochs):
            here = list(range(len(self.pool)))
            if arrivals:
                draws = Arrivals(torch.tensor(self.labels), run.fraction, steps=run.epochs, seed=run.seed)
                here = draws[epoch].tolist()
            if run.signal == "before":
                self.examined(epoch, here, self.right(self.pair.train, [self.pool[i] for i in here]), clean=True)
            weights = self.sample_weights(epoch)
            self.set_offset(self.count)
            order = [here[i] for i in self.order(epoch, [weights[i] for i in here])]
            heard = self.learn(order, [1.0] * len(weights) if run.mechanism == "resample" else weights)
            seen, right = order, heard
            if run.signal == "eval":
                seen, right = here, self.right(self.pair.train, [self.pool[i] for i in here])
            if run.signal == "none":
                told.train.append(self.rates([self.labels[i] for i in seen], right))
            elif run.signal != "before":
                self.examined(epoch, seen, right, clean=run.signal == "eval")
            told.age.append([0 if arrivals and e != e else a for a, e in zip(self.age, self.ema, strict=True)])
            told.class_age.append(self.mean_ages([float(age) for age in self.age]))
            told.smoothed_age.append(self.mean_ages(self.ema))
            by_class = [
                mean(w for w, label in zip(weights, self.labels, strict=True) if label == c)
                for c in range(self.classes)
            ]
            if isinstance(self.module, aol.AgeWeightedLoss):
                by_class = self.module.class_weight.tolist()
            told.weight.append(by_class)
            self.look_at_test()
        return told

    def examined(self, epoch: int, seen: list[int], right: list[bool], *, clean: bool) -> None:
        """What follows from answers to these samples."""
        self.told.train.append(self.rates([self.labels[i] for i in seen], right))
        self.note_errors(self.told.train[-1])
        for i, r in zip(seen, right, strict=True):
            self.answers[i][epoch + 1] = r
        if clean:
            for i, value in zip(seen, self.losses, strict=True):
                self.last_loss[i] = value
        self.steer(seen, epoch)
        self.grow_older(dict(zip(seen, right, strict=True)), absent=self.run.scenario == "arrival")

    def grow_older(self, answers: dict[int, bool], *, absent: bool) -> None:
        for i in range(len(self.pool)):
            known = self.ema[i] == self.ema[i]
            if i not in answers and not (absent and known):
                continue
            self.age[i] = 1 if answers.get(i, False) else self.age[i] + 1
            before = self.ema[i] if known else float(self.age[i])
            self.past[i].append(self.age[i])
            smoothed = (1 - self.run.rho) * before + self.run.rho * self.age[i]
            self.ema[i] = float(max(self.past[i])) if self.run.fuse == "peak" else smoothed

    def stream(self) -> Told:
        run, told = self.run, self.told
        labels = torch.tensor(self.labels)
        shown = (
            LimitedAccess(labels, run.fraction, steps=run.epochs, seed=run.seed)
            if run.stream == "access"
            else ShiftingTail(labels, run.imbalance or 1, period=run.period, steps=run.epochs, seed=run.seed)
        )
        kept: list[int] = []
        reservoir = Reservoir(int(run.memory.partition(":")[2]), seed=run.seed) if ":" in run.memory else None
        for step in range(run.epochs):
            here = shown[step].tolist()
            if reservoir is not None:  # the subset enters the memory
                reservoir.add(here)
                kept = reservoir.indices.tolist()
            else:
                kept = kept + here if run.memory == "all" else here
            counts = [sum(self.labels[i] == c for i in here) for c in range(self.classes)]
            if run.signal == "before":  # evaluate on what will be trained on
                self.step_older(step, here, self.right(self.pair.train, [self.pool[i] for i in here]))
            started = step or run.signal == "before"
            self.set_offset(counts)
            raw = self.class_weights(counts, self.class_ema if started else [1.0] * self.classes)
            weight = one_mean([w**run.temper for w in raw]) if self.weighted(step) else [1.0] * self.classes
            by_sample = [weight[label] for label in self.labels]
            order = [here[i] for i in self.order(step, [by_sample[i] for i in here])]
            heard = self.learn(order, [1.0] * len(by_sample) if run.mechanism == "resample" else by_sample)  # train
            told.weight.append(self.module.class_weight.tolist() if run.weighting == "aol-seen" else weight)
            seen, right = order, heard
            if run.signal == "eval":  # evaluate on the memory
                seen, right = kept, self.right(self.pair.train, [self.pool[i] for i in kept])
            if run.signal != "before":
                self.step_older(step, seen, right)
            told.class_age.append([float(age) for age in self.class_ages])
            told.smoothed_age.append(list(self.class_ema))
            told.age.append(list(self.class_ages))
            self.look_at_test()
        return told

    def step_older(self, step: int, seen: list[int], right: list[bool]) -> None:
        """What follows from answers in a step of a stream."""
        run, told = self.run, self.told
        accuracy = self.rates([self.labels[i] for i in seen], right)
        told.train.append(accuracy)
        known = [r for r in accuracy if r == r]
        named = {None: median, "mean": lambda r: sum(r) / len(r), "positive-median": lambda r: median(r) or 1e-300}
        tau = named[run.threshold](known) if run.threshold in named else run.threshold
        told.threshold.append(tau)
        self.note_errors(accuracy)
        self.steer(seen, step)
        for c, r in enumerate(accuracy):
            if r == r:
                self.class_ages[c] = self.class_ages[c] + 1 if r < tau else 1
            now = float(self.class_ages[c])
            self.class_ema[c] = now if step == 0 else (1 - run.rho) * self.class_ema[c] + run.rho * now
