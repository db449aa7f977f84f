"""The scores that `label_noise.py` compares, one number per sample: larger is more suspicious."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aol.records.history import Answers
from aol.report.label_quality import suspicion

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def softmax(logits: Floats) -> Floats:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def over_time(answers: Answers) -> dict[str, Floats]:
    """Return what ages say: the last one, their mean over all epochs (the area under the age), the share wrong."""
    wrong, area, age = np.zeros(answers.size), np.zeros(answers.size), np.ones(answers.size)
    for _, right, now in answers.epochs():
        wrong += ~right
        area += now
        age = now.astype(float)
    return {"age": age, "area": area / len(answers), "share": wrong / len(answers)}


def scores(logits: Floats, label: Ints, answers: Answers, ema: Floats, outside: Floats | None) -> dict[str, Floats]:
    """Return every score of one run's samples from its clean logits `[E, N, C]` and its ages."""
    rows = np.arange(len(label))
    probability = softmax(logits)
    own = np.clip(probability[:, rows, label], 1e-12, 1.0)
    probability[:, rows, label] = 0.0
    other = probability.max(-1)
    probability[:, rows, label] = own
    z = logits[:, rows, label]
    best = logits.copy()
    best[:, rows, label] = -np.inf
    aged = over_time(answers)
    epochs = np.full(len(label), len(answers), np.int32)
    times_wrong = np.rint(aged["share"] * len(answers)).astype(np.int32)
    confidence, mean_other = own.mean(0).astype(np.float32), other.mean(0).astype(np.float32)
    suspected = suspicion(label, times_wrong, epochs, confidence, mean_other).astype(float)
    found = {
        "aol suspicion": suspected,
        "loss": -np.log(own[-1]),
        "margin": other[-1] - own[-1],
        **{f"cleanlab {name}": value for name, value in cleaned(probability[-1], label).items()},
        "age": aged["age"],
        "EMA of age": ema,
        "EMA x other": ema * other[-1],
        "area under age": aged["area"],
        "share wrong": aged["share"],
        "share wrong x mean other": aged["share"] * other.mean(0),
        "suspicion + 0.2 share wrong": suspected + 0.2 * aged["share"],
        "mean confidence": 1.0 - own.mean(0),
        "mean loss": -np.log(own).mean(0),
        "mean margin": (other - own).mean(0),
        "area under margin (AUM)": (best.max(-1) - z).mean(0),
        **{
            f"cleanlab, mean probabilities, {name}": value
            for name, value in cleaned(probability.mean(0), label).items()
        },
    }
    if outside is not None:
        found |= {
            f"cleanlab, cross-validated, {name}": value for name, value in cleaned(softmax(outside), label).items()
        }
    return found


def cleaned(probability: Floats, label: Ints) -> dict[str, Floats]:
    """Return what cleanlab makes of probabilities `[N, C]`: two of its qualities, and its list of issues first."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    quality = {
        "self-confidence": get_label_quality_scores(label, probability, method="self_confidence"),
        "normalized margin": get_label_quality_scores(label, probability, method="normalized_margin"),
    }
    issues = find_label_issues(label, probability, return_indices_ranked_by="self_confidence", n_jobs=1)
    listed = -quality["self-confidence"].astype(float)
    listed[issues] += 10.0 + np.linspace(1.0, 0.0, len(issues))
    return {**{name: -value for name, value in quality.items()}, "confident learning": listed}
