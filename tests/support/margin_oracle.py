"""Margins as naive loops over samples and pairs of classes: plain Python numbers, written from the equations.

Nothing here may import `aol`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

NAN = float("nan")


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def control_errors(missed: Sequence[float], claimed: Sequence[float], floor: float) -> list[float]:
    """How much more each class is missed than claimed, with mean zero over the known ones; 0 where unknown."""
    known = [c for c, m in enumerate(missed) if not math.isnan(m)]
    found = [0.0] * len(missed)
    if not known or not any(missed[c] for c in known):
        return found
    scale = mean([missed[c] for c in known])
    for c in known:
        found[c] = math.log(missed[c] / scale + floor) - math.log(claimed[c] / scale + floor)
    middle = mean([found[c] for c in known])
    return [found[c] - middle if c in known else 0.0 for c in range(len(missed))]


def certainty(difference: float, variance: float, width: float) -> float:
    if math.isnan(difference) or difference == 0:
        return 0.0
    return max(0.0, 1 - width * math.sqrt(variance) / abs(difference))


class MarginOracle:
    """One run. `epoch` takes what was observed as (label or index, answer, times), one by one."""

    def __init__(self, classes, *, labels=None, signal, gain, rho, width, limit, floor, tau=1.0):
        self.classes, self.labels, self.signal = classes, labels, signal
        self.tau = tau  # the strength: `offsets` are those of a strength of one
        self.gain, self.rho, self.width, self.limit, self.floor = gain, rho, width, limit, floor
        self.age: dict[object, int] = {}  # of samples or of pairs of classes; one where nothing is written
        self.missed, self.variance = [NAN] * classes, [0.0] * classes
        # Smoothed claims and their variance: from the class `label` on the class `answer`.
        self.pair_claims: dict[tuple[int, int], tuple[float, float]] = {}
        self.advances = 0  # with any observation
        self.first, self.last = [0] * classes, [0] * classes  # of them in which the class was observed
        self.swing = [NAN] * classes  # squared, of the difference between epochs
        self.times = [0] * classes  # epochs in which the class was observed
        self.offsets = [0.0] * classes

    def epoch(self, observed: Iterable[tuple[int, int | list[float], int]], scale: float = 1.0) -> None:
        """Take (label or index, answer, times); an answer is a class or, for the signal "probability", one for each."""
        errors = []  # (label, answer, strength) of every error, or of the probability of every wrong class
        strengths = [[] for _ in range(self.classes)]  # by class, of every sample; 0 where the answer is right
        count = [0] * self.classes
        right: dict[object, bool] = {}
        for key, answer, times in observed:
            label = key if self.labels is None else self.labels[key]
            count[label] += times
            if self.signal == "probability":
                raised = [p * math.exp((self.tau - 1) * o) for p, o in zip(answer, self.offsets, strict=True)]
                answer = [p * sum(answer) / sum(raised) for p in raised]
                errors += [(label, c, p) for c, p in enumerate(answer) if c != label] * times
                strengths[label] += [1 - answer[label]] * times
                continue
            who = (label, answer) if self.labels is None else key
            right[who] = label == answer  # of a sample that comes twice, the last answer counts
            wrong = label != answer
            strength = self.age.get(who, 1) if self.signal == "age" else 1
            errors += [(label, answer, strength)] * (times if wrong else 0)
            strengths[label] += [strength if wrong else 0] * times
        self._grow(right, errors, count)
        self._smooth(count, errors, strengths)
        self._move(count, scale)

    def _grow(self, right, errors, count) -> None:
        """Step the ages: of each observed sample, or of each pair whose class was observed."""
        if self.labels is not None:
            self.age.update({key: 1 if right[key] else self.age.get(key, 1) + 1 for key in right})
            return
        for label in range(self.classes):
            for answer in range(self.classes):
                wrong = any(error[:2] == (label, answer) for error in errors)
                if count[label]:
                    self.age[label, answer] = self.age.get((label, answer), 1) + 1 if wrong else 1

    def _smooth(self, count, errors, strengths) -> None:
        before = self.claimed
        now = self._claims_by_pair(count, errors)
        self.advances += any(count)
        all_of_them = [s for values in strengths for s in values]
        usual = sum(s * s for s in all_of_them) / sum(all_of_them) if sum(all_of_them) else 0.0
        for c in (c for c in range(self.classes) if count[c]):
            values = [*strengths[c], usual, 0]  # one more error, one more right answer
            spread = (mean([v * v for v in values]) - mean(values) ** 2) / len(values)
            missed = mean(strengths[c])
            self.times[c] += 1
            self.first[c], self.last[c] = self.first[c] or self.advances, self.advances
            if self.times[c] > 1:
                swing = ((missed - now[c]) - (self.missed[c] - before[c])) ** 2
                self.swing[c] = self._blend(self.swing[c], swing, self.times[c] - 1)
            self.missed[c] = self._blend(self.missed[c], missed, self.times[c])
            self.variance[c] = self._blend(self.variance[c], spread, self.times[c])

    def _claims_by_pair(self, count, errors) -> list[float]:
        """Smooth the claims of the classes that were observed; return those of now, with the old ones of the others."""
        now = []
        for answer in range(self.classes):
            claims = []
            for label in (label for label in range(self.classes) if label != answer):
                old = self.pair_claims.get((label, answer), (0.0, 0.0))
                if not count[label]:
                    claims.append(old[0] if self.is_present(label) else 0.0)
                    continue
                strengths = [s for d, c, s in errors if (d, c) == (label, answer)]
                new = sum(strengths) / count[label], sum(s * s for s in strengths) / count[label] ** 2
                n = self.times[label] + 1
                self.pair_claims[label, answer] = self._blend(old[0], new[0], n), self._blend(old[1], new[1], n)
                claims.append(new[0])
            now.append(sum(claims))
        return now

    def is_present(self, c: int) -> bool:
        """Whether the class was observed, and is not away for longer than one time in e^20 by chance."""
        if not self.times[c]:
            return False
        often = self.times[c] / (self.last[c] - self.first[c] + 2)
        return (1 - often) ** (self.advances - self.last[c]) >= math.exp(-20)

    @property
    def claimed(self) -> list[float]:
        return [q for q, _ in self._claimed()]

    def _claimed(self) -> list[tuple[float, float]]:
        """The smoothed claims on each class, and their variance."""
        there = {pair: both for pair, both in self.pair_claims.items() if self.is_present(pair[0])}
        found = [[both for (_, c), both in there.items() if c == answer] for answer in range(self.classes)]
        return [(sum(q for q, _ in each), sum(v for _, v in each)) for each in found]

    def _blend(self, before: float, now: float, times: int) -> float:
        """The n-th value joins the mean of those before it until 1 / n is below rho."""
        rate = max(self.rho, 1 / times)
        return now if times == 1 else (1 - rate) * before + rate * now

    def _move(self, count, scale) -> None:
        claimed = self._claimed()
        there = [m if self.is_present(c) else NAN for c, m in enumerate(self.missed)]
        errors = control_errors(there, self.claimed, self.floor)
        for c in (c for c in range(self.classes) if count[c]):
            left = max(self.rho, 1 / self.times[c]) / 2  # of swings, after smoothing
            variance = math.inf if self.times[c] == 1 else self.variance[c] + claimed[c][1] + left * self.swing[c]
            sure = certainty(self.missed[c] - claimed[c][0], variance, self.width)
            self.offsets[c] -= scale * self.gain * sure * errors[c]
        middle = mean(self.offsets)
        self.offsets = [max(-self.limit, min(self.limit, o - middle)) for o in self.offsets]
