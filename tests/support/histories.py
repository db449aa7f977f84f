"""Hypothesis strategies for what a model got right over time, and the same story told to the library and the oracle."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

# The edges, round numbers, and numbers that no float32 holds exactly.
rhos = st.sampled_from([0.0, 1.0, 0.5, 0.25]) | st.floats(0.01, 1.0)


@dataclass(frozen=True)
class Story:
    """Labels, and for each epoch the calls of `observe`; a call is a list of (index, right)."""

    labels: list[int]
    num_classes: int
    epochs: list[list[list[tuple[int, bool]]]]

    def observed(self, epoch: int) -> dict[int, bool]:
        """What counts in the end: of a repeated index the last."""
        return {i: right for call in self.epochs[epoch] for i, right in call}


@st.composite
def label_lists(draw, most: int = 12) -> tuple[list[int], int]:
    num_classes = draw(st.integers(1, 4))
    labels = draw(st.lists(st.integers(0, num_classes - 1), min_size=1, max_size=most))
    return labels, num_classes


@st.composite
def stories(draw, *, full: bool, most_epochs: int = 6) -> Story:
    """`full`: every sample is observed every epoch; otherwise any part of them, none included. Repeats either way."""
    labels, num_classes = draw(label_lists())
    answers = st.tuples(st.integers(0, len(labels) - 1), st.booleans())
    epochs = []
    for _ in range(draw(st.integers(1, most_epochs))):
        seen = draw(st.lists(answers, max_size=8))
        if full:
            order = draw(st.permutations(range(len(labels))))
            seen += [(i, draw(st.booleans())) for i in order]
        cuts = sorted(draw(st.lists(st.integers(0, len(seen)), max_size=3)))
        edges = [0, *cuts, len(seen)]
        epochs.append([seen[a:b] for a, b in itertools.pairwise(edges)])
    return Story(labels, num_classes, epochs)


def tell_epoch(ages, story: Story, epoch: int) -> None:
    """Make all the `observe` calls of an epoch, then advance."""
    for call in story.epochs[epoch]:
        ages.observe([i for i, _ in call], [right for _, right in call])
    ages.advance()


def random_answers(num_samples: int, epochs: int, *, right: float, seed: int) -> torch.Tensor:
    """Answers on every sample in every epoch, `bool [epochs, N]`."""
    return torch.rand(epochs, num_samples, generator=torch.Generator().manual_seed(seed)) < right


def same(a, b) -> bool:
    """Equal to the last bit, NaN to NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(-7.0), b.nan_to_num(-7.0))
