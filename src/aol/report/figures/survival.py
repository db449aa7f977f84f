"""How long errors last: error episodes of samples, the Kaplan–Meier estimate of their survival, and its figure.

An episode that is still open when the record ends is censored on the right.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from aol.records.history import Answers
from aol.records.record import Floats, Ints, Run
from aol.records.samples import SampleTable
from aol.report.figures import style
from aol.report.figures.summary import Part, parts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Episodes:
    """How many error episodes ended, and how many were still open, after d epochs: `int64 [D + 1]`, place d is d."""

    ended: Ints
    open: Ints

    @property
    def count(self) -> int:
        """How many there were."""
        return int(self.ended.sum() + self.open.sum())


def episodes(answers: Answers, group: Ints | None = None) -> list[Episodes]:
    """Return the error episodes of samples by group: unbroken stretches of age above one, as long as the age less one.

    `group [N]` numbers the groups from 0; a negative number leaves a sample out. Episodes that were under way before
    the record began are left out: how long they had lived is not all on record.

    >>> from aol.records.history import pack
    >>> right = np.array([[0, 1], [0, 1], [1, 0]], bool)
    >>> [(each.ended.tolist(), each.open.tolist()) for each in episodes(Answers(pack(right), None, 2))]
    [([0, 0, 1, 0], [0, 1, 0, 0])]
    """
    group = np.zeros(answers.size, np.int64) if group is None else np.asarray(group, np.int64)
    groups = int(group.max(initial=-1)) + 1
    longest = len(answers) + 1
    ended, opened = (np.zeros((groups, longest), np.int64) for _ in range(2))
    before = np.ones(answers.size, np.int32) if answers.start is None else answers.start
    counts = (group >= 0) & (before <= 1)
    for _, _, age in answers.epochs():
        over = (before > 1) & (age == 1)
        np.add.at(ended, (group[over & counts], before[over & counts] - 1), 1)
        counts |= over & (group >= 0)  # episodes that began before the record have ended
        before = age
    still = (before > 1) & counts
    np.add.at(opened, (group[still], before[still] - 1), 1)
    return [Episodes(*pair) for pair in zip(ended, opened, strict=True)]


@dataclass(frozen=True)
class Survival:
    """The share of episodes that live longer than t epochs, at t = 0, 1, 2, …, with a band of 95 %."""

    t: Ints
    share: Floats
    low: Floats
    high: Floats
    at_risk: Ints

    @property
    def median(self) -> float:
        """The number of epochs after which at most half are alive; NaN where more than half outlive the record."""
        gone = np.flatnonzero(self.share <= 0.5)
        return float(self.t[gone[0]]) if gone.size else float("nan")


def kaplan_meier(found: Episodes) -> Survival:
    r"""Return the product-limit estimate, with Greenwood's variance on the log-log scale.

    .. math:: \hat S(t) = \prod_{d \le t} \left(1 - \frac{e_d}{n_d}\right), \qquad
        \hat S(t)^{\exp(\pm z \hat\sigma_t)}, \quad
        \hat\sigma_t^2 = \frac{1}{(\ln \hat S(t))^2} \sum_{d \le t} \frac{e_d}{n_d (n_d - e_d)}

    where e_d episodes ended after d epochs, of n_d that had lived so long.

    >>> kaplan_meier(Episodes(np.array([0, 2, 1]), np.array([0, 1, 0]))).share
    array([1. , 0.5, 0. ])
    """
    leaving = found.ended + found.open
    last = int(np.flatnonzero(leaving).max(initial=0))
    ended, leaving = found.ended[: last + 1], leaving[: last + 1]
    at_risk = leaving[::-1].cumsum()[::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.cumprod(np.where(at_risk > 0, 1 - ended / at_risk, 1.0))
        steps = np.where(ended > 0, ended / (at_risk * (at_risk - ended)), 0.0)
        sigma = np.sqrt(steps.cumsum()) / np.abs(np.log(share))
        z = NormalDist().inv_cdf(0.975)
        low, high = share ** np.exp(z * sigma), share ** np.exp(-z * sigma)
    certain = (share == 1.0) | (share == 0.0)
    low, high = np.where(certain, share, low), np.where(certain, share, high)
    return Survival(np.arange(last + 1), share.astype(float), low, high, at_risk)


def survival_by_part(run: Run, samples: SampleTable) -> list[tuple[Part, Episodes, Survival]]:
    """Return the survival of error episodes of each part of the classes that had any."""
    label = samples.label
    found = parts(run.counts or np.bincount(label, minlength=len(run.classes)))
    group = np.full(len(run.classes), -1)
    for number, part in enumerate(found):
        group[part.classes] = number
    by_part = episodes(samples.answers, group[label])
    return [(part, each, kaplan_meier(each)) for part, each in zip(found, by_part, strict=False) if each.count]


@style.styled
def survival(run: Run, samples: SampleTable) -> Figure | None:
    """Return the survival curves of a run; None where no sample was ever wrong."""
    found = survival_by_part(run, samples)
    if not found:
        return None
    labels = [f"{part.name}: {each.count:,} episodes, {int(each.open.sum()):,} still open" for part, each, _ in found]
    figure, (axes,) = style.panels(1.75 + style.legend_height(labels))
    longest = max(int(each.t[-1]) for _, _, each in found)
    first = 0.8 if longest > 20 else 0.0  # most errors are short, and some never end: then a log scale
    for number, ((_, each, curve), label) in enumerate(zip(found, labels, strict=True)):
        colour, line = style.COLOURS[number], style.LINES[number]
        t = np.maximum(curve.t, first)
        axes.step(t, curve.share, where="post", color=colour, linestyle=line, label=label)
        axes.fill_between(t, curve.low, curve.high, step="post", color=colour, alpha=0.18, linewidth=0)
        censored = np.flatnonzero(each.open[: len(t)])
        axes.plot(t[censored], curve.share[censored], "|", color=colour, markersize=4, markeredgewidth=0.7)
    axes.set_xlabel("epochs since the error began" + (" (log scale)" if first else ""))
    axes.set_ylabel("share of errors still open")
    axes.set_ylim(0, 1.02)
    axes.set_xlim(left=first)
    if first:
        style.set_log_scale(axes, "x")
    else:
        style.limit_ticks(axes, x=6, whole=True)
    style.legend(figure, labels)
    return figure
