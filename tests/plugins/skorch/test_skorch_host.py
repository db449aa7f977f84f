"""The host's conventions: searches, clones, pipelines, checkpoints, partial_fit, and trainings that break off."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, Checkpoint, EarlyStopping, LoadInitState, TrainEndCheckpoint
from skorch.dataset import ValidSplit
from torch import nn

from aol.plugins.skorch import AgeOfLearning, IndexedLoader
from tests.support.small_skorch import aged, net, parameters, skewed

X, y = skewed()


def ages_of(found):
    return found.ages_.ages_


def assert_alike(one, two):
    assert parameters(one) == parameters(two)
    assert torch.equal(ages_of(one).age, ages_of(two).age)
    assert torch.equal(ages_of(one).ema, ages_of(two).ema)
    assert ages_of(one).epoch == ages_of(two).epoch


def test_a_grid_search_reaches_the_callback():
    grid = {"callbacks__AgeOfLearning__rho": [0.0, 0.5], "callbacks__AgeOfLearning__level": ["class", "sample"]}
    search = GridSearchCV(aged(iterator_train=IndexedLoader, max_epochs=2), grid, cv=2, error_score="raise")
    search.fit(X, y)
    best = search.best_estimator_
    assert float(ages_of(best).rho) == search.best_params_["callbacks__AgeOfLearning__rho"]
    assert ages_of(best).num_samples == len(y)


def test_it_works_in_a_pipeline_and_as_a_class():
    found = make_pipeline(StandardScaler(), net(AgeOfLearning)).fit(X, y)
    assert ages_of(found[-1]).epoch == 4


def test_parameters_are_those_of_the_constructor():
    callback = AgeOfLearning(rho=0.3)
    found = net(callback).fit(X, y)
    offsets = {"margins": None, "offset": None, "gain": 0.1, "tau": 1.0, "recorder": None, "margin_steps": None}
    assert callback.get_params() == {"rho": 0.3, "level": "class", "fuse": "ema", **offsets}
    assert clone(found).get_params()["callbacks"][0].get_params() == callback.get_params()
    assert not hasattr(clone(found), "ages_")
    found.set_params(callbacks__AgeOfLearning__rho=0.9)
    assert float(ages_of(found.fit(X, y)).rho) == pytest.approx(0.9)


def test_fit_begins_anew_and_partial_fit_goes_on():
    whole = aged(max_epochs=6).fit(X, y)
    parts = aged(max_epochs=3).fit(X, y)
    assert_alike(parts.partial_fit(X, y), whole)
    first = aged(max_epochs=3).fit(X, y)
    assert_alike(first.fit(X, y), aged(max_epochs=3).fit(X, y))


def test_partial_fit_with_other_samples_starts_anew_and_says_so():
    found = aged(max_epochs=3).fit(X, y)
    with pytest.warns(UserWarning, match="other samples than before: their ages start anew"):
        found.partial_fit(X[::2], y[::2])
    assert ages_of(found).num_samples == 60
    assert ages_of(found).epoch == 3


@pytest.mark.parametrize("level", ["class", "sample"])
def test_a_checkpoint_restores_the_ages_exactly(tmp_path, level):
    kind = {"level": level, "iterator_train": IndexedLoader, "optimizer__momentum": 0.9}
    whole = aged(max_epochs=6, **kind).fit(X, y)
    kept = Checkpoint(monitor=None, f_ages="ages.pt", dirname=str(tmp_path / "run"))
    aged(kept, max_epochs=3, **kind).fit(X, y)
    assert (tmp_path / "run" / "ages.pt").exists()
    again = Checkpoint(monitor=None, f_ages="ages.pt", dirname=str(tmp_path / "run"))
    found = aged(again, LoadInitState(again), max_epochs=3, **kind).fit(X, y)
    assert_alike(found, whole)
    assert len(found.history) == 6


def test_a_checkpoint_at_the_end_of_training_restores_the_ages_too(tmp_path):
    whole = aged(max_epochs=4).fit(X, y)
    for _ in range(2):
        kept = TrainEndCheckpoint(f_ages="ages.pt", dirname=str(tmp_path / "run"))
        found = aged(kept, LoadInitState(kept), max_epochs=2).fit(X, y)
    assert_alike(found, whole)


def test_the_best_checkpoint_brings_back_its_own_ages(tmp_path):
    kept = Checkpoint(monitor="valid_loss_best", f_ages="ages.pt", dirname=str(tmp_path / "run"), load_best=True)
    found = aged(kept, max_epochs=8, lr=1.0, train_split=ValidSplit(3, stratified=True)).fit(X, y)
    best = max(i for i, saved in enumerate(found.history[:, "event_cp"]) if saved) + 1
    assert best < 8  # otherwise nothing was tested
    assert ages_of(found).epoch == best


def test_saved_parameters_restore_the_ages_in_another_net(tmp_path):
    files = {f"f_{name}": str(tmp_path / f"{name}.pt") for name in ("params", "optimizer", "ages")}
    first = aged(max_epochs=3).fit(X, y)
    first.save_params(**files, f_history=str(tmp_path / "history.json"))
    found = aged(max_epochs=3).initialize()
    found.ages_ = dict(found.callbacks_)["AgeOfLearning"]
    found.load_params(**files, f_history=str(tmp_path / "history.json"))
    found.save_params(f_ages=str(tmp_path / "again.pt"))  # before any training: what was loaded is handed on
    assert_alike(found.partial_fit(X, y), aged(max_epochs=6).fit(X, y))
    loaded = torch.load(tmp_path / "again.pt", weights_only=True)
    assert torch.equal(loaded["ema"], torch.load(tmp_path / "ages.pt", weights_only=True)["ema"])


def test_ages_of_other_samples_or_settings_are_refused(tmp_path):
    aged().fit(X, y).save_params(f_ages=str(tmp_path / "ages.pt"))
    for words, data, reason in (
        ({}, (X[:50], y[:50]), "its num_samples is 120"),
        ({"rho": 0.1}, (X, y), "its rho is"),
        ({"fuse": "mean"}, (X, y), "its fuse is 'ema'"),
    ):
        found = aged(**words).initialize()
        found.ages_ = dict(found.callbacks_)["AgeOfLearning"]
        found.load_params(f_ages=str(tmp_path / "ages.pt"))
        for _ in range(2):  # also the second time: nothing starts anew in silence
            with pytest.raises(ValueError, match=f"{reason}|These ages were saved after 4 epochs, the history after"):
                found.partial_fit(*data)


def test_ages_of_another_epoch_or_with_a_flipped_bit_are_refused(tmp_path):
    class Each(Callback):
        def on_epoch_end(self, net, **kwargs):
            folder = tmp_path / str(len(net.history))
            folder.mkdir()
            net.save_params(**{f"f_{name}": str(folder / name) for name in ("params", "history", "ages")})

    def resumed(ages):
        found = aged().initialize()
        found.ages_ = dict(found.callbacks_)["AgeOfLearning"]
        found.load_params(f_params=tmp_path / "3" / "params", f_history=tmp_path / "3" / "history", f_ages=ages)
        return found.partial_fit(X, y, epochs=1)

    whole = aged(Each()).fit(X, y)
    assert torch.equal(ages_of(resumed(tmp_path / "3" / "ages")).ema, ages_of(whole).ema)
    with pytest.raises(ValueError, match="after 2 epochs, the history after 3"):
        resumed(tmp_path / "2" / "ages")
    state = torch.load(tmp_path / "3" / "ages", weights_only=True)
    state["ema"][0, 0] += 0.25
    torch.save(state, tmp_path / "flipped")
    with pytest.raises(ValueError, match="damaged"):
        resumed(tmp_path / "flipped")


@pytest.mark.parametrize("kept", [Checkpoint(f_ages="ages.pt"), Checkpoint(f_pickle="net.pkl")])
def test_a_checkpoint_that_would_keep_old_ages_is_refused(kept):
    with pytest.raises(ValueError, match="AgeOfLearning must stand before Checkpoint among the callbacks"):
        net(kept, AgeOfLearning()).fit(X, y)


@pytest.mark.parametrize("level", ["class", "sample"])
def test_a_compiled_net_trains_alike(level):
    words = {"level": level, "iterator_train": IndexedLoader}
    compiled = aged(compile=True, compile__backend="aot_eager", **words).fit(X, y)
    plain = aged(**words).fit(X, y)
    assert parameters(compiled) == pytest.approx(parameters(plain), abs=1e-5)
    assert torch.equal(ages_of(compiled).age, ages_of(plain).age)


def test_two_of_them_on_one_net_are_refused():
    with pytest.raises(ValueError, match="callbacks must hold one AgeOfLearning at most, not one and two"):
        net(("one", AgeOfLearning()), ("two", AgeOfLearning())).fit(X, y)


def test_a_checkpoint_without_ages_may_stand_anywhere(tmp_path):
    kept = Checkpoint(monitor=None, dirname=str(tmp_path))
    assert ages_of(net(kept, AgeOfLearning()).fit(X, y)).epoch == 4


@pytest.mark.parametrize("through", [lambda found: pickle.loads(pickle.dumps(found)), copy.deepcopy])
def test_a_pickle_and_a_copy_go_on_alike(through):
    first = aged(max_epochs=3).fit(X, y)
    twin = through(first)
    assert_alike(twin.partial_fit(X, y), first.partial_fit(X, y))
    assert twin.ages_ is dict(twin.callbacks_)["AgeOfLearning"]


def test_a_pickle_from_the_middle_of_training_goes_on_alike(tmp_path):
    kept = Checkpoint(monitor=in_the_third_epoch, f_pickle="net.pkl", dirname=str(tmp_path))
    aged(kept, max_epochs=5).fit(X, y)
    found = pickle.loads((tmp_path / "net.pkl").read_bytes())
    found.set_params(max_epochs=2)
    assert_alike(found.partial_fit(X, y), aged(max_epochs=5).fit(X, y))


def in_the_third_epoch(found):
    return len(found.history) == 3


class Stop(Callback):
    """Breaks off in a batch of an epoch."""

    def __init__(self, error=RuntimeError, epoch=3):
        self.error = error
        self.epoch = epoch

    def on_grad_computed(self, net, *args, **kwargs):
        if len(net.history) == self.epoch:
            raise self.error


def hooks(criterion):
    return [*criterion._forward_hooks, *criterion._forward_pre_hooks, *criterion._forward_hooks_always_called]


def test_a_training_that_breaks_off_leaves_no_weights_behind():
    criterion = nn.CrossEntropyLoss()
    broken = aged(Stop(), criterion=criterion)
    with pytest.raises(RuntimeError):
        broken.fit(X, y)
    assert criterion.reduction == "mean"
    # The same object serves another net, a copy of the broken one, and the broken one itself.
    assert hooks(criterion) == []
    assert parameters(net(criterion=criterion).fit(X, y)) == parameters(net().fit(X, y))
    for found in (clone(broken), pickle.loads(pickle.dumps(broken)), broken):
        found.set_params(callbacks__Stop__epoch=None)
        assert parameters(found.fit(X, y)) == parameters(aged().fit(X, y))
        assert hooks(found.criterion_) == []


def test_a_training_that_breaks_off_can_go_on_with_its_ages():
    broken = aged(Stop(epoch=3), max_epochs=3)
    with pytest.raises(RuntimeError):
        broken.fit(X, y)
    assert ages_of(broken).epoch == 2
    dict(broken.callbacks_)["Stop"].epoch = None  # set_params would start all callbacks anew, as skorch does
    broken.partial_fit(X, y)
    assert ages_of(broken).epoch == 5
    assert hooks(broken.criterion_) == []


def test_a_training_stopped_from_the_keyboard_can_go_on():
    found = aged(Stop(KeyboardInterrupt)).fit(X, y)
    assert ages_of(found).epoch == 2
    assert hooks(found.criterion_) == []
    dict(found.callbacks_)["Stop"].epoch = None
    found.partial_fit(X, y)
    assert ages_of(found).epoch == 6


def test_the_criterion_is_left_as_it_was():
    criterion = nn.CrossEntropyLoss()
    found = aged(criterion=criterion).fit(X, y)
    assert found.criterion_ is criterion
    assert hooks(criterion) == []
    assert criterion.reduction == "mean"


def test_a_criterion_keeps_its_own_parameters_and_hooks():
    class Learned(nn.CrossEntropyLoss):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, logits, target):
            return super().forward(logits * self.scale, target)

    calls = []
    criterion = Learned()
    criterion.register_forward_hook(lambda *_: calls.append(1))
    found = aged(criterion=criterion, max_epochs=3, batch_size=-1).fit(X, y)
    assert found.criterion_.scale.item() != 1.0
    assert found.criterion_.scale is criterion.scale
    assert len(calls) == 3


def test_a_criterion_gets_further_arguments_of_a_get_loss_of_ones_own():
    class Scaled(nn.CrossEntropyLoss):
        def forward(self, logits, target, scale, *, shift=0.0):
            return super().forward(logits, target) * scale + shift

    class Own(NeuralNetClassifier):
        def get_loss(self, y_pred, y_true, *args, **kwargs):
            return self.criterion_(y_pred, y_true, 1.0, shift=0.0)

    found = aged(max_epochs=2)
    own = Own(**{**found.get_params(deep=False), "criterion": Scaled}).fit(X, y)
    assert parameters(own) == pytest.approx(parameters(found.fit(X, y)))


def test_a_criterion_is_in_the_mode_of_its_batch():
    modes = []

    class Noting(nn.CrossEntropyLoss):
        def forward(self, logits, target):
            modes.append(self.training)
            return super().forward(logits, target)

    aged(criterion=Noting, train_split=ValidSplit(3), batch_size=len(y), max_epochs=3).fit(X, y)
    assert modes == [True, False] * 3


def test_partial_fit_goes_on_with_settings_that_were_changed(tmp_path):
    found = aged(rho=0.5).fit(X, y)
    callback, other = found.ages_, copy.deepcopy(found)
    callback.rho, callback.offset, callback.recorder = 0.1, "counts", tmp_path
    found.partial_fit(X, y, epochs=2)
    other.partial_fit(X, y, epochs=2)
    assert float(ages_of(found).rho) == pytest.approx(0.1)
    assert ages_of(found).epoch == ages_of(other).epoch == 6
    assert parameters(found) != parameters(other)
    assert (tmp_path / "run.json").exists()


def test_a_criterion_that_fails_keeps_its_reduction():
    found = aged(max_epochs=2).fit(X, y)
    callback = found.ages_
    callback._attach(found)
    callback.weight_ = torch.ones(4)
    with pytest.raises((IndexError, RuntimeError)):
        found.criterion_(torch.zeros(4, 3), torch.tensor([0, 1, 2, 9]))
    assert found.criterion_.reduction == "mean"


def test_early_stopping_and_a_new_criterion_on_the_way_do_no_harm():
    class Change(Callback):
        def on_epoch_end(self, net, **kwargs):
            if len(net.history) == 2:
                net.set_params(criterion__label_smoothing=0.1)

    found = aged(Change(), EarlyStopping(patience=2), max_epochs=6, train_split=ValidSplit(3, stratified=True))
    found.fit(X, y)
    assert ages_of(found).epoch == len(found.history)
    assert hooks(found.criterion_) == []


def test_there_are_no_ages_before_the_first_epoch():
    with pytest.raises(AttributeError, match="no ages before the first epoch"):
        _ = AgeOfLearning().class_age


def test_class_ages_and_weights_are_at_hand():
    found = aged().fit(X, y)
    assert torch.equal(found.ages_.class_age, ages_of(found).class_age)
    assert found.ages_.class_weight.mean() == pytest.approx(1.0)
    assert int(found.ages_.class_age.argmax()) == 2
