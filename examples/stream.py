"""A stream of digits whose long tail shifts: class ages estimated on a reservoir, and simpler weights.

One step: add the samples to the memory, train on them once, evaluate the network on the memory, and compute the weights
of the next step. The memory is never trained on. Settings are defaults of the library or common values; none was tuned
on these data.
"""

from __future__ import annotations

import sys

import torch
from comparison import CLASSES, FOOTNOTE, accuracy, digits, each_seed, network, stream_options, table, tail_mean

import aol

METHODS = ("none", "frequency^-0.5", "error rate", "AoL rho 0.1", "AoL rho 0.5")


def train(method: str, seed: int, steps: int, imbalance: float, period: int, capacity: int) -> dict[str, float]:
    """Train one network on one stream and return its accuracy on the balanced test set."""
    pool = digits(seed)
    images, labels = pool.images, pool.labels
    stream = aol.ShiftingTail(labels, imbalance, period=period, steps=steps, seed=seed)
    memory = aol.Reservoir(capacity, seed=seed)
    states = {
        "error rate": aol.ErrorRates(CLASSES),
        "AoL rho 0.1": aol.ClassAges(CLASSES, rho=0.1),
        "AoL rho 0.5": aol.ClassAges(CLASSES, rho=0.5),
    }
    state = states.get(method)

    model = network(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)
    curve = []
    for step, shown in enumerate(stream):
        memory.add(shown)
        class_weight = torch.ones(CLASSES)
        if method == "frequency^-0.5":
            class_weight = aol.frequency_weight(stream.counts(step), 0.5)
        elif state is not None:
            class_weight = state.class_weight
        order = torch.randperm(len(shown), generator=torch.Generator().manual_seed(steps * seed + step))
        for index in shown[order].split(32):
            y = labels[index]
            loss = aol.weighted_mean(aol.softmax_loss(model(images[index]), y), class_weight[y])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if state is not None:
            kept = memory.indices
            with torch.no_grad():
                state.observe(labels[kept], aol.is_correct(model(images[kept]), labels[kept]))
            state.advance()
        curve.append(accuracy(model, pool.test_images, pool.test_labels))
    return {"last step": curve[-1], "tail mean": tail_mean(curve), "second half": tail_mean(curve, 0.5)}


def main(words: list[str] | None = None) -> int:
    about = "Train along a stream with a shifting long tail, with several weightings, and compare them."
    given = stream_options(about).parse_args(words)
    settings = (given.steps, given.imbalance, given.period, given.capacity)
    results = each_seed(METHODS, given.seeds, lambda method, seed: train(method, seed, *settings))

    print(f"\nDigits, a long tail of imbalance {given.imbalance:g} that shifts every {given.period} steps, ", end="")
    print(f"reservoir of {given.capacity},\n{given.steps} steps, {given.seeds} seeds, test accuracy in %\n")
    print(table(results, "none"))
    print(f"\n{FOOTNOTE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
