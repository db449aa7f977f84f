"""Records of runs, made without training."""

from __future__ import annotations

import numpy as np

from aol.records.record import Run, by_class_of


def small_run(**changed: object) -> Run:
    """Return a record with four epochs and three classes."""
    rng = np.random.default_rng(0)
    over_time = {
        "age": 1.0 + rng.random((4, 3)),
        "test_accuracy": rng.random((4, 3)),
        "train_accuracy": rng.random((4, 3)),
    }
    given: dict[str, object] = {
        "id": "0123456789ab",
        "method": "aol ρ=0.5 class",
        "seed": 3,
        "settings": {"scenario": "offline", "weighting": "aol", "rho": 0.5, "seed": 3, "imbalance": None},
        "classes": ["cat", "dög", "=SUM(A1)"],
        "counts": [30, 20, 10],
        "epochs": np.arange(1, 5),
        "curves": {"test_accuracy": np.array([0.25, np.nan, 0.5, 0.75]), "train_loss": np.array([3.0, 2.0, 1.0, 0.5])},
        "by_class": by_class_of(over_time),
        "over_time": {name: values.astype(np.float32) for name, values in over_time.items()},
        "planned": 4,
        "finished": True,
        "seconds": 1.5,
        "versions": {"aol": "0.2.0", "torch": "2", "python": "3", "device": "x86 CPU"},
        "command": "aol train --out caf\udce9",
    }
    return Run(**(given | changed))  # type: ignore[arg-type]
