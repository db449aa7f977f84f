"""Losses against loops, in full precision whatever autocast says; the weighted mean, its zeros and its parts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import aol
from tests.support import oracle

LOSSES = {
    "softmax": (aol.softmax_loss, oracle.softmax_loss),
    "sigmoid": (aol.sigmoid_loss, oracle.sigmoid_loss),
    "focal": (aol.focal_loss, lambda z, t: oracle.focal_loss(z, t, 1.0)),
    "focal-0.5": (lambda z, t: aol.focal_loss(z, t, gamma=0.5), lambda z, t: oracle.focal_loss(z, t, 0.5)),
    "focal-2": (lambda z, t: aol.focal_loss(z, t, gamma=2), lambda z, t: oracle.focal_loss(z, t, 2.0)),
}
every_loss = pytest.mark.parametrize("name", LOSSES)


def one_hot(label: int, classes: int) -> list[float]:
    return [float(k == label) for k in range(classes)]


def normal(*shape: int, seed: int = 0, scale: float = 3.0, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * scale


@every_loss
@given(data=st.data())
def test_a_loss_agrees_with_loops_on_hard_labels(name, data):
    library, loops = LOSSES[name]
    classes = data.draw(st.integers(1, 5))
    rows = data.draw(st.lists(st.lists(st.floats(-80, 80), min_size=classes, max_size=classes), min_size=1, max_size=4))
    labels = data.draw(st.lists(st.integers(0, classes - 1), min_size=len(rows), max_size=len(rows)))
    loss = library(torch.tensor(rows, dtype=torch.float64), torch.tensor(labels))
    wanted = [loops(z, one_hot(y, classes)) for z, y in zip(rows, labels, strict=True)]
    assert loss.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_a_loss_agrees_with_loops_on_soft_targets(name):
    library, loops = LOSSES[name]
    z, soft = normal(6, 4, dtype=torch.float64), normal(6, 4, seed=1, dtype=torch.float64).softmax(-1)
    wanted = [loops(row, target) for row, target in zip(z.tolist(), soft.tolist(), strict=True)]
    assert library(z, soft).tolist() == pytest.approx(wanted, rel=1e-10)


@every_loss
def test_mixup_is_the_same_as_mixing_the_losses(name):
    library, _ = LOSSES[name]
    z, a, b = normal(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1]), torch.tensor([1, 1, 0, 2, 2])
    soft = 0.3 * nn.functional.one_hot(a, 3).double() + 0.7 * nn.functional.one_hot(b, 3).double()
    torch.testing.assert_close(library(z, soft), 0.3 * library(z, a) + 0.7 * library(z, b))


@every_loss
def test_a_run_axis_gives_a_row_a_run(name):
    library, _ = LOSSES[name]
    z, label = normal(3, 5, 4), torch.tensor([[0, 1, 2, 3, 0], [1, 1, 1, 1, 1], [3, 2, 1, 0, 3]])
    soft = normal(3, 5, 4, seed=2).softmax(-1)
    for r in range(3):
        assert library(z, label)[r].equal(library(z[r], label[r]))
        assert library(z, label[0])[r].equal(library(z[r], label[0]))  # one batch for all runs
        assert library(z, soft)[r].equal(library(z[r], soft[r]))
        assert library(z, soft[0])[r].equal(library(z[r], soft[0]))
    assert library(z, label).shape == (3, 5)


@every_loss
def test_a_loss_is_float32_even_under_autocast(name):
    library, _ = LOSSES[name]
    z, label = normal(8, 4).to(torch.bfloat16), torch.arange(8) % 4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = library(z, label)
        mean = aol.weighted_mean(inside, torch.ones(8))
    assert inside.dtype == mean.dtype == torch.float32
    assert inside.equal(library(z.float(), label))
    assert mean.equal(aol.weighted_mean(inside, torch.ones(8)))


@every_loss
def test_gradients_are_right_in_float64(name):
    library, _ = LOSSES[name]
    z = normal(3, 4, dtype=torch.float64).requires_grad_()
    soft = normal(3, 4, seed=3, dtype=torch.float64).softmax(-1)
    weight = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    for target in (torch.tensor([0, 3, 1]), soft):
        assert torch.autograd.gradcheck(lambda x, t=target: aol.weighted_mean(library(x, t), weight), (z,))


@every_loss
def test_losses_and_gradients_of_huge_logits_are_finite(name):
    library, _ = LOSSES[name]
    z = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 50.0]], requires_grad=True)
    loss = library(z, torch.tensor([1, 1]))
    loss.sum().backward()
    assert loss.isfinite().all()
    assert z.grad.isfinite().all()


WITH_OFFSET = {"softmax": aol.softmax_loss, "sigmoid": aol.sigmoid_loss, "focal": aol.focal_loss}
OFFSET = torch.tensor([1.5, 0.0, -2.0, 0.5])


@pytest.mark.parametrize("name", WITH_OFFSET)
@pytest.mark.parametrize("soft", [True, False])
def test_an_offset_is_added_to_the_logits(name, soft):
    loss, z = WITH_OFFSET[name], normal(6, 4)
    target = normal(6, 4, seed=1).softmax(-1) if soft else torch.arange(6) % 4
    assert loss(z, target, offset=OFFSET).equal(loss(z + OFFSET, target))
    assert loss(z, target, offset=OFFSET.tolist()).equal(loss(z + OFFSET, target))
    assert loss(z, target, offset=None).equal(loss(z, target))
    wide = z.double() + OFFSET.double()
    assert loss(z.double(), target.double() if soft else target, offset=OFFSET).dtype == torch.float64
    torch.testing.assert_close(loss(z.double(), target, offset=OFFSET), loss(wide, target))


@pytest.mark.parametrize("name", WITH_OFFSET)
def test_an_offset_for_each_run_goes_to_its_run(name):
    loss, z, label = WITH_OFFSET[name], normal(3, 5, 4), torch.arange(5) % 4
    offset = normal(3, 4, seed=1)
    for r in range(3):
        assert loss(z, label, offset=offset)[r].equal(loss(z[r], label, offset=offset[r]))
        assert loss(z, label, offset=OFFSET)[r].equal(loss(z[r], label, offset=OFFSET))


@pytest.mark.parametrize("name", WITH_OFFSET)
def test_an_offset_gets_no_gradient_and_the_logits_get_the_right_one(name):
    loss, z, label = WITH_OFFSET[name], normal(3, 4).requires_grad_(), torch.tensor([0, 3, 1])
    offset = OFFSET.clone().requires_grad_()
    loss(z, label, offset=offset).sum().backward()
    shifted = (z.detach() + OFFSET).requires_grad_()
    loss(shifted, label).sum().backward()
    assert offset.grad is None
    assert z.grad.equal(shifted.grad)


def test_an_empty_batch_has_an_empty_loss():
    assert aol.softmax_loss(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).shape == (0,)
    loss = torch.zeros(0, requires_grad=True)
    for divide_by in ("weight", "count"):
        mean = aol.weighted_mean(loss, torch.zeros(0), divide_by=divide_by)
        mean.backward()
        assert mean.item() == 0.0


def test_the_bias_of_a_sigmoid_head_starts_at_odds_of_one_to_the_rest():
    assert 10 / (1 + math.exp(-aol.sigmoid_bias(10))) == pytest.approx(1.0)
    assert aol.sigmoid_bias(2) == 0.0


@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(0, 10) | st.just(0.0)), min_size=1, max_size=10))
def test_the_weighted_mean_agrees_with_loops(pairs):
    loss, weight = [x for x, _ in pairs], [w for _, w in pairs]
    for divide_by in ("weight", "count"):
        mean = aol.weighted_mean(
            torch.tensor(loss, dtype=torch.float64), torch.tensor(weight, dtype=torch.float64), divide_by=divide_by
        )
        assert mean.item() == pytest.approx(oracle.weighted_mean(loss, weight, divide_by), rel=1e-9, abs=1e-12)


def test_the_weighted_mean_of_runs_is_a_number_a_run():
    loss, weight = normal(3, 6), normal(3, 6, seed=1).abs()
    for divide_by in ("weight", "count"):
        together = aol.weighted_mean(loss, weight, divide_by=divide_by)
        assert together.shape == (3,)
        for r in range(3):
            torch.testing.assert_close(together[r], aol.weighted_mean(loss[r], weight[r], divide_by=divide_by))
            shared = aol.weighted_mean(loss, weight[0], divide_by=divide_by)[r]
            torch.testing.assert_close(shared, aol.weighted_mean(loss[r], weight[0], divide_by=divide_by))


@pytest.mark.parametrize("divide_by", ["weight", "count"])
@pytest.mark.parametrize("given_total", [True, False])
def test_a_total_weight_of_zero_gives_a_loss_and_gradients_of_zero(divide_by, given_total):
    loss, weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True), torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    total = aol.loss_total(weight, divide_by=divide_by) if given_total else None
    mean = aol.weighted_mean(loss, weight, divide_by=divide_by, total=total)
    mean.sum().backward()
    assert mean.tolist() == [0.0, 3.5]
    assert loss.grad.tolist() == [[0.0, 0.0], [0.5, 0.5]]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_sample_of_weight_zero_takes_no_part_even_if_its_loss_is_not_finite(bad):
    loss, weight = torch.tensor([bad, 2.0], requires_grad=True), torch.tensor([0.0, 4.0], requires_grad=True)
    mean = aol.weighted_mean(loss, weight)
    mean.backward()
    assert weight.grad is None
    assert mean.item() == 2.0
    assert loss.grad.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("divide_by", ["weight", "count"])
@pytest.mark.parametrize("name", ["softmax", "focal"])
def test_micro_batches_add_up_to_one_large_batch(divide_by, name):
    library, _ = LOSSES[name]
    x, label = normal(11, 6, dtype=torch.float64), torch.arange(11) % 3
    weight = normal(11, seed=5, dtype=torch.float64).abs()
    layer = nn.Linear(6, 3).double()
    aol.weighted_mean(library(layer(x), label), weight, divide_by=divide_by).backward()
    whole = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    parts = [slice(0, 4), slice(4, 5), slice(5, 5), slice(5, 11)]
    total = aol.loss_total([weight[part] for part in parts], divide_by=divide_by)
    for part in parts:
        aol.weighted_mean(library(layer(x[part]), label[part]), weight[part], total=total).backward()
    for one, many in zip(whole, (p.grad for p in layer.parameters()), strict=True):
        torch.testing.assert_close(many, one, rtol=1e-12, atol=1e-14)


def test_the_total_of_runs_is_a_number_a_run():
    parts = [torch.tensor([[1.0, 2.0], [0.0, 5.0]]), torch.tensor([[4.0], [1.0]])]
    assert aol.loss_total(parts).tolist() == [7.0, 6.0]
    assert aol.loss_total(parts, divide_by="count").tolist() == [3.0, 3.0]
    assert aol.loss_total(torch.tensor([1.0, 2.0])).item() == 3.0
    mean = aol.weighted_mean(torch.ones(2, 2), parts[0], total=aol.loss_total(parts))
    assert mean.tolist() == pytest.approx([3 / 7, 5 / 6])


@pytest.mark.parametrize("soft", [True, False])
def test_an_answer_is_right_when_its_logit_is_the_largest(soft):
    z = torch.tensor([[2.0, 1.0], [0.0, 3.0], [math.nan, 9.0], [1.0, 5.0]], requires_grad=True)
    target = torch.tensor([0, 0, 1, 1])
    target = nn.functional.one_hot(target, 2).float() if soft else target
    right = aol.is_correct(z, target)
    assert right.dtype == torch.bool
    assert right.tolist() == [True, False, False, True]
    assert aol.is_correct(z.expand(2, -1, -1), target)[1].tolist() == [True, False, False, True]


Z = torch.zeros(3, 2)
LABEL = torch.tensor([0, 1, 0])


@pytest.mark.parametrize("loss", [aol.softmax_loss, aol.is_correct])
@pytest.mark.parametrize(
    ("logits", "target", "error", "named"),
    [
        ([[0.0, 1.0]], LABEL, TypeError, "logits"),
        (torch.zeros(3, 2, dtype=torch.int64), LABEL, TypeError, "logits"),
        (torch.zeros(3), LABEL, TypeError, "logits"),
        (Z, torch.tensor([0, 1]), ValueError, "target"),
        (Z, torch.tensor([0, 2, 0]), IndexError, "target"),
        (Z, torch.tensor([0.0, 1.0, 0.0]), ValueError, "target"),
        (Z, torch.zeros(3, 3), ValueError, "target"),
        (Z, ["a", "b", "c"], TypeError, "target"),
        (torch.zeros(4, 3, 2), torch.zeros(4, dtype=torch.int64), ValueError, "target"),
    ],
)
def test_bad_logits_and_targets_are_named(loss, logits, target, error, named):
    with pytest.raises(error, match=named):
        loss(logits, target)


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: aol.focal_loss(Z, LABEL, gamma=-1.0), ValueError, "gamma"),
        (lambda: aol.focal_loss(Z, LABEL, gamma=math.inf), ValueError, "gamma"),
        (lambda: aol.weighted_mean([1.0], torch.ones(1)), TypeError, "loss"),
        (lambda: aol.weighted_mean(torch.ones(2, dtype=torch.int64), torch.ones(2)), TypeError, "loss"),
        (lambda: aol.weighted_mean(torch.ones(2), torch.ones(3)), ValueError, "weight"),
        (lambda: aol.weighted_mean(torch.ones(2), 1.0), ValueError, "weight"),
        (lambda: aol.weighted_mean(torch.ones(2), torch.ones(2), divide_by="sum"), ValueError, "divide_by"),
        (lambda: aol.weighted_mean(torch.ones(2), torch.ones(2), total=torch.ones(3)), ValueError, "total"),
        (lambda: aol.weighted_mean(torch.ones(2), torch.tensor([1.0, -1.0])), ValueError, "weight .* not -1"),
        (lambda: aol.loss_total([]), ValueError, "weights"),
        (lambda: aol.loss_total(torch.ones(2), divide_by="sum"), ValueError, "divide_by"),
        (lambda: aol.sigmoid_bias(1), ValueError, "num_classes"),
    ],
)
def test_bad_input_names_the_argument(call, error, named):
    with pytest.raises(error, match=named):
        call()


@pytest.mark.parametrize(
    ("logits", "offset", "error"),
    [
        (Z, torch.zeros(3), ValueError),
        (Z, torch.zeros(3, 2), ValueError),
        (torch.zeros(4, 3, 2), torch.zeros(3, 2), ValueError),
        (Z, "ab", TypeError),
    ],
)
def test_an_offset_of_another_shape_is_refused(logits, offset, error):
    with pytest.raises(error, match="offset"):
        aol.softmax_loss(logits, LABEL, offset=offset)


def test_targets_and_weights_may_be_lists():
    assert aol.softmax_loss(Z, [0, 1, 0]).equal(aol.softmax_loss(Z, LABEL))
    assert aol.weighted_mean(torch.tensor([1.0, 3.0]), [3.0, 1.0]).item() == 1.5
    assert aol.loss_total([[1.0, 2.0], torch.tensor([3.0])]).item() == 6.0


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ([[math.nan, 1.0]], "must lie in 0 to"),
        ([[-0.5, 1.5]], "must lie in 0 to"),
        ([[0.2, 0.2]], "the sum of soft targets"),
        ([[math.inf, 0.0]], "must lie in 0 to"),
    ],
)
def test_soft_targets_that_are_no_probabilities_are_refused(target, said):
    logits, soft = torch.zeros(1, 2), torch.tensor(target)
    with pytest.raises(ValueError, match=said):
        aol.softmax_loss(logits, soft)
    if "sum" not in said:
        for loss in (aol.sigmoid_loss, aol.is_correct):
            with pytest.raises(ValueError, match=said):
                loss(logits, soft)
    assert aol.softmax_loss(logits, torch.tensor([[0.9, 0.1]], dtype=torch.bfloat16)).isfinite()
    assert aol.sigmoid_loss(logits, torch.tensor([[1.0, 1.0]])).isfinite()
