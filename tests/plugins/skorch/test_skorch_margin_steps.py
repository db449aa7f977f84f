"""Margins in skorch that move every few training steps, against the same training by hand."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier
from skorch.callbacks import Callback, Checkpoint, LoadInitState, LRScheduler
from skorch.dataset import ValidSplit
from torch import nn

import aol
from aol.plugins.skorch import AgeOfLearning, IndexedLoader
from tests.support.plugin_checks import same_state
from tests.support.small_skorch import Small, net, parameters, skewed

X, y = skewed()  # 120 samples: 8 batches of 16


def made(signal: str, classes: int = 3) -> aol.Margins:
    return aol.Margins(classes, signal=signal, gain=0.5)


def by_hand(margins, every, *, epochs=4, module=None, rate=lambda step: 1.0, rho=0.0, level="class", parts=1):
    """Train with plain PyTorch, `parts` batches in an optimiser step; return the module and the ages."""
    module = Small() if module is None else module
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    ages, step, largest = aol.SampleAges(y, rho=rho, level=level), 0, 0.0
    batches = torch.arange(len(y)).split(16)
    for _ in range(epochs):
        for number, index in enumerate(batches, 1):
            lr = optimizer.param_groups[0]["lr"] = 0.3 * rate(step)
            largest, step = max(largest, lr), step + 1
            logits = module(torch.tensor(X)[index])
            target = torch.tensor(y)[index]
            loss = nn.functional.cross_entropy(logits.float() + margins.offsets, target, reduction="none")
            (aol.weighted_mean(loss, ages.weight(index)) / parts).backward()
            if number % parts == 0:
                optimizer.step()
                optimizer.zero_grad()
            margins.observe(y[index], logits.detach().float().softmax(1))
            if number % (parts * every) == 0 or number == len(batches):
                margins.advance(scale=lr / largest)
        with torch.no_grad():
            ages.observe(range(len(y)), module(torch.tensor(X)).argmax(1).numpy() == y)
        ages.advance()
    return module, ages


def assert_near(found, module):
    wanted = torch.cat([each.detach().flatten() for each in module.parameters()]).tolist()
    assert parameters(found) == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def assert_same(one, two):
    assert parameters(one) == parameters(two)
    assert same_state(one.ages_.margins_, two.ages_.margins_)
    assert same_state(one.ages_.ages_, two.ages_.ages_)


@pytest.mark.parametrize("given", ["name", "object"])
@pytest.mark.parametrize("rho", [0.0, 0.5])
@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("signal", ["age", "error", "probability"])
def test_margins_train_as_by_hand(signal, every, rho, given):
    theirs = signal if given == "name" else made(signal)
    found = net(AgeOfLearning(rho=rho, margins=theirs, gain=0.5, margin_steps=every)).fit(X, y)
    mine = made(signal)
    module, ages = by_hand(mine, every, rho=rho)
    assert_near(found, module)
    assert found.ages_.margins_.epoch == 4 * {1: 8, 3: 3, 100: 1}[every]
    assert same_state(found.ages_.margins_, mine) or signal == "probability"  # which rounding changes
    torch.testing.assert_close(found.ages_.margins_.offsets, mine.offsets, atol=1e-4, rtol=1e-4)
    assert mine.offsets.abs().max() > 0.1
    assert same_state(found.ages_.ages_, ages)


def test_weights_of_samples_go_with_them():
    aging = AgeOfLearning(level="sample", margins="error", gain=0.5, margin_steps=3)
    mine = made("error")
    assert_near(net(aging, iterator_train=IndexedLoader).fit(X, y), by_hand(mine, 3, rho=0.5, level="sample")[0])
    assert same_state(aging.margins_, mine)


@pytest.mark.parametrize("first", [True, False])
def test_the_gain_follows_the_learning_rate_of_each_move(first):
    def rate(step):
        return min(1.0, (step + 1) / 5) * 0.9**step

    schedule = LRScheduler(torch.optim.lr_scheduler.LambdaLR, lr_lambda=rate, step_every="batch")
    aging = AgeOfLearning(rho=0.0, margins="error", gain=0.5, margin_steps=3)
    found = net(*((aging, schedule) if first else (schedule, aging))).fit(X, y)
    mine = made("error")
    assert_near(found, by_hand(mine, 3, rate=rate)[0])
    assert same_state(found.ages_.margins_, mine)


class Accumulating(NeuralNetClassifier):
    """Accumulates two batches, as in the FAQ of skorch."""

    def get_loss(self, *args, **kwargs):
        return super().get_loss(*args, **kwargs) / 2

    def train_step(self, batch, **fit_params):
        step = self.train_step_single(batch, **fit_params)
        if len(self.history[-1, "batches"]) % 2 == 0:
            self.optimizer_.step()
            self.optimizer_.zero_grad()
        return step


def test_steps_of_the_optimiser_count_and_not_batches():
    aging = AgeOfLearning(rho=0.0, margins="error", gain=0.5, margin_steps=3)
    options = {"criterion": nn.CrossEntropyLoss, "max_epochs": 4, "lr": 0.3, "batch_size": 16, "verbose": 0}
    found = Accumulating(Small, callbacks=[aging], train_split=None, **options).fit(X, y)
    mine = made("error")
    assert_near(found, by_hand(mine, 3, parts=2)[0])
    assert same_state(found.ages_.margins_, mine)
    assert mine.epoch == 8


class Wrapped(torch.optim.SGD):
    """Has the optimiser within, and no hooks of its own, as that of Accelerate."""

    def __init__(self, params, **options):
        self.optimizer = torch.optim.SGD(params, **options)

    param_groups = property(lambda self: self.optimizer.param_groups)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        return self.optimizer.step(closure)


def test_steps_of_an_optimiser_within_another_count():
    aging = AgeOfLearning(rho=0.0, margins="error", gain=0.5, margin_steps=3)
    found = net(aging, optimizer=Wrapped).fit(X, y)
    mine = made("error")
    assert_near(found, by_hand(mine, 3)[0])
    assert same_state(found.ages_.margins_, mine)
    assert not found.optimizer_.optimizer._optimizer_step_post_hooks


class Probabilities(Small):
    def forward(self, X):
        return super().forward(X).softmax(-1)


def test_a_module_that_returns_probabilities():
    aging = AgeOfLearning(rho=0.0, margins="probability", gain=0.5, margin_steps=3)
    found = net(aging, criterion=nn.NLLLoss).set_params(module=Probabilities).fit(X, y)
    mine = made("probability")
    assert_near(found, by_hand(mine, 3)[0])
    torch.testing.assert_close(found.ages_.margins_.offsets, mine.offsets, atol=1e-4, rtol=1e-4)


class OneLogit(Small):
    def forward(self, X):
        return super().forward(X)[:, 0]


def test_one_logit_is_two_probabilities():
    two = (y > 0).astype(np.int64)
    options = {"batch_size": -1, "train_split": None, "max_epochs": 5, "lr": 0.3, "verbose": 0}
    aging = AgeOfLearning(rho=0.0, margins="probability", gain=0.5, margin_steps=1)
    found = NeuralNetBinaryClassifier(OneLogit, callbacks=[aging], **options).fit(X, two.astype(np.float32))
    margins, module = made("probability", 2), OneLogit()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    for _ in range(5):
        logit = module(torch.tensor(X))
        logits = torch.stack([torch.zeros_like(logit), logit], 1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits + margins.offsets, torch.tensor(two)).backward()
        optimizer.step()
        margins.observe(two, logits.detach().softmax(1))
        margins.advance()
    assert_near(found, module)
    torch.testing.assert_close(found.ages_.margins_.offsets, margins.offsets, atol=1e-4, rtol=1e-4)
    assert margins.offsets.abs().max() > 0.1


class Half(Small):
    """Answers in bfloat16 in training; skorch cannot predict in it."""

    def forward(self, X):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.training):
            return super().forward(X)


def test_half_precision():
    aging = AgeOfLearning(rho=0.0, margins="probability", gain=0.5, margin_steps=3)
    found = net(aging).set_params(module=Half).fit(X, y)
    mine = made("probability")
    by_hand(mine, 3, module=Half())
    torch.testing.assert_close(found.ages_.margins_.offsets, mine.offsets, atol=1e-2, rtol=1e-2)
    assert mine.offsets.abs().max() > 0.1


def test_validation_batches_are_not_observed(monkeypatch):
    seen = []

    def observe(self, label, answer, **kwargs):
        seen.extend(label.tolist())
        return plain(self, label, answer, **kwargs)

    plain = aol.Margins.observe
    monkeypatch.setattr(aol.Margins, "observe", observe)
    found = net(AgeOfLearning(margins="error", margin_steps=3), train_split=ValidSplit(4), max_epochs=2).fit(X, y)
    assert seen == 2 * found.ages_.ages_.labels.tolist()  # the training part, in its order
    assert len(seen) < 2 * len(y)


def test_outputs_of_nan_do_not_count():
    class Broken(Small):
        def forward(self, X):
            return super().forward(X) * torch.nan

    with pytest.warns(UserWarning, match="NaN is none"):
        found = net(AgeOfLearning(margins="error", margin_steps=3), max_epochs=2).set_params(module=Broken).fit(X, y)
    assert found.ages_.margins_.offsets.tolist() == [0.0] * 3
    assert found.ages_.margins_.epoch == 6


def test_a_resumed_net_ends_as_one_that_did_not_stop(tmp_path):
    def aging():
        return AgeOfLearning(margins="error", gain=0.5, margin_steps=3)

    whole = net(aging(), max_epochs=6).fit(X, y)
    for _ in range(2):
        checkpoint = Checkpoint(monitor=None, f_ages="ages.pt", dirname=tmp_path)
        parts = net(aging(), checkpoint, LoadInitState(checkpoint), max_epochs=3).fit(X, y)
    assert_same(parts, whole)
    continued = net(aging(), max_epochs=3).fit(X, y).partial_fit(X, y)
    assert_same(continued, whole)
    assert_same(pickle.loads(pickle.dumps(net(aging(), max_epochs=3).fit(X, y))).partial_fit(X, y), whole)


class Stop(Callback):
    """Interrupts the second epoch after five batches."""

    def on_batch_end(self, net, **kwargs):
        if len(net.history) == 2 and len(net.history[-1, "batches"]) == 5:
            raise KeyboardInterrupt


def test_parameters_saved_within_an_epoch_go_on_as_the_net_that_saved_them(tmp_path):
    def begun(*more):
        return net(AgeOfLearning(margins="error", gain=0.5, margin_steps=3), *more)

    found = begun(Stop()).fit(X, y)
    assert found.ages_.margins_.epoch == 3 + 1
    assert int(found.ages_.margins_._count.sum()) == 2 * 16  # they wait for the next epoch
    files = {"f_params": tmp_path / "params.pt", "f_ages": tmp_path / "ages.pt"}
    found.save_params(**files)
    again = begun().initialize()
    again.ages_ = dict(again.callbacks_)["AgeOfLearning"]
    again.load_params(**files)
    for each in (found, again):
        each.partial_fit(X, y, epochs=2)
    assert_same(again, found)
    assert int(found.ages_.margins_._count.sum()) == 0


def test_settings_are_searched_and_cloned():
    aging = AgeOfLearning(rho=0.0, margins="error", margin_steps=3)
    assert clone(aging).get_params()["margin_steps"] == 3
    found = clone(net(aging, max_epochs=2))
    grid = {"callbacks__AgeOfLearning__margin_steps": np.array([1, 4]), "callbacks__AgeOfLearning__gain": [0.1, 0.5]}
    search = GridSearchCV(found, grid, cv=2, scoring="balanced_accuracy", error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 4
    found.set_params(callbacks__AgeOfLearning__margin_steps=None).fit(X, y)
    assert_same(found, net(AgeOfLearning(rho=0.0, margins="error"), max_epochs=2).fit(X, y))  # once per epoch
    assert found.ages_.margins_.epoch == 2
    assert found.set_params(callbacks__AgeOfLearning__margin_steps=4).fit(X, y).ages_.margins_.epoch == 4


def test_a_record_changes_nothing(tmp_path):
    both = [AgeOfLearning(margins="error", margin_steps=3, recorder=each) for each in (tmp_path / "run", None)]
    found, plain = (net(each, train_split=ValidSplit(4)).fit(X, y) for each in both)
    assert found.history[-1, "margin_largest"] == pytest.approx(float(found.ages_.margins_.offsets.max()))
    assert_same(found, plain)


class Silent(NeuralNetClassifier):
    def train_step(self, batch, **fit_params):
        return {"loss": super().train_step(batch, **fit_params)["loss"]}


def test_a_train_step_must_return_its_output():
    options = {"criterion": nn.CrossEntropyLoss, "train_split": None, "verbose": 0, "callbacks__valid_acc": None}
    found = Silent(Small, callbacks=[AgeOfLearning(margins="error", margin_steps=3)], **options)
    with pytest.raises(ValueError, match="y_pred"):
        found.fit(X, y)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"margin_steps": 5}, ValueError, "margin_steps needs margins"),
        ({"margins": "error", "margin_steps": 0}, ValueError, "margin_steps must be a whole number of 1 or more"),
        ({"margins": "error", "margin_steps": 2.5}, TypeError, "margin_steps must be a whole number of 1 or more"),
        ({"margins": "error", "margin_steps": True}, TypeError, "margin_steps must be a whole number of 1 or more"),
        ({"margins": aol.Margins(3, labels=y), "margin_steps": 5}, ValueError, "margins must be without labels"),
    ],
)
def test_bad_input_gets_one_clear_sentence(options, error, named):
    with pytest.raises(error, match=named) as caught:
        net(AgeOfLearning(**options)).fit(X, y)
    assert str(caught.value).endswith(".")
