"""Records of a fit, which `aol report` reads, and the columns of the history."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

import aol
from aol.plugins.skorch import AgeOfLearning
from aol.records.record import read_run
from tests.support.recorded_loop import ages_over_time, samples_of
from tests.support.small_skorch import net, skewed

X, y = skewed()


class Watching(Callback):
    """Predicts the training and the validation set at the end of each epoch."""

    def __init__(self) -> None:
        self.right: list[tuple[float, float]] = []

    def on_epoch_end(self, net, dataset_train=None, dataset_valid=None, **kwargs) -> None:
        def share(data) -> float:
            return float(np.mean([net.predict(data)[i] == int(data[i][1]) for i in range(len(data))]))

        self.right.append((share(dataset_train), share(dataset_valid)))


@pytest.mark.parametrize("last", [nn.Identity(), nn.Softmax(-1)], ids=["logits", "probabilities"])
def test_training_and_validation_are_on_record(last: nn.Module, tmp_path: Path) -> None:
    watching, classes = Watching(), int(y.max()) + 1
    criterion = nn.NLLLoss if isinstance(last, nn.Softmax) else nn.CrossEntropyLoss
    model = nn.Sequential(nn.Linear(X.shape[1], classes), last)
    callbacks = [AgeOfLearning(recorder=tmp_path / "run"), watching]
    found = NeuralNetClassifier(model, criterion=criterion, max_epochs=3, lr=0.1, verbose=0, callbacks=callbacks)
    found.fit(X, y)
    run = read_run(tmp_path / "run")
    assert run.finished
    assert run.curves["train_accuracy"] == pytest.approx([train for train, _ in watching.right])
    assert run.curves["test_accuracy"] == pytest.approx([valid for _, valid in watching.right])
    assert run.curves["lr"].tolist() == [0.1] * 3
    assert ages_over_time(samples_of(tmp_path / "run"))[-1] == found.ages_.ages_.age.tolist()
    found.partial_fit(X, y)  # goes on
    assert read_run(tmp_path / "run").epochs.tolist() == [1, 2, 3, 4, 5, 6]


def test_one_logit_of_two_classes_is_recorded_as_two(tmp_path: Path) -> None:
    model = nn.Linear(X.shape[1], 1)
    callback = AgeOfLearning(recorder=lambda ages: aol.Recorder(tmp_path / "run", ages, classes=["no", "yes"]))
    found = NeuralNetBinaryClassifier(model, max_epochs=2, verbose=0, callbacks=[callback])
    found.fit(X, (y > 0).astype(np.float32))
    run = read_run(tmp_path / "run")
    assert run.classes == ["no", "yes"]
    right = (found.ages_.ages_.age == 1).float().mean()
    assert run.curves["train_accuracy"][-1] == pytest.approx(float(right))


class Failing(Callback):
    def on_epoch_begin(self, net, **kwargs) -> None:
        if len(net.history) == 2:
            raise RuntimeError("out of luck")


def test_a_net_that_broke_off_can_be_fitted_again(tmp_path: Path) -> None:
    found = net(AgeOfLearning(recorder=tmp_path / "run"), Failing())
    with pytest.raises(RuntimeError, match="out of luck"):
        found.fit(X, y)
    assert not read_run(tmp_path / "run").finished
    assert clone(found).get_params()["callbacks"][0].recorder == tmp_path / "run"
    pickle.loads(pickle.dumps(found))
    with pytest.raises(ValueError, match="already holds a record"):
        found.fit(X, y)


def test_the_history_has_columns_of_ages_and_margins() -> None:
    found = net(AgeOfLearning(margins="age")).fit(X, y)
    aging = found.ages_
    right = [(aging.ages_.age[aging.ages_.labels == c] == 1).float().mean() for c in range(aging.ages_.num_classes)]
    row = found.history[-1]
    assert row["train_worst_class"] == pytest.approx(float(min(right)))
    assert row["class_age"] == pytest.approx(float(aging.class_age.max()))
    assert row["age_mean"] == pytest.approx(float(aging.class_age.mean()))
    assert row["margin_largest"] == pytest.approx(float(aging.margins_.offsets.max()))
