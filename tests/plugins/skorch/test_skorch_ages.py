"""What the callback does to training, against the same training by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skorch import NeuralNetBinaryClassifier, NeuralNetRegressor
from skorch.callbacks import Callback, EpochScoring
from skorch.dataset import Dataset, ValidSplit
from torch import nn
from torch.utils.data import Subset, TensorDataset

from aol.plugins.skorch import AgeOfLearning, IndexedLoader, _weighted
from tests.support.small_skorch import Small, aged, by_hand, net, parameters, skewed

X, y = skewed()


def assert_near(found, module):
    wanted = torch.cat([each.detach().flatten() for each in module.parameters()]).tolist()
    assert parameters(found) == pytest.approx(wanted, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("rho", [0.25, 1.0])
@pytest.mark.parametrize("level", ["class", "sample"])
def test_training_agrees_with_training_by_hand(rho, level):
    module, history, used = by_hand(X, y, epochs=4, rho=rho, level=level)
    found = aged(rho=rho, level=level, iterator_train=IndexedLoader).fit(X, y)
    assert found.ages_.ages_.age.tolist() == [ages[-1] for ages in history]
    assert np.ptp(used) > 0.3  # otherwise nothing was tested
    assert_near(found, module)
    plain, _, _ = by_hand(X, y, epochs=4, rho=0.0, level=level)
    with pytest.raises(AssertionError):
        assert_near(found, plain if rho else module)


def test_class_level_needs_no_special_loader():
    one, two = aged().fit(X, y), aged(iterator_train=IndexedLoader).fit(X, y)
    assert parameters(one) == parameters(two)


def test_rho_zero_is_plain_training_to_the_last_bit():
    assert parameters(aged(rho=0.0).fit(X, y)) == parameters(net().fit(X, y))


def test_the_first_epoch_is_plain_training_to_the_last_bit():
    assert parameters(aged(max_epochs=1).fit(X, y)) == parameters(net(max_epochs=1).fit(X, y))


def test_the_criterions_own_weights_stay():
    own = [0.5, 1.0, 3.0]
    module, _, _ = by_hand(X, y, epochs=4, rho=0.5, level="class", class_weight=own)
    assert_near(aged(criterion__weight=torch.tensor(own)).fit(X, y), module)


def test_samples_to_ignore_take_no_part():
    holes = y.copy()
    holes[::6] = 2
    kept = holes != 2
    found = aged(criterion__ignore_index=2, batch_size=-1).fit(X, holes)
    ages, target = found.ages_.ages_, torch.tensor(holes)
    with torch.no_grad():
        logits = found.module_(torch.tensor(X))
        each = nn.functional.cross_entropy(logits, target, ignore_index=2, reduction="none")
        weight = ages.class_weight[target]
        callback = found.ages_
        callback.weight_ = weight
        callback._attach(found)
        loss = found.criterion_(logits, target)
    assert float(loss) == pytest.approx(float((weight * each)[kept].sum() / weight[kept].sum()), rel=1e-5)


def test_training_is_weighed_and_validation_is_not():
    seen = {True: [], False: []}

    class Look(Callback):
        def on_batch_end(self, net, batch=None, training=False, loss=None, y_pred=None, **kwargs):
            plain = nn.functional.cross_entropy(y_pred.detach(), torch.as_tensor(batch[1]))
            seen[training].append(float(loss.detach() - plain))

    aged(Look(), train_split=ValidSplit(4, stratified=True), max_epochs=3).fit(X, y)
    assert max(map(abs, seen[False])) < 1e-6
    assert max(map(abs, seen[True])) > 1e-2


def test_only_the_training_part_has_ages_and_the_loader_counts_in_it():
    split = ValidSplit(4, stratified=True)
    found = aged(level="sample", iterator_train=IndexedLoader, iterator_train__shuffle=True, train_split=split).fit(
        X, y
    )
    part, _ = split(Dataset(X, y), y)
    assert found.ages_.ages_.num_samples == len(part) == 90
    right = found.predict(X[part.indices]) == y[part.indices]
    assert np.array_equal(found.ages_.ages_.age.numpy() == 1, right)


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_say_which_samples_they_hold(workers):
    loader = IndexedLoader(Subset(Dataset(X, y), range(10, 50)), batch_size=7, shuffle=True, num_workers=workers)
    places = []
    for batch in loader:
        xi, yi = batch
        assert torch.equal(xi, torch.tensor(X)[10:][batch.samples])
        assert torch.equal(yi, torch.tensor(y)[10:][batch.samples])
        places += batch.samples.tolist()
    assert sorted(places) == list(range(40))


def test_a_collate_function_of_ones_own_sees_items_as_they_were():
    def collate(items):
        return torch.stack([torch.as_tensor(x) for x, _ in items]) * 0, torch.tensor([y for _, y in items])

    batch = next(iter(IndexedLoader(Dataset(X, y), batch_size=5, collate_fn=collate)))
    assert torch.equal(batch[0], torch.zeros(5, 5))
    assert torch.equal(batch[1], torch.tensor(y[:5]))


class Weighted(net().__class__):
    """Sample weights among the features, the way skorch's own documentation does it."""

    def get_loss(self, y_pred, y_true, X, *args, **kwargs):
        return (super().get_loss(y_pred, y_true, X, *args, **kwargs) * X["sample_weight"]).mean()


class TakesWeight(Small):
    def forward(self, X, sample_weight=None):
        return super().forward(X)


def test_sample_weights_among_the_features_multiply():
    kind = {"criterion": nn.CrossEntropyLoss, "criterion__reduction": "none", "max_epochs": 3, "lr": 0.3}
    kind |= {"batch_size": -1, "train_split": None, "verbose": 0}
    given = np.random.default_rng(0).uniform(0.5, 2.0, len(y)).astype(np.float32)
    found = Weighted(TakesWeight, callbacks=[AgeOfLearning(rho=1.0)], **kind)
    found.fit({"X": X, "sample_weight": given}, y)
    module, weight = TakesWeight(), torch.ones(len(y))
    history = [1.0] * len(y)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    for _ in range(3):
        loss = nn.functional.cross_entropy(module(torch.tensor(X)), torch.tensor(y), reduction="none")
        optimizer.zero_grad()
        (loss * weight / weight.mean() * torch.tensor(given)).mean().backward()
        optimizer.step()
        right = module(torch.tensor(X)).argmax(1).numpy() == y
        history = [1.0 if answer else age + 1 for age, answer in zip(history, right, strict=True)]
        mean = torch.tensor([np.mean(np.array(history)[y == c]) for c in range(3)], dtype=torch.float32)
        weight = mean[torch.tensor(y)]
    assert_near(found, module)


def test_two_classes_with_one_logit():
    class One(Small):
        def forward(self, X):
            return super().forward(X)[:, 0]

    truth = (y > 0).astype(np.float32)
    kind = {"module__classes": 1, "max_epochs": 3, "lr": 0.3, "verbose": 0, "train_split": None, "batch_size": -1}
    found = NeuralNetBinaryClassifier(One, callbacks=[AgeOfLearning(rho=1.0)], threshold=0.3, **kind).fit(X, truth)
    assert np.array_equal(found.ages_.ages_.age.numpy() == 1, found.predict(X) == truth)
    plain = NeuralNetBinaryClassifier(One, **kind).fit(X, truth)
    assert parameters(found) != parameters(plain)


@pytest.mark.parametrize("kind", ["skorch", "tensors", "items"])
def test_data_sets_bring_their_own_labels(kind):
    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return len(y)

        def __getitem__(self, i):
            return X[i], y[i]

    data = {"skorch": Dataset(X, y), "tensors": TensorDataset(torch.tensor(X), torch.tensor(y)), "items": Items()}[kind]
    assert parameters(aged().fit(data, y=None)) == pytest.approx(parameters(aged().fit(X, y)), abs=1e-6)


def test_the_history_has_a_column_for_the_oldest_class():
    found = aged(EpochScoring("accuracy", on_train=True)).fit(X, y)
    column = found.history[:, "class_age"]
    assert len(column) == 4
    assert column[-1] == pytest.approx(float(found.ages_.class_age.max()))


def test_mean_fusion_reaches_the_ages():
    found = aged(fuse="mean", max_epochs=2).fit(X, y)
    assert found.ages_.ages_.fuse == "mean"


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_are_reduced_as_the_criterion_would_have_done(reduction):
    loss, weight = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([1.0, 1.0, 4.0])
    found = _weighted(loss, weight, reduction)
    assert found.tolist() == pytest.approx({"mean": 27 / 6, "sum": 27.0, "none": [0.5, 1.0, 12.0]}[reduction])
    even = _weighted(loss, torch.ones(3), reduction)
    assert even.tolist() == pytest.approx({"mean": 3.0, "sum": 9.0, "none": [1.0, 2.0, 6.0]}[reduction])


def test_losses_of_several_numbers_a_sample_count_as_their_mean():
    loss = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    assert float(_weighted(loss, torch.tensor([1.0, 3.0]), "mean")) == pytest.approx((2 + 18) / 4)
    assert _weighted(loss, torch.tensor([0.5, 1.5]), "none").tolist() == [[0.5, 1.5], [7.5, 10.5]]


def test_a_loss_that_is_one_number_gets_one_clear_sentence():
    with pytest.raises(ValueError, match="must give one loss for each of 2 samples"):
        _weighted(torch.tensor(3.0), torch.ones(2), "mean")


class NoReduction(nn.Module):
    def forward(self, logits, target):
        return nn.functional.cross_entropy(logits, target)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"rho": 2.0}, r"rho must be a number in \[0, 1\], not 2.0"),
        ({"level": "batch"}, "level must be one of 'class', 'sample', not 'batch'"),
        ({"fuse": "sum"}, "fuse must be one of 'ema', 'mean', 'peak', not 'sum'"),
        ({"criterion": NoReduction}, "needs a criterion with a reduction.*NoReduction has none"),
        ({"level": "sample"}, "give the net iterator_train=aol.plugins.skorch.IndexedLoader"),
    ],
)
def test_wrong_settings_get_one_clear_sentence(words, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        aged(**words).fit(X, y)


def test_labels_that_are_no_classes_get_one_clear_sentence():
    found = NeuralNetRegressor(
        Small, module__classes=1, callbacks=[AgeOfLearning()], verbose=0, train_split=None, max_epochs=1
    )
    with pytest.raises(TypeError, match="y must hold one class for each sample, 0 to C - 1"):
        found.fit(X, X[:, :1])
