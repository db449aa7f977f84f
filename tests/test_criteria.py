"""The losses as modules: cross-entropy in all that they share with it, and against loops written from the equations."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import aol
from aol import criteria
from tests.support.checks import strange
from tests.support.naive_training import Naive, rate_of
from tests.support.tiny_runs import make_loop, network, same_network, settings, tiny_pair

C = 4
LOSSES = {
    "counts": lambda **more: aol.LogitAdjustedLoss(C, **more),
    "memory": lambda **more: aol.LogitAdjustedLoss(C, memory=20.0, **more),
    "margins": lambda **more: aol.MarginLoss(C, every=2, **more),
    "ages": lambda **more: aol.AgeWeightedLoss(C, every=8, **more),
    "ages of a watch": lambda **more: aol.AgeWeightedLoss(ages=watched(), **more),
}
LEARNING = {name: make for name, make in LOSSES.items() if name != "ages of a watch"}
ADJUSTED = ("counts", "memory", "margins")
every_loss = pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)
every_learning_loss = pytest.mark.parametrize("make", LEARNING.values(), ids=LEARNING)


def watched(level: str = "class", epochs: int = 3) -> aol.SampleAges:
    ages = aol.SampleAges(torch.arange(24) % C, rho=0.4, level=level)
    generator = torch.Generator().manual_seed(5)
    for _ in range(epochs):
        ages.observe(range(24), torch.rand(24, generator=generator) < 0.5 - 0.1 * (torch.arange(24) % C))
        ages.advance()
    return ages


def batch(seed: int = 0, size: int = 12, more: tuple[int, ...] = (), kind: str = "hard"):
    """Return logits that favour class 0, and a target: class indices, some ignored (-100), or soft targets."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(size, C, *more, generator=generator)
    logits[:, 0] += 1
    label = (C * torch.rand(size, *more, generator=generator) ** 2).long()
    if kind == "ignored":
        label[::3] = -100
    if kind == "soft":
        label = torch.rand(size, C, *more, generator=generator).pow(3)
        label = label / label.sum(1, keepdim=True)
    return logits.requires_grad_(), label


def trained(make, steps: int = 5, **more):
    criterion = make(**more)
    for step in range(steps):
        criterion(*batch(100 + step))
    return criterion


def state(criterion: nn.Module) -> dict[str, list]:
    return {name: value.tolist() for name, value in criterion.state_dict().items()}


# The semantics of cross-entropy


def oracle(criterion: nn.Module, logits, target, reduction: str = "mean", **more):
    """The loss from the offsets or weights that the criterion has now, by PyTorch's own loss on rows."""
    rows = logits.movedim(1, -1).reshape(-1, C)
    soft = target.is_floating_point()
    flat = target.movedim(1, -1).reshape(-1, C) if soft else target.reshape(-1)
    if not isinstance(criterion, aol.AgeWeightedLoss):
        losses = F.cross_entropy(rows + criterion.offsets, flat, reduction="none", **more)
        weight = torch.ones(len(rows)) if soft else (flat != -100).float()
    else:
        losses = F.cross_entropy(rows, flat, reduction="none", **more)
        weight = (flat @ criterion.class_weight) if soft else criterion.class_weight[flat.clamp(min=0)] * (flat != -100)
    if reduction == "none":
        return (weight * losses).view(logits[:, 0].shape)
    return (weight * losses).sum() / (weight.sum() if reduction == "mean" else 1)


@pytest.mark.parametrize("kind", ["hard", "ignored", "soft"])
@pytest.mark.parametrize("more", [(), (3,), (2, 4)], ids=["[B, C]", "[B, C, 3]", "[B, C, 2, 4]"])
@every_loss
def test_training_loss_and_gradient_are_cross_entropy_of_adjusted_logits_or_weighted(make, more, kind) -> None:
    for reduction, smoothing in (("mean", 0.0), ("sum", 0.2), ("none", 0.1)):
        criterion = trained(make, reduction=reduction, label_smoothing=smoothing)
        logits, target = batch(1, more=more, kind=kind)
        before = copy.deepcopy(criterion)
        loss = criterion(logits, target)
        # Counts include the batch at hand; margins and ages are those from before it.
        known = criterion if hasattr(criterion, "counts") and hasattr(criterion, "offsets") else before
        wanted = oracle(known, logits, target, reduction, label_smoothing=smoothing)
        torch.testing.assert_close(loss, wanted)
        seen = torch.rand(loss.shape)
        ours, theirs = (torch.autograd.grad((value * seen).sum(), logits)[0] for value in (loss, wanted))
        torch.testing.assert_close(ours, theirs)


@every_loss
def test_an_unbatched_sample_counts_like_a_batch_of_one(make) -> None:
    for target, batched in ((torch.tensor(1), torch.tensor([1])), (torch.tensor([0, 0.5, 0.5, 0]),) * 2):
        one, two = trained(make), trained(make)
        logits, _ = batch(3, size=1)
        batched = batched if batched.dim() == 1 and not batched.is_floating_point() else batched[None]
        torch.testing.assert_close(one(logits[0], target), two(logits, batched))
        assert state(one) == state(two)


@pytest.mark.parametrize("quiet", ["eval", "no_grad", "inference_mode"])
@every_loss
def test_in_evaluation_it_is_plain_cross_entropy_and_learns_nothing(make, quiet) -> None:
    criterion = trained(make, label_smoothing=0.1)
    before = copy.deepcopy(state(criterion))
    logits, target = batch(2, kind="ignored")
    plain = F.cross_entropy(logits, target, label_smoothing=0.1)
    if quiet == "eval":
        assert criterion.eval()(logits, target).equal(plain)
        assert not criterion.train()(logits, target).equal(plain)
        assert state(criterion) != before or make is LOSSES["ages of a watch"]
        return
    with getattr(torch, quiet)():
        assert criterion(logits, target).equal(plain)
    assert state(criterion) == before


@every_loss
def test_another_index_is_ignored_as_well(make) -> None:
    ours, wanted = make(ignore_index=2), make()
    for step in range(4):
        logits, target = batch(step, more=(2,))
        target = torch.where(target == 2, 3, target)
        target[::4] = -100
        named = torch.where(target == -100, 2, target)
        torch.testing.assert_close(ours(logits, named), wanted(logits, target))
    assert state(ours) == state(wanted)


@every_loss
def test_labels_may_be_bytes_as_for_cross_entropy(make) -> None:
    ours, wanted = make(), make()
    for step in range(3):
        logits, target = batch(step, size=C)  # as many as classes: a mask of them would fit
        torch.testing.assert_close(ours(logits, target.to(torch.uint8)), wanted(logits, target))
    assert state(ours) == state(wanted)


@pytest.mark.parametrize("make", [aol.LogitAdjustedLoss, aol.MarginLoss, aol.AgeWeightedLoss])
def test_the_number_of_classes_may_be_a_numpy_integer(make) -> None:
    assert aol.MarginLoss(C, every=np.int64(3)).every == 3
    assert type(make(np.array([0, 3]).max() + 1).num_classes) is int


@every_learning_loss
def test_evaluation_of_the_model_does_not_reach_the_criterion(make) -> None:
    model, criterion = nn.Linear(3, C), make()
    model.eval()
    criterion(model(torch.randn(5, 3)), torch.tensor([0, 0, 0, 1, 2]))
    assert state(criterion) != state(make())


@every_loss
def test_all_ignored_and_empty_batches_teach_nothing_and_have_no_gradient(make) -> None:
    criterion = trained(make)
    offsets = criterion.offsets if hasattr(criterion, "offsets") else criterion.class_weight
    for size, target in ((3, torch.full((3,), -100)), (0, torch.zeros(0, dtype=torch.int64))):
        weight = torch.randn(2, C, requires_grad=True)
        loss = criterion(torch.randn(size, 2) @ weight, target)
        assert loss.isnan()  # as of cross-entropy
        criterion.reduction = "sum"
        criterion(torch.randn(size, 2) @ weight, target).backward()
        criterion.reduction = "mean"
        assert not weight.grad.any()
    if make is not LOSSES["margins"]:  # which move once more
        assert (criterion.offsets if hasattr(criterion, "offsets") else criterion.class_weight).equal(offsets)


# The state


@every_learning_loss
def test_a_saved_state_goes_on_as_if_never_stopped(make) -> None:
    file = io.BytesIO()
    ahead = trained(make)
    torch.save(ahead.state_dict(), file)
    file.seek(0)
    resumed = make()
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for other in (resumed, copy.deepcopy(ahead), pickle.loads(pickle.dumps(ahead))):
        assert state(other) == state(ahead)
        reference = copy.deepcopy(ahead)
        for step in range(4):
            assert other(*batch(step)).equal(reference(*batch(step)))
        assert state(other) == state(reference)


def test_the_state_is_part_of_the_state_dict_of_a_module_that_has_it() -> None:
    model = nn.ModuleDict({"net": nn.Linear(2, C), "loss": aol.LogitAdjustedLoss(C)})
    assert "loss.counts" in model.state_dict()
    assert [name for name, _ in model.named_parameters() if "loss" in name] == []
    ages = watched()
    assert not state(aol.AgeWeightedLoss(ages=ages))  # which the watch saves


@every_learning_loss
def test_half_and_double_do_not_round_the_state(make) -> None:
    criterion = trained(make)
    before = {name: (value.dtype, value.tolist()) for name, value in criterion.named_buffers()}
    for cast in (criterion.half(), criterion.to(torch.bfloat16), criterion.double()):
        assert {name: (value.dtype, value.tolist()) for name, value in cast.named_buffers()} == before


@every_loss
def test_low_precision_and_autocast_adjust_and_count_in_float32(make) -> None:
    logits, target = batch(4, size=200)
    rounded = logits.detach().to(torch.bfloat16)
    full, low, mixed = trained(make), trained(make), trained(make)
    wanted = full(rounded.float().requires_grad_(), target)
    assert low(rounded.requires_grad_(), target).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(mixed(rounded, target), wanted)
    assert state(low) == state(full) == state(mixed)
    double = trained(make)(logits.detach().double().requires_grad_(), target)
    assert double.dtype == torch.float64


@every_learning_loss
def test_an_overflow_that_a_gradient_scaler_skips_leaves_no_nan(make) -> None:
    criterion = trained(make)
    logits, target = batch(5)
    criterion(torch.full_like(logits, torch.inf).requires_grad_(), target)
    assert criterion(logits, target).isfinite()
    assert criterion(logits, target).isfinite()


@pytest.mark.parametrize(
    "make", [*LOSSES.values(), lambda: aol.AgeWeightedLoss(ages=watched("sample"))], ids=[*LOSSES, "samples of a watch"]
)
def test_one_graph_serves_fifty_calls(make) -> None:
    torch._dynamo.reset()
    compiled, eager, waiting = make(), make(), []
    # This backend divides forward and backward passes as the default one does, without a C++ compiler.
    step = torch.compile(lambda *given: compiled(*given), fullgraph=True, backend="aot_eager_decomp_partition")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in range(50):
            logits, target = batch(seed)
            index = torch.randint(24, target.shape, generator=torch.Generator().manual_seed(seed))
            given = (logits, target, index)[: 3 if isinstance(eager, aol.AgeWeightedLoss) else 2]
            losses = step(*given), eager(*given)
            torch.testing.assert_close(*losses)
            waiting.append((losses, logits))
            for losses, logits in waiting[:-1]:  # backward after the next forward, as a loss of two batches does it
                torch.testing.assert_close(*(torch.autograd.grad(loss, logits) for loss in losses))
            del waiting[:-1]
            if (ages := getattr(compiled, "ages", None)) is not None and seed % 20 == 3:
                for watch in (ages, eager.ages):
                    watch.observe(range(24), torch.arange(24) % 5 > 0)
                    watch.advance()
    for ours, theirs in zip(compiled.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", ["hard", "soft"])
@every_learning_loss
def test_the_state_follows_the_logits_to_their_device_and_no_value_is_read(make, kind) -> None:
    """On tensors without values: reading one, as a synchronisation of a GPU does, raises an error."""
    criterion = trained(make)
    with torch.device("meta"):
        logits = torch.empty(6, C, 2, requires_grad=True)
        target = torch.empty(6, C, 2) if kind == "soft" else torch.empty(6, 2, dtype=torch.int64)
    for _ in range(3):
        loss = criterion(logits, target)
    assert {loss.device.type, *(value.device.type for value in criterion.buffers())} == {"meta"}


@every_learning_loss
def test_a_call_on_two_devices_fails_and_moves_no_state(make) -> None:
    criterion, (logits, target) = trained(make), batch()
    before = state(criterion)
    with pytest.raises(RuntimeError, match="device"):
        criterion(logits.to("meta"), target)
    assert state(criterion) == before


@pytest.mark.parametrize(("name", "numbers"), [("counts", C), ("memory", C), ("margins", 3 * C), ("ages", 2 * C)])
def test_a_training_call_sends_a_few_vectors_once_and_evaluation_nothing(name, numbers, monkeypatch) -> None:
    sent: list[int] = []
    for does, value in (("is_initialized", True), ("get_world_size", 2)):
        monkeypatch.setattr(criteria.dist, does, lambda value=value: value)
    monkeypatch.setattr(criteria.dist, "all_reduce", lambda value: sent.append(value.numel()))
    criterion = LOSSES[name]()
    for more, kind in (((), "hard"), ((2, 3), "soft"), ((), "ignored")):
        criterion(*batch(more=more, kind=kind))
    assert sent == [numbers] * 3
    criterion.eval()(*batch())
    aol.LogitAdjustedLoss(C, counts=[3] * C)(*batch())
    assert sent == [numbers] * 3


@pytest.mark.parametrize("make", [aol.LogitAdjustedLoss, aol.MarginLoss, aol.AgeWeightedLoss])
def test_a_hundred_thousand_classes_take_a_few_vectors(make) -> None:
    criterion = make(100_000)
    logits = torch.zeros(2, 100_000, requires_grad=True)
    for _ in range(2):
        assert criterion(logits, torch.tensor([0, 99_999])).isfinite()
    assert sum(value.numel() for value in criterion.buffers()) <= 7 * 100_000 + 1


# Labels as they come


def test_labels_are_counted_as_they_come_the_batch_included() -> None:
    criterion, seen = aol.LogitAdjustedLoss(C), np.zeros(C)
    for step in range(6):
        logits, target = batch(step, kind=["hard", "ignored"][step % 2])
        seen += np.bincount(target[target >= 0], minlength=C)
        loss = criterion(logits, target)
        assert criterion.counts.tolist() == seen.tolist()
        log = np.log(np.maximum(seen, 1))
        assert criterion.offsets.tolist() == pytest.approx(log - log.mean(), abs=1e-6)
        torch.testing.assert_close(loss, F.cross_entropy(logits + torch.tensor(log), target), check_dtype=False)


def test_micro_batches_count_what_their_batch_counts() -> None:
    whole, parts = aol.LogitAdjustedLoss(C), aol.LogitAdjustedLoss(C)
    logits, target = batch(size=12)
    whole(logits, target)
    offsets = []
    for rows in range(0, 12, 4):
        parts(logits[rows : rows + 4], target[rows : rows + 4])
        offsets.append(parts.offsets)
    assert state(parts) == state(whole)
    assert offsets[-1].equal(whole.offsets)
    assert not offsets[0].equal(offsets[1])  # inside of a step the offsets move


def test_mixup_counts_each_sample_once() -> None:
    label, other = torch.tensor([0, 0, 1]), torch.tensor([1, 0, 3])
    mixed = 0.7 * F.one_hot(label, C).float() + 0.3 * F.one_hot(other, C)
    counted, margins, ages = aol.LogitAdjustedLoss(C), aol.MarginLoss(C), aol.AgeWeightedLoss(C)
    for criterion in (counted, margins, ages):
        criterion(torch.zeros(3, C, requires_grad=True), mixed)
    for counts in (counted.counts, margins.sums[0]):
        assert counts.tolist() == pytest.approx([1.7, 1.0, 0.0, 0.3])
    assert ages.counts[0].tolist() == [2, 1, 0, 0]  # by the larger part: an answer is right or wrong


def test_memory_is_an_average_over_about_so_many_labels() -> None:
    criterion, counts, memory = aol.LogitAdjustedLoss(C, memory=50.0), np.zeros(C), 50.0
    for step in range(30):
        logits, target = batch(step, size=1 + step % 7)
        criterion(logits, target)
        new, number = np.bincount(target, minlength=C), len(target)
        keep = math.exp(-number / memory)
        counts = keep * counts + (1 - keep) * memory * new / number
        assert criterion.counts.tolist() == pytest.approx(counts, rel=1e-5)
    for _ in range(30):  # the head moves
        criterion(torch.zeros(20, C, requires_grad=True), torch.full((20,), 3))
    assert criterion.counts.tolist() == pytest.approx([0, 0, 0, 50], abs=0.01)
    assert criterion.offsets[3] == pytest.approx(0.75 * math.log(50), abs=1e-3)


def test_a_class_that_has_not_come_yet_counts_as_seen_once() -> None:
    criterion = aol.LogitAdjustedLoss(3)
    criterion(torch.zeros(6, 3, requires_grad=True), torch.tensor([0] * 5 + [1]))
    assert criterion.offsets[2] == criterion.offsets[1] < criterion.offsets[0]
    assert aol.LogitAdjustedLoss(3).offsets.tolist() == [0, 0, 0]
    given = aol.logit_offsets([100, 10, 1, 0])
    assert given[3] == given[2] == given.min()
    assert given.equal(aol.logit_offsets([100, 10, 1, 1]))
    shares = aol.logit_offsets([0.9, 0.1, 0.0])  # of shares too, an absent class is never above a rare one
    assert shares[2] == shares[1]


def test_known_counts_stay_and_agree_with_logit_offsets() -> None:
    counts = torch.tensor([1000, 100, 10, 0])
    criterion = aol.LogitAdjustedLoss(C, counts=counts, tau=1.5)
    torch.testing.assert_close(criterion.offsets, aol.logit_offsets(counts, 1.5))
    logits, target = batch()
    loss = criterion(logits, target)
    torch.testing.assert_close(loss, aol.softmax_loss(logits, target, offset=aol.logit_offsets(counts, 1.5)).mean())
    assert criterion.counts.tolist() == counts.tolist()


@pytest.mark.parametrize("name", ADJUSTED)
def test_with_prior_adds_what_training_adds(name) -> None:
    criterion = trained(LOSSES[name])
    for shape in ((C,), (5, C), (5, C, 3), (5, C, 3, C)):  # a last dimension of C is no class dimension
        logits = torch.randn(shape)
        added = (criterion.with_prior(logits) - logits).movedim(min(1, len(shape) - 1), -1)
        torch.testing.assert_close(added, criterion.offsets.expand(added.shape), rtol=1e-4, atol=1e-5)
    assert criterion.offsets.sum().abs() < 1e-5


def test_with_prior_calibrates_for_the_prior_of_training() -> None:
    generator = torch.Generator().manual_seed(0)
    label = (torch.rand(4000, generator=generator) < 0.1).long()
    x = torch.randn(4000, 1, generator=generator) + 1.5 * label[:, None]
    model, criterion = nn.Linear(1, 2), aol.LogitAdjustedLoss(2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=50)

    def closure():
        optimizer.zero_grad()
        loss = criterion(model(x), label)
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        alone, with_prior = model(x).softmax(1)[:, 1], criterion.with_prior(model(x)).softmax(1)[:, 1]
    assert with_prior.mean() == pytest.approx(0.1, abs=0.005)
    assert alone.mean() > 0.2  # for classes that are equally frequent


@every_learning_loss
def test_a_single_logit_is_a_pair_with_zero(make) -> None:
    logit, label = torch.randn(20), torch.tensor([0] * 15 + [1] * 5)
    criterion = type(make())(2)
    pair = F.pad(logit[:, None], (1, 0)).requires_grad_()
    criterion.eval()
    wanted = F.binary_cross_entropy_with_logits(logit, label.float())
    torch.testing.assert_close(criterion(pair, label), wanted)
    if isinstance(criterion, aol.LogitAdjustedLoss):
        criterion.train()
        adjusted = F.binary_cross_entropy_with_logits(logit - math.log(3), label.float())
        torch.testing.assert_close(criterion(pair, label), adjusted)


# Margins


def margins_by_hand(batches, every: int, tau: float, gain=0.1, rho=0.2, few=2.0) -> np.ndarray:
    offset, moving, pending = np.zeros(C), np.zeros((3, C)), np.zeros((3, C))
    for call, (logits, target) in enumerate(batches, 1):
        z = logits.detach().double().numpy() + (tau - 1) * offset
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        seen = np.maximum(moving[0] + pending[0], 1)
        new = np.zeros((3, C))
        for share, label in zip(p, target.tolist(), strict=True):
            if label == -100:
                continue
            new[0, label] += 1
            new[1, label] += 1 - share[label]
            for other in range(C):
                new[2, other] += share[other] / seen[label] * (other != label)
        pending += new
        if call % every == 0:
            moving, pending = (1 - rho) * moving + pending, np.zeros((3, C))
            number, missed, claimed = moving
            small = few * (missed.sum() / number.sum() + 0.01)
            offset = offset - gain * np.log((missed + small) / (claimed * number + small))
            offset -= offset.mean()
    return offset


@pytest.mark.parametrize(("every", "tau"), [(1, 1.0), (3, 1.0), (2, 1.5), (2, 0.0)])
def test_margins_against_a_loop_over_samples(every, tau) -> None:
    batches = [batch(step, kind="ignored") for step in range(12)]
    criterion = aol.MarginLoss(C, every=every, tau=tau)
    for logits, target in batches:
        criterion(logits, target)
    wanted = margins_by_hand(batches, every, tau)
    assert np.abs(wanted).max() > 0.05
    assert criterion.offset.tolist() == pytest.approx(wanted, abs=1e-5)
    assert criterion.offsets.tolist() == pytest.approx(tau * wanted, abs=1e-5)


def test_soft_targets_of_one_class_move_margins_as_its_index_does() -> None:
    hard, soft = aol.MarginLoss(C, every=1), aol.MarginLoss(C, every=1)
    for step in range(4):
        logits, target = batch(step, more=(2,))
        hard(logits, target)
        soft(logits, F.one_hot(target, C).movedim(-1, 1).float())
    torch.testing.assert_close(hard.offsets, soft.offsets)


def test_margins_find_the_prior_of_a_calibrated_model_and_nothing_on_balanced_classes() -> None:
    prior = torch.tensor([0.6, 0.25, 0.1, 0.05])
    generator = torch.Generator().manual_seed(0)
    for frequency, wanted in ((prior, prior.log() - prior.log().mean()), (torch.full((C,), 0.25), torch.zeros(C))):
        criterion = aol.MarginLoss(C, every=1)
        for _ in range(150):
            label = torch.multinomial(frequency, 256, replacement=True, generator=generator)
            evidence = torch.randn(256, C, generator=generator) + 1.5 * F.one_hot(label, C)
            # What a calibrated network trained with these offsets answers without them.
            criterion((1.5 * evidence + frequency.log() - criterion.offsets).requires_grad_(), label)
        assert criterion.offsets.tolist() == pytest.approx(wanted.tolist(), abs=0.25)


# Ages


def online_by_hand(batches, rho: float, threshold, every: int):
    """The paper's equations 12 to 14, 4 and 5, 8 and 11, sample by sample; update once `every` labels have come."""
    age, ema, weight, losses = [1] * C, None, [1.0] * C, []
    right, seen = [0] * C, [0] * C
    for logits, target in batches:
        above = below = 0.0
        for row, label in zip(logits.detach().double(), target.tolist(), strict=True):
            if label == -100:
                continue
            above += weight[label] * float(row.logsumexp(0) - row[label])
            below += weight[label]
            seen[label] += 1
            right[label] += int(row.argmax()) == label
        losses.append(above / below)
        if sum(seen) < every:
            continue
        accuracy = {c: right[c] / seen[c] for c in range(C) if seen[c]}
        tau = float(np.median(list(accuracy.values()))) if isinstance(threshold, str) else threshold
        if threshold == "positive-median":
            tau = max(tau, 1e-30)
        for c, value in accuracy.items():
            age[c] = age[c] + 1 if value < tau else 1
        ema = [(1 - rho) * m + rho * a for m, a in zip(ema or age, age, strict=True)]
        weight = [m / (sum(ema) / C) for m in ema] if rho else [1.0] * C
        right, seen = [0] * C, [0] * C
    return losses, age, weight


@pytest.mark.parametrize(
    ("rho", "threshold", "every"),
    [(0.5, "median", 8), (0.3, "positive-median", 30), (1.0, 0.4, 1), (0.0, "median", 20)],
)
def test_online_ages_against_a_loop_over_the_equations(rho, threshold, every) -> None:
    batches = [batch(step, size=3 + step % 9, kind="ignored") for step in range(25)]
    criterion = aol.AgeWeightedLoss(C, rho=rho, threshold=threshold, every=every)
    losses = [criterion(*given).item() for given in batches]
    wanted, age, weight = online_by_hand(batches, rho, threshold, every)
    assert losses == pytest.approx(wanted, rel=1e-5)
    assert criterion.age.tolist() == age
    assert criterion.class_weight.tolist() == pytest.approx(weight, rel=1e-5)
    assert criterion.class_weight.mean() == pytest.approx(1)


def test_online_ages_are_those_of_class_ages_advanced_after_as_many_labels() -> None:
    criterion, ages = aol.AgeWeightedLoss(C, rho=0.3, every=36), aol.ClassAges(C, rho=0.3)
    for step, (logits, target) in enumerate(batch(seed, size=12) for seed in range(30)):
        criterion(logits, target)
        ages.observe(target, logits.argmax(1) == target)
        if step % 3 == 2:
            ages.advance()
            assert criterion.age.tolist() == ages.age.tolist()
            torch.testing.assert_close(criterion.class_weight, ages.class_weight)
    assert criterion.age.max() > 1


def test_by_default_ages_wait_for_twenty_labels_a_class() -> None:
    criterion = aol.AgeWeightedLoss(C)
    logits = F.one_hot(torch.zeros(79, dtype=torch.int64), C).float().requires_grad_()
    criterion(logits, torch.arange(79) % C)
    assert criterion.age.tolist() == [1] * C
    criterion(logits[:1], torch.tensor([0]))
    assert criterion.age.tolist() == [1] * C  # a median accuracy of 0: nobody is below it
    low = aol.AgeWeightedLoss(C, threshold="positive-median")
    low(torch.cat((logits, logits[:1])), torch.arange(80) % C)
    assert low.age.tolist() == [1, 2, 2, 2]


@pytest.mark.parametrize("level", ["class", "sample"])
def test_ages_of_a_watch_weight_the_loss_by_equation_11(level) -> None:
    ages = watched(level)
    criterion = aol.AgeWeightedLoss(ages=ages)
    index = torch.tensor([5, 0, 17, 23, 5])
    logits, target = torch.randn(5, C, requires_grad=True), ages.labels[index]
    for _ in range(2):
        weight = (ages.sample_weight if level == "sample" else ages.class_weight[ages.labels])[index]
        wanted = aol.weighted_mean(aol.softmax_loss(logits, target), weight)
        torch.testing.assert_close(criterion(logits, target, index), wanted)
        ages.observe(range(24), torch.arange(24) % 3 > 0)
        ages.advance()  # the next epoch has the next weights


def test_weights_of_samples_go_to_all_their_pixels_and_to_soft_targets() -> None:
    ages = watched("sample")
    index = torch.tensor([3, 8])
    for kind in ("ignored", "soft"):
        logits, target = batch(size=2, more=(2, 3), kind=kind)
        losses = aol.AgeWeightedLoss(ages=ages, reduction="none")(logits, target, index)
        plain = F.cross_entropy(logits, target, reduction="none")
        torch.testing.assert_close(losses, plain * ages.weight(index)[:, None, None])


def test_ages_of_samples_in_a_loop_give_the_weights_of_the_paper() -> None:
    """Offline: a model is trained and observed for a few epochs; ages and weights by equations 2 to 6 and 8."""
    generator = torch.Generator().manual_seed(0)
    label = torch.tensor([0] * 30 + [1] * 12 + [2] * 6 + [3] * 4)
    x = torch.randn(len(label), 5, generator=generator) + F.one_hot(label, 5)
    ages = aol.SampleAges(label, rho=0.3)
    criterion, model = aol.AgeWeightedLoss(ages=ages), nn.Linear(5, C)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    age, ema = np.ones(len(label)), None
    for _ in range(6):
        loss = criterion(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            right = model(x).argmax(1) == label
        ages.observe(range(len(label)), right)
        ages.advance()
        age = np.where(right, 1, age + 1)
        ema = age.copy() if ema is None else 0.7 * ema + 0.3 * age
        by_class = np.array([ema[label == c].mean() for c in range(C)])
        assert criterion.class_weight.tolist() == pytest.approx(by_class / by_class.mean(), rel=1e-5)
    assert by_class.max() > 1


@pytest.mark.parametrize(
    "given",
    [
        {"weighting": "aol"},
        {"weighting": "aol", "level": "sample"},
        {"weighting": "aol-seen"},
        {"margin": "counts-seen", "tau": 1.5},
        {"margin": "counts-seen", "margin_memory": 30},
        {"margin": "probability-seen", "margin_steps": 2, "tau": 1.5},
    ],
    ids=str,
)
def test_a_plain_loop_with_the_loss_trains_the_network_of_the_lab(given) -> None:
    run = settings(rho=0.5, **given)
    loop = make_loop([run])
    while not loop.done:
        loop.run_epoch()
    naive = Naive(run, tiny_pair())  # for the same images, order and initial network
    label, everything = torch.tensor(naive.labels), range(len(naive.pool))
    ages = aol.SampleAges(label, rho=0.5, level=run.level)
    criterion = {
        "aol": lambda: aol.AgeWeightedLoss(ages=ages),
        "aol-seen": lambda: aol.AgeWeightedLoss(3),
        "counts-seen": lambda: aol.LogitAdjustedLoss(3, tau=run.tau, memory=run.margin_memory),
        "probability-seen": lambda: aol.MarginLoss(3, tau=run.tau, every=run.margin_steps),
    }[run.margin if run.weighting == "none" else run.weighting]()
    optimizer = torch.optim.SGD(naive.net.parameters(), momentum=run.momentum, weight_decay=run.weight_decay)
    for epoch in range(run.epochs):
        steps = torch.tensor(naive.order(epoch, [1.0] * len(label))).split(run.batch_size)
        for step, index in enumerate(steps):
            naive.net.train()
            optimizer.param_groups[0]["lr"] = rate_of(run, epoch * len(steps) + step, len(steps))
            logits = naive.net(naive.images(naive.pair.train, [naive.pool[i] for i in index]))
            used = criterion.offsets if run.margin == "probability-seen" else None
            loss = criterion(logits, label[index], *[index] * (run.level == "sample"))
            used = criterion.offsets if run.margin == "counts-seen" else used
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ages.observe(everything, naive.right(naive.pair.train, naive.pool))
        ages.advance()
    same_network(network(loop, 0), naive.net.state_dict())
    assert loop.ages.age[0].equal(ages.age)
    if used is not None:
        torch.testing.assert_close(loop.history.by_class("offset")[-1, 0].float(), used)
        assert used.abs().max() > 0.05


# What is refused


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: aol.LogitAdjustedLoss(0), "num_classes"),
        (lambda: aol.LogitAdjustedLoss(4.0), "num_classes"),
        (lambda: aol.LogitAdjustedLoss(True), "num_classes"),
        (lambda: aol.LogitAdjustedLoss(C, tau=-1), "tau"),
        (lambda: aol.LogitAdjustedLoss(C, memory=0), "memory"),
        (lambda: aol.LogitAdjustedLoss(C, memory=np.array([1, 2])), "memory"),
        (lambda: aol.LogitAdjustedLoss(C, label_smoothing="x"), "label_smoothing"),
        (lambda: aol.LogitAdjustedLoss(C, counts=[1] * C, memory=9), "memory"),
        (lambda: aol.LogitAdjustedLoss(C, counts=[1, 2]), "counts"),
        (lambda: aol.LogitAdjustedLoss(2, counts=[0.9, 0.1]), "counts"),
        (lambda: aol.LogitAdjustedLoss(2, counts=[math.inf, 1]), "counts"),
        (lambda: aol.LogitAdjustedLoss(C, reduction="average"), "reduction"),
        (lambda: aol.MarginLoss(C, every=0), "every"),
        (lambda: aol.MarginLoss(C, tau=math.nan), "tau"),
        (lambda: aol.AgeWeightedLoss(), "num_classes or ages"),
        (lambda: aol.AgeWeightedLoss(C, ages=watched()), "num_classes or ages"),
        (lambda: aol.AgeWeightedLoss(C, rho=1.5), "rho"),
        (lambda: aol.AgeWeightedLoss(C, threshold="low"), "threshold"),
        (lambda: aol.AgeWeightedLoss(C, threshold=2), "threshold"),
        (lambda: aol.AgeWeightedLoss(C, every=0), "every"),
        (lambda: aol.AgeWeightedLoss(ages=aol.SampleAges([0, 1], rho=[0.1, 0.2])), "ages"),
        (lambda: aol.AgeWeightedLoss(ages=watched("sample"))(*batch()), "index"),
        (lambda: aol.AgeWeightedLoss(ages=watched("sample"))(*batch(), torch.tensor([1])), "index"),  # would broadcast
        (lambda: aol.AgeWeightedLoss(ages=watched("sample"))(*batch(), torch.arange(2)), "index"),
        (lambda: aol.AgeWeightedLoss(ages=aol.ClassAges(C)), "ages must be SampleAges"),
        (lambda: aol.LogitAdjustedLoss(3, counts=pd.Series([0, 1, 1, 2, 2, 2]).value_counts()), "order"),
    ],
)
def test_bad_settings_name_the_argument(call, word) -> None:
    with pytest.raises(ValueError, match=word):
        call()


def test_known_counts_may_be_a_series_in_the_order_of_the_classes() -> None:
    counts = pd.Series([0, 1, 1, 2, 2, 2]).value_counts().sort_index()
    assert aol.LogitAdjustedLoss(3, counts=counts).counts.tolist() == [1, 2, 3]
    named = pd.Series([3.0, 1.0], index=["cat", "ape"])
    assert aol.LogitAdjustedLoss(2, counts=named).counts.tolist() == [3, 1]
    for wrong in ({0: 1, 1: 2}, "ab", ["a", "b"], [1, None]):
        with pytest.raises(TypeError, match="counts must be 2 numbers"):
            aol.LogitAdjustedLoss(2, counts=wrong)


@every_loss
def test_what_is_no_tensor_is_refused_by_name(make) -> None:
    logits, target = batch()
    for given, name in (((logits, target.tolist()), "target"), ((logits.tolist(), target), "logits")):
        with pytest.raises(TypeError, match=f"{name} must be a tensor, not list"):
            make()(*given)


@every_learning_loss
def test_bad_shapes_and_labels_are_refused_and_teach_nothing(make) -> None:
    criterion = trained(make)
    before = state(criterion)
    logits = torch.zeros(6, C, requires_grad=True)
    bad = [
        (torch.zeros(6, C + 1, requires_grad=True), torch.zeros(6).long()),
        (torch.zeros(6, 1, requires_grad=True), torch.zeros(6).long()),  # would broadcast
        (torch.zeros(6, C, 2, requires_grad=True), torch.zeros(6).long()),
        (logits, torch.zeros(5).long()),
        (logits, torch.zeros(6)),
        (logits, torch.full((6,), C)),
    ]
    bad += [(odd, torch.zeros(6).long()) for odd in strange(logits) if not odd.is_meta]
    bad += [(logits, odd) for odd in strange(torch.zeros(6).long())]
    for given in bad:
        with pytest.raises((ValueError, IndexError, RuntimeError)):
            criterion(*given)
    assert state(criterion) == before


def test_a_copy_of_the_file_needs_pytorch_only(tmp_path) -> None:
    (tmp_path / "losses.py").write_text(Path(criteria.__file__).read_text())
    program = """
import sys; sys.modules["aol"] = None
import torch, losses
for make in (losses.LogitAdjustedLoss, losses.MarginLoss, losses.AgeWeightedLoss):
    make(2)(torch.zeros(3, 2, requires_grad=True), torch.tensor([0, 0, 1])).backward()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_rules_accept_runs() -> None:
    counts = torch.tensor([[8.0, 2, 0], [1, 1, 1]])
    new = torch.tensor([[1.0, 0, 3], [0, 0, 0]])
    for memory, tau in itertools.product((None, 10.0), (0.5, torch.tensor([[1.0], [2.0]]))):
        rows = criteria.count_offsets(criteria.counts_step(counts, new, memory), tau)
        for row, own in enumerate(tau.flatten().tolist() if isinstance(tau, torch.Tensor) else (tau, tau)):
            alone = criteria.count_offsets(criteria.counts_step(counts[row], new[row], memory), own)
            torch.testing.assert_close(rows[row], alone)
    offset, moving = criteria.margin_step(torch.zeros(2, 3), torch.zeros(3, 2, 3), torch.stack((counts, new, new / 4)))
    for row in range(2):
        alone = criteria.margin_step(torch.zeros(3), torch.zeros(3, 3), torch.stack((counts, new, new / 4))[:, row])
        torch.testing.assert_close((offset[row], moving[:, row]), alone)
    accuracy = torch.tensor([[0.9, 0.5, torch.nan], [0.1, 0.2, 0.3]])
    age, ema = criteria.class_age_step(counts, counts, accuracy, torch.tensor([[0.5], [1.0]]))
    for row, rho in enumerate((0.5, 1.0)):
        alone = criteria.class_age_step(counts[row], counts[row], accuracy[row], rho)
        torch.testing.assert_close((age[row], ema[row]), alone)


def test_a_soft_target_that_is_not_finite_teaches_nothing() -> None:
    criterion = aol.LogitAdjustedLoss(2)
    for target in ([[0.5, 0.5]], [[float("nan"), 1.0]], [[-1.0, 1.0]]):
        criterion(torch.zeros(1, 2, requires_grad=True), torch.tensor(target))
    assert criterion.counts.tolist() == [0.5, 1.5]


def test_wrong_labels_and_unknown_arguments_are_named() -> None:
    for loss in ("LogitAdjustedLoss", "MarginLoss", "AgeWeightedLoss"):
        with pytest.raises(IndexError, match=r"target must lie in 0 to 2 .*, not 3"):
            getattr(aol, loss)(3)(torch.zeros(3, 3, requires_grad=True), torch.tensor([1, 2, 3]))
        with pytest.raises(TypeError, match=f"{loss} has no argument weight"):
            getattr(aol, loss)(3, weight=torch.ones(3))
        with pytest.raises(ValueError, match="label_smoothing"):
            getattr(aol, loss)(3, label_smoothing=2)


def test_a_printed_loss_says_its_classes_and_settings() -> None:
    more = "ignore_index=-100, label_smoothing=0.0, reduction='mean')"
    counted = aol.LogitAdjustedLoss(10, memory=500)
    assert repr(counted) == f"LogitAdjustedLoss(num_classes=10, tau=1.0, memory=500, {more}"
    assert repr(aol.MarginLoss(2)) == f"MarginLoss(num_classes=2, every=10, tau=1.0, {more}"
    own = "num_classes=3, rho=0.5, threshold='median', every=60"
    assert repr(aol.AgeWeightedLoss(3)) == f"AgeWeightedLoss({own}, {more}"
    ages = aol.SampleAges([0, 1])
    assert repr(aol.AgeWeightedLoss(ages=ages)) == f"AgeWeightedLoss(num_classes=2, ages={ages!r}, {more}"
