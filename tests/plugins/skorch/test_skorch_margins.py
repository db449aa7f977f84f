"""Margins and static offsets in skorch against the same training by hand: criteria, splits, searches, resuming."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetBinaryClassifier
from skorch.callbacks import Callback, Checkpoint, LoadInitState, LRScheduler
from skorch.dataset import ValidSplit
from torch import nn

import aol
from aol.plugins.skorch import AgeOfLearning
from tests.support.plugin_checks import same_state
from tests.support.small_skorch import Small, net, parameters, skewed

X, y = skewed()
COUNTS = np.bincount(y)
OFFSET = aol.logit_offsets(COUNTS)


def made(kind: str, **options) -> aol.Margins:
    labels = None if kind == "pairs" else y
    return aol.Margins(3, labels=labels, signal="age" if kind == "pairs" else kind, **{"gain": 0.5, **options})


def by_hand(margins=None, offset=None, *, epochs=4, module=None, rate=lambda step: 1.0, rho=0.0):
    """Train with plain PyTorch; return the module."""
    module = Small() if module is None else module
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    ages, step, largest = aol.SampleAges(y, rho=rho), 0, 0.0
    for _ in range(epochs):
        for index in torch.arange(len(y)).split(16):
            lr = optimizer.param_groups[0]["lr"] = 0.3 * rate(step)
            largest, step = max(largest, lr), step + 1
            moved = module(torch.tensor(X)[index])
            moved = moved + (0 if offset is None else offset) + (0 if margins is None else margins.offsets)
            loss = nn.functional.cross_entropy(moved, torch.tensor(y)[index], reduction="none")
            optimizer.zero_grad()
            aol.weighted_mean(loss, ages.weight(index)).backward()
            optimizer.step()
        with torch.no_grad():
            logits = module(torch.tensor(X))
        answer = logits.argmax(1)
        ages.observe(range(len(y)), answer.numpy() == y)
        ages.advance()
        if margins is not None:
            told = logits.softmax(1) if margins.signal == "probability" else answer
            margins.observe(range(len(y)) if margins._labels is not None else y, told)
            margins.advance(scale=lr / largest)
    return module


def assert_near(found, module):
    wanted = torch.cat([each.detach().flatten() for each in module.parameters()]).tolist()
    assert parameters(found) == pytest.approx(wanted, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("rho", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["age", "error", "pairs", "probability"])
def test_margins_train_as_by_hand(kind, rho):
    given = made(kind) if kind == "pairs" else kind
    found = net(AgeOfLearning(rho=rho, margins=given, gain=0.5)).fit(X, y)
    mine = made(kind)
    assert_near(found, by_hand(mine, rho=rho))
    assert same_state(found.ages_.margins_, mine) or kind == "probability"  # which rounding changes
    torch.testing.assert_close(found.ages_.margins_.offsets, mine.offsets, atol=1e-4, rtol=1e-4)
    assert mine.offsets.abs().max() > 0.1
    if kind == "pairs":
        assert given.epoch == 0  # the net has its own copy


@pytest.mark.parametrize("offset", ["counts", OFFSET, OFFSET.tolist()])
def test_a_static_offset_trains_as_by_hand(offset):
    found = net(AgeOfLearning(rho=0.0, offset=offset)).fit(X, y)
    assert_near(found, by_hand(offset=OFFSET))
    assert found.ages_.margins_ is None


def test_offset_and_margins_add():
    found = net(AgeOfLearning(rho=0.0, offset="counts", tau=0.5, margins="age", gain=0.5)).fit(X, y)
    assert_near(found, by_hand(made("age"), OFFSET / 2))


class Probabilities(Small):
    def forward(self, X):
        return super().forward(X).softmax(-1)


def test_log_probabilities_are_logits_too():
    """skorch's default criterion: the module returns probabilities, the criterion sees their logarithm."""
    found = net(AgeOfLearning(rho=0.0, offset="counts", margins="age", gain=0.5), criterion=nn.NLLLoss)
    found.set_params(module=Probabilities).fit(X, y)
    assert_near(found, by_hand(made("age"), OFFSET))


class OneLogit(Small):
    def forward(self, X):
        return super().forward(X)[:, 0]


def test_one_logit_gets_the_difference_of_two_offsets():
    two = (y > 0).astype(np.int64)
    options = {"batch_size": -1, "train_split": None, "max_epochs": 3, "lr": 0.3, "verbose": 0}
    aging = AgeOfLearning(rho=0.0, offset="counts", margins="error")
    found = NeuralNetBinaryClassifier(OneLogit, callbacks=[aging], **options).fit(X, two.astype(np.float32))
    margins, module = aol.Margins(2, labels=two, signal="error"), OneLogit()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    for _ in range(3):
        both = aol.logit_offsets(np.bincount(two)) + margins.offsets
        logit, target = module(torch.tensor(X)), torch.tensor(two)
        optimizer.zero_grad()
        nn.functional.cross_entropy(torch.stack([torch.zeros_like(logit), logit], 1) + both, target).backward()
        optimizer.step()
        margins.observe(range(len(y)), (module(torch.tensor(X)) > 0).long())
        margins.advance()
    assert_near(found, module)
    assert same_state(found.ages_.margins_, margins)


def test_validation_and_prediction_use_the_logits_alone():
    seen = {True: [], False: []}

    class Look(Callback):
        def on_batch_end(self, net, batch=None, training=False, loss=None, y_pred=None, **kwargs):
            plain = nn.functional.cross_entropy(y_pred.detach(), torch.as_tensor(batch[1]))
            seen[training].append(float(loss.detach() - plain))

    found = net(AgeOfLearning(rho=0.0, offset=[3.0, 0.0, -3.0]), Look(), train_split=ValidSplit(4)).fit(X, y)
    assert max(map(abs, seen[False])) < 1e-6
    assert min(map(abs, seen[True])) > 1e-2
    with torch.no_grad():
        logits = found.module_(torch.tensor(X))
    assert found.forward(X) == pytest.approx(logits)
    assert float(found.get_loss(logits, torch.tensor(y))) == pytest.approx(
        float(nn.functional.cross_entropy(logits, torch.tensor(y)))
    )


@pytest.mark.parametrize("first", [True, False])
def test_the_gain_follows_the_learning_rate_of_the_last_batch(first):
    def rate(step):
        return min(1.0, (step + 1) / 5) * 0.9**step

    schedule = LRScheduler(torch.optim.lr_scheduler.LambdaLR, lr_lambda=rate, step_every="batch")
    aging = AgeOfLearning(rho=0.0, margins="age", gain=0.5)
    found = net(*((aging, schedule) if first else (schedule, aging))).fit(X, y)
    mine = made("age")
    assert_near(found, by_hand(mine, rate=rate))
    assert same_state(found.ages_.margins_, mine)


def test_classes_without_samples_have_no_offset():
    """The module knows five classes, and one of three stays in the training part: their offsets are zero."""
    found = net(AgeOfLearning(margins="age", offset="counts"), module__classes=5, max_epochs=2).fit(X, y)
    assert found.ages_.margins_.offsets.shape == (5,)


@pytest.mark.parametrize("margins", ["age", "error"])
def test_a_resumed_net_ends_as_one_that_did_not_stop(margins, tmp_path):
    whole = net(AgeOfLearning(margins=margins, gain=0.5), max_epochs=6).fit(X, y)
    for _ in range(2):
        checkpoint = Checkpoint(monitor=None, f_ages="ages.pt", dirname=tmp_path)
        aging = AgeOfLearning(margins=margins, gain=0.5)
        parts = net(aging, checkpoint, LoadInitState(checkpoint), max_epochs=3).fit(X, y)
    assert parameters(parts) == parameters(whole)
    assert same_state(parts.ages_.margins_, whole.ages_.margins_)
    assert same_state(parts.ages_.ages_, whole.ages_.ages_)


def test_parameters_that_are_loaded_bring_their_margins(tmp_path):
    found = net(AgeOfLearning(margins="age", gain=0.5), max_epochs=3).fit(X, y)
    found.save_params(f_params=tmp_path / "params.pt", f_ages=tmp_path / "ages.pt")
    again = net(AgeOfLearning(margins="age", gain=0.5)).initialize()
    again.ages_ = dict(again.callbacks_)["AgeOfLearning"]
    again.load_params(f_params=tmp_path / "params.pt", f_ages=tmp_path / "ages.pt")
    for each in (found, again):
        each.partial_fit(X, y, epochs=2)
    assert same_state(again.ages_.margins_, found.ages_.margins_)
    assert parameters(again) == parameters(found)


def test_ages_that_were_saved_without_margins_are_loaded_alone(tmp_path):
    net(AgeOfLearning(), max_epochs=3).fit(X, y).save_params(f_ages=tmp_path / "ages.pt")
    found = net(AgeOfLearning(margins="age")).initialize()
    found.ages_ = dict(found.callbacks_)["AgeOfLearning"]
    found.load_params(f_ages=tmp_path / "ages.pt")
    found.partial_fit(X, y, epochs=2)
    assert (found.ages_.ages_.epoch, found.ages_.margins_.epoch) == (5, 2)


def test_fit_starts_anew_and_partial_fit_goes_on():
    found = net(AgeOfLearning(margins="age")).fit(X, y)
    first = found.ages_.margins_.offsets
    assert found.fit(X, y).ages_.margins_.epoch == 4
    assert torch.equal(found.ages_.margins_.offsets, first)
    assert found.partial_fit(X, y).ages_.margins_.epoch == 8
    with pytest.warns(UserWarning, match="other samples than before"):
        found.partial_fit(X[:90], y[:90])
    assert found.ages_.margins_.epoch == 4


def test_settings_are_searched_and_cloned():
    found = clone(net(AgeOfLearning(rho=0.0), train_split=ValidSplit(4, stratified=True), max_epochs=2))
    grid = {"callbacks__AgeOfLearning__margins": ["age", None], "callbacks__AgeOfLearning__offset": ["counts", None]}
    search = GridSearchCV(found, grid, cv=2, scoring="balanced_accuracy").fit(X, y)
    assert len(search.cv_results_["params"]) == 4


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"margins": "counts"}, ValueError, "margins must be one of"),
        ({"margins": 0.5}, TypeError, "margins must be an aol.Margins"),
        ({"margins": aol.Margins(3, labels=y)}, ValueError, "margins must be without labels"),
        ({"offset": "error"}, ValueError, "offset must be one of"),
        ({"offset": [0.0, torch.nan, 0.0]}, ValueError, "offset must hold one finite number"),
        ({"offset": [0.0] * 4}, ValueError, "must return logits of 4 classes or more"),
        ({"gain": -1.0}, ValueError, "gain must"),
        ({"tau": -1.0}, ValueError, "tau must"),
    ],
)
def test_bad_input_gets_one_clear_sentence(options, error, named):
    with pytest.raises(error, match=named) as caught:
        net(AgeOfLearning(**options)).fit(X, y)
    assert str(caught.value).endswith(".")
