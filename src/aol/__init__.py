"""Age of Learning: for how long a model has been wrong, as a training signal.

Names are imported when they are first used, so that `import aol` takes milliseconds.
"""

import importlib
from typing import TYPE_CHECKING

from aol._need import explaining
from aol._version import __version__

# fmt: off
if TYPE_CHECKING:
    from aol.ages import SampleAges, age_step, ema_step
    from aol.class_ages import ClassAges
    from aol.criteria import AgeWeightedLoss, LogitAdjustedLoss, MarginLoss
    from aol.indexed import Indexed
    from aol.longtail import long_tail, long_tail_counts
    from aol.losses import focal_loss, is_correct, loss_total, sigmoid_bias, sigmoid_loss, softmax_loss, weighted_mean
    from aol.margins import Margins
    from aol.memory import KeepAll, Reservoir
    from aol.offsets import fit_offsets, logit_offsets, posthoc_logits
    from aol.records.recorder import Recorder
    from aol.records.table import load_runs
    from aol.records.watch import Watch
    from aol.report.label_errors import find_label_errors
    from aol.sampling import AgeSampler, ShuffledSampler, WeightedSampler, draw
    from aol.streams import Arrivals, LimitedAccess, ShiftingTail
    from aol.weights import (
        ErrorRates,
        class_balanced_weight,
        combine,
        frequency_weight,
        old_set_weight,
        set_weight,
        temper,
    )

__all__ = [
    "AgeSampler", "AgeWeightedLoss", "Arrivals", "ClassAges", "ErrorRates", "Indexed", "KeepAll", "LimitedAccess",
    "LogitAdjustedLoss", "MarginLoss", "Margins", "Recorder", "Reservoir", "SampleAges", "ShiftingTail",
    "ShuffledSampler", "Watch", "WeightedSampler", "__version__", "age_step", "class_balanced_weight", "combine",
    "draw", "ema_step", "find_label_errors", "fit_offsets", "focal_loss", "frequency_weight", "is_correct", "load_runs",
    "logit_offsets", "long_tail", "long_tail_counts", "loss_total", "old_set_weight", "posthoc_logits", "set_weight",
    "sigmoid_bias", "sigmoid_loss", "softmax_loss", "temper", "weighted_mean",
]

_HOMES = {
    "ages": "SampleAges age_step ema_step",
    "class_ages": "ClassAges",
    "criteria": "AgeWeightedLoss LogitAdjustedLoss MarginLoss",
    "indexed": "Indexed",
    "longtail": "long_tail long_tail_counts",
    "losses": "focal_loss is_correct loss_total sigmoid_bias sigmoid_loss softmax_loss weighted_mean",
    "margins": "Margins",
    "metrics": "",
    "offsets": "fit_offsets logit_offsets posthoc_logits",
    "memory": "KeepAll Reservoir",
    "records.recorder": "Recorder",
    "records.table": "load_runs",
    "records.watch": "Watch",
    "report.label_errors": "find_label_errors",
    "sampling": "AgeSampler ShuffledSampler WeightedSampler draw",
    "streams": "Arrivals LimitedAccess ShiftingTail",
    "weights": "ErrorRates class_balanced_weight combine frequency_weight old_set_weight set_weight temper",
}
# fmt: on
_PLACES = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import a public name, or a module as in `aol.weights`, when it is first used: importing torch takes seconds."""
    home = _PLACES.get(name, name)
    if home not in _HOMES:
        raise AttributeError(f"module 'aol' has no attribute {name!r}")
    with explaining(f"aol.{name}"):
        module = importlib.import_module(f"aol.{home}")
    globals()[name] = value = getattr(module, name) if name in _PLACES else module
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES, *(home for home in _HOMES if home.isidentifier())})
