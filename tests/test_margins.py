"""Margins against loops over samples and pairs; what they do to classes; offsets from counts and for trained models."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

import aol
from tests.support.margin_oracle import MarginOracle

FLOOR = 0.02
SETTINGS = {"gain": 0.3, "rho": 0.4, "width": 0.5, "limit": 1.5}  # the library's own may change
LABELS = [0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 3]
VARIANTS = {
    "ages of samples": {"labels": LABELS, "signal": "age"},
    "ages of pairs": {"signal": "age"},
    "errors of samples": {"labels": LABELS, "signal": "error"},
    "errors": {"signal": "error"},
    "probabilities": {"signal": "probability"},
    "probabilities of samples": {"labels": LABELS, "signal": "probability"},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def oracle(variant: str, **more) -> MarginOracle:
    return MarginOracle(4, floor=FLOOR, **{**SETTINGS, **VARIANTS[variant], **more})


def margins(variant: str, **more) -> aol.Margins:
    return aol.Margins(4, **{**SETTINGS, **VARIANTS[variant], **more})


def steps(variant: str, seed: int, *, epochs: int = 6, runs: tuple[int, ...] = ()) -> list[list[torch.Tensor]]:
    """Batches of (key, answer, times) by epoch: with repeats, absent classes, empty epochs."""
    generator = np.random.default_rng(seed)
    keys = len(LABELS) if "labels" in VARIANTS[variant] else 4
    found = []
    for _ in range(epochs):
        size = (*runs, int(generator.integers(0, 14)))
        key = generator.integers(0, generator.integers(1, keys + 1), size)
        answer = np.where(generator.random(size) < 0.5, 0, generator.integers(0, 4, size))
        if VARIANTS[variant]["signal"] == "probability":
            answer = scipy.special.softmax(2 * (answer[..., None] == np.arange(4)) + generator.random((*size, 4)), -1)
        found.append([torch.from_numpy(each) for each in (key, answer, generator.integers(0, 4, size))])
    return found


def follow(state: aol.Margins, loop: MarginOracle, variant: str, seed: int, epochs: int = 6) -> None:
    """Show the same to margins and to loops, in two parts per epoch, and compare all that can be seen."""
    for epoch, (key, answer, times) in enumerate(steps(variant, seed, epochs=epochs)):
        counted, scale = epoch % 2 == 0, 0.5 if epoch == 3 else 1.0
        for part in (slice(None, 3), slice(3, None)):
            state.observe(key[part], answer[part], times=times[part] if counted else None)
        state.advance(scale=scale)
        often = times.tolist() if counted else [1] * len(key)
        loop.epoch(zip(key.tolist(), answer.tolist(), often, strict=True), scale)
        assert state.epoch == epoch + 1
        # Every error is missed once and claimed once.
        assert float(state.claimed.sum()) == pytest.approx(float(state.missed.nansum()))
        compare(state.missed, state.claimed, state.offsets, loop)


def compare(missed: torch.Tensor, claimed: torch.Tensor, offsets: torch.Tensor, loop: MarginOracle) -> None:
    assert missed.tolist() == pytest.approx(loop.missed, rel=1e-6, nan_ok=True)
    assert claimed.tolist() == pytest.approx(loop.claimed, rel=1e-6)
    assert offsets.tolist() == pytest.approx([loop.tau * o for o in loop.offsets], rel=1e-5, abs=1e-6)


@every_variant
@settings(max_examples=20)
@given(data=st.data(), seed=st.integers(0, 10_000), rho=st.sampled_from([0.01, 0.3, 1.0]))
def test_margins_agree_with_loops_over_samples_and_pairs(variant, data, seed, rho):
    more = {"width": data.draw(st.sampled_from([0.01, 0.5, 2.0])), "rho": rho}
    if "probabilities" in variant:
        more["tau"] = data.draw(st.sampled_from([0.0, 0.5, 1.0, 1.5, 3.0]))
    follow(margins(variant, **more), oracle(variant, **more), variant, seed)


@every_variant
def test_loops_do_move_the_offsets_that_are_compared(variant):
    loop = oracle(variant)
    for key, answer, times in steps(variant, 0):
        loop.epoch(zip(key.tolist(), answer.tolist(), times.tolist(), strict=True))
    assert max(map(abs, loop.offsets)) > 0.3


@pytest.mark.parametrize(("signal", "stored"), [("probability", True), ("error", False)])
def test_steps_without_the_rare_classes_see_as_many_claims_as_whole_epochs(signal, stored):
    classes = 30
    counts = aol.long_tail_counts(500, classes, 100)
    labels = torch.arange(classes).repeat_interleave(counts)
    # Rare classes are taken for the first one in half of the cases, frequent ones hardly ever for a rare one.
    share = torch.full((classes, classes), 0.01) + 0.5 * torch.eye(classes)
    share[:, 0] += torch.linspace(0.0, 0.5, classes)
    share = share / share.sum(1, keepdim=True)
    claimed = share.sum(0) - share.diagonal()
    known = {"labels": labels} if stored else {"num_classes": classes}
    by_step = aol.Margins(**known, signal=signal, rho=0.02, gain=0.0)
    generator = torch.Generator().manual_seed(0)
    for index in torch.cat([torch.randperm(len(labels), generator=generator) for _ in range(4)]).split(64):
        answer = share[labels[index]]
        answer = answer if signal == "probability" else answer.multinomial(1, generator=generator)[:, 0]
        by_step.observe(index if stored else labels[index], answer)
        by_step.advance()
    assert (torch.bincount(labels[index], minlength=classes) == 0).sum() > classes / 3  # of the last step
    torch.testing.assert_close(by_step.missed.float(), 1 - share.diagonal(), rtol=0.0, atol=0.2)
    torch.testing.assert_close(by_step.claimed[:1].float(), claimed[:1], rtol=0.1, atol=0.0)
    assert float(by_step.claimed.sum()) == pytest.approx(float(claimed.sum()), rel=0.1)


def test_a_class_that_stays_away_does_not_drive_the_offsets_of_others():
    labels = torch.arange(3).repeat_interleave(100)
    share = torch.tensor([[0.98, 0.01, 0.01], [0.01, 0.98, 0.01], [0.9, 0.0, 0.1]])  # class 2 is taken for class 0
    found = aol.Margins(3)
    for _ in range(10):
        found.observe(labels, share[labels])
        found.advance()
    offsets, moved = found.offsets, []
    for _ in range(100):
        found.observe(labels[:200], share[labels[:200]])
        found.advance()
        moved.append((found.offsets - offsets).abs().max().item())
    assert moved[8] > 0  # it may come back
    assert moved[-1] == pytest.approx(moved[30], abs=1e-3)  # chance does not explain that it is away so long
    assert moved[-1] < 2.0
    torch.testing.assert_close(found.claimed.float(), torch.tensor([0.01, 0.01, 0.02]), rtol=0.05, atol=0.0)


@every_variant
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_each_run_has_its_own_margins(variant, own):
    rates, gains = [0.2, 1.0, 0.5], [0.3, 0.1, 0.0]
    taus = [1.0, 2.0, 0.5] if "probabilities" in variant else [1.0] * 3
    state = margins(variant, rho=rates, gain=torch.tensor(gains), tau=taus)
    each = zip(rates, gains, taus, strict=True)
    loops = [oracle(variant, rho=rho, gain=gain, tau=tau) for rho, gain, tau in each]
    for key, answer, times in steps(variant, 5, runs=(3,)):
        key, times = (key, times) if own else (key[0], times[0])
        state.observe(key, answer, times=times)
        state.advance()
        for run, loop in enumerate(loops):
            mine, often = (key[run], times[run]) if own else (key, times)
            loop.epoch(zip(mine.tolist(), answer[run].tolist(), often.tolist(), strict=True))
            compare(state.missed[run], state.claimed[run], state.offsets[run], loop)
    assert state.offsets.shape == state.missed.shape == state.claimed.shape == (3, 4)
    assert state.rho.tolist() == pytest.approx(rates)
    assert state.offsets[2].abs().max() == 0.0  # a gain of zero


def test_a_predicted_class_has_the_probability_one():
    signals = ("error", "probability", "error", "probability")
    one, other, named, shares = (aol.Margins(4, signal=signal, width=0.1) for signal in signals)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        label, answer = torch.randint(0, 4, (2, 60), generator=generator)
        share = torch.nn.functional.one_hot(answer, 4).double()
        for state in (one, other):
            state.observe(label, answer)
        for state in (shares, named):
            state.observe(label.numpy(), share.numpy())
        for state in (one, other, shares, named):
            state.advance()
    assert one.offsets.abs().max() > 0
    for state in (other, shares, named):
        torch.testing.assert_close(state.offsets, one.offsets)


def test_a_calibrated_model_has_the_offsets_of_its_counts():
    """Where p is the true posterior of balanced classes given unadjusted logits, nothing moves; it does otherwise."""
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, 3, (30_000,), generator=generator)
    logits = 1.5 * torch.nn.functional.one_hot(label, 3) + torch.randn((30_000, 3), generator=generator)
    logits = 1.5 * logits  # the log-likelihood ratio of two normal distributions 1.5 apart
    kept = torch.rand(30_000, generator=generator) < torch.tensor([1.0, 0.3, 0.1])[label]
    prior = torch.tensor([1.0, 0.3, 0.1]).log()
    for adjusted, moves in ((logits, False), (logits + prior, True)):
        state = aol.Margins(3)
        for _ in range(5):
            state.observe(label[kept], adjusted[kept].softmax(1))
            state.advance()
        assert (state.offsets.abs().max() > 0.2) == moves
        assert (state.offsets[0] > 0.1) == moves


@every_variant
def test_parts_and_order_of_an_epoch_do_not_matter(variant):
    whole, parts = margins(variant), margins(variant)
    generator = np.random.default_rng(0)
    keys = len(LABELS) if "labels" in VARIANTS[variant] else 4
    for _ in range(4):
        key = torch.from_numpy(generator.permutation(keys))
        answer = torch.from_numpy(generator.integers(0, 4, keys))
        if whole.signal == "probability":
            answer = torch.from_numpy(generator.dirichlet([0.5] * 4, keys))
        whole.observe(key, answer)
        for place in generator.permutation(keys).tolist():
            parts.observe(key[place : place + 1], answer[place : place + 1])
        whole.advance()
        parts.advance()
        assert whole.offsets.equal(parts.offsets)


# What margins do


def answered(labels: torch.Tensor, matrix: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Answers to samples, at random, by the confusion matrix."""
    return torch.multinomial(matrix[labels], 1, generator=generator)[:, 0]


@pytest.mark.parametrize(("signal", "stored"), [("age", True), ("error", False)])
def test_random_errors_of_balanced_classes_leave_the_offsets_near_zero(signal, stored):
    labels, generator = torch.arange(500) % 10, torch.Generator().manual_seed(0)
    matrix = torch.full((10, 10), 0.2 / 9).fill_diagonal_(0.8)
    reached = {}
    for width in (0.0, 3.0):
        state = aol.Margins(10, labels=labels if stored else None, signal=signal, gain=0.1, rho=0.3, width=width)
        for _ in range(50):
            state.observe(torch.arange(500) if stored else labels, answered(labels, matrix, generator.manual_seed(_)))
            state.advance()
        reached[width] = float(state.offsets.abs().max())
    assert reached[3.0] == 0.0
    assert reached[0.0] > 0.05  # without the dead zone, noise is integrated


def simulated(state: aol.Margins, logits: torch.Tensor, labels: torch.Tensor, steps: int) -> torch.Tensor:
    """Answers of a model that follows its margins: it learns `logits - offsets`."""
    for _ in range(steps):
        answer = (logits - state.offsets).argmax(1)
        state.observe(labels, answer)
        state.advance()
    return (logits - state.offsets).argmax(1)


def accuracy(answer: torch.Tensor, labels: torch.Tensor) -> list[float]:
    return [float((answer[labels == c] == c).float().mean()) for c in range(int(labels.max()) + 1)]


def test_margins_find_a_class_that_a_model_neglects():
    labels, generator = torch.arange(2000) % 4, torch.Generator().manual_seed(2)
    logits = torch.randn(2000, 4, generator=generator)
    logits[torch.arange(2000), labels] += 2.5
    logits += torch.tensor([2.0, 0.0, 0.0, -2.0])  # what an imbalance does
    before = accuracy(logits.argmax(1), labels)
    state = aol.Margins(4, signal="error", gain=0.1, rho=0.3, width=1.0, limit=5.0)
    after = accuracy(simulated(state, logits, labels, 200), labels)
    assert before[3] < 0.4
    assert min(after) > 0.7
    assert np.mean(after) > np.mean(before) + 0.1


def test_offsets_stay_within_the_limit_whatever_happens():
    state = aol.Margins(3, signal="error", gain=5.0, rho=1.0, width=0.0, limit=0.7)
    for _ in range(30):
        state.observe([0, 1, 2] * 20, [0] * 60)
        state.advance()
        assert state.offsets.abs().max() <= 0.7 + 1e-6
    assert state.offsets.max() == pytest.approx(0.7)


def test_one_class_has_no_offset():
    state = aol.Margins(1, signal="error")
    state.observe([0, 0], [0, 0])
    state.advance()
    assert state.offsets.tolist() == [0.0]
    assert state.adjust(torch.tensor([[3.0]])).tolist() == [[3.0]]


def test_nothing_moves_after_one_epoch():
    state = aol.Margins(2, width=0.0)
    for epoch in range(3):
        state.observe([0] * 90 + [1] * 10, [0] * 90 + [0] * 10)
        state.advance()
        assert bool(state.offsets.any()) == (epoch > 0)


def test_an_epoch_without_observations_changes_nothing_but_its_number():
    state = aol.Margins(3, width=0.0)
    for _ in range(2):
        state.observe([0, 1, 2], [1, 1, 1])
        state.advance()
    before = state.state_dict()
    state.advance()
    for key, value in state.state_dict().items():
        if key != "_extra_state":
            assert torch.equal(value, before[key]) if isinstance(value, torch.Tensor) else value == before[key]
    assert state.epoch == 3


def test_huge_ages_do_not_overflow():
    classes = 50
    labels = range(classes)  # all but class 0 are taken for class 0
    state = aol.Margins(classes, labels=labels, signal="age", gain=0.1, rho=1.0, width=0.5)
    kept = state.state_dict()
    kept["_age"].fill_(2**29 - 1)
    state.load_state_dict(kept)
    for _ in range(2):
        state.observe(labels, [0] * classes)
        state.advance()
    assert (state.missed[1:] > 100).all()
    assert state.claimed[0].item() == pytest.approx(float(state.missed.sum()), rel=1e-6)
    assert (state.claimed[1:] == 0).all()
    assert state.offsets[0] > 1  # a variance that overflowed would be uncertain of it
    assert state.offsets.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_adjusted_logits_are_logits_plus_offsets_in_full_precision(dtype):
    state = margins("errors", width=0.0)
    state.observe([0, 1, 2, 3], [0, 0, 0, 3])
    state.advance()
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    found = state.adjust(logits)
    assert found.dtype == wide
    assert found.equal(logits.to(wide) + state.offsets.to(wide))
    found.sum().backward()
    assert logits.grad.equal(torch.ones_like(logits))


@pytest.mark.parametrize("answer", [[], [[math.nan, 0.5]]])
def test_an_epoch_without_an_answer_warns(answer):
    state = aol.Margins(2)
    state.observe([0] * len(answer), torch.tensor(answer).reshape(-1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="observe"):
            state.advance()
    assert state.epoch == 1  # it has ended, even where a warning is an error


def test_a_stray_on_a_device_is_left_out_and_no_sample_is_older_for_it(monkeypatch):
    monkeypatch.setattr("aol._check.readable", lambda _: False)  # as on a CUDA device, where nothing is read
    state = aol.Margins(2, labels=[0, 1, 0], signal="age", rho=1.0)
    state.observe([0, 1, 2], [1, 0, 1])
    state.advance()
    state.observe([0, 2, 1, 7, -1], [1, 1, 5, 0, 0])
    with pytest.raises(IndexError, match="label and answer must"):
        state.advance()
    state.advance()
    assert state.epoch == 2
    assert state.state_dict()["_age"][0].tolist() == [3, 2, 3]  # the second sample was given no answer that counts
    assert state.missed.tolist() == [2.0, 1.0]


BAD_ANSWERS = [
    (torch.tensor([[2.0, 0.5, 0.1]] * 2), ValueError, "answer must hold probabilities"),  # logits
    (torch.full((2, 3), 0.9), ValueError, "sum 1"),  # of a sigmoid
    (torch.tensor([[math.inf, 0.0, 0.0]] * 2), ValueError, "answer must hold probabilities"),
    (torch.tensor([[-0.5, 1.0, 0.5]] * 2), ValueError, "answer must hold probabilities"),
    (torch.full((3, 3), 1 / 3), ValueError, "answer must have the shape"),
    (torch.full((2, 2, 3), 1 / 3), ValueError, "answer must have the shape"),
    ([[0.2, 0.8], [1.0]], TypeError, "answer must be numbers"),
    (np.array([["a", "b", "c"]] * 2), TypeError, "answer must be numbers"),
]


@pytest.mark.parametrize(("answer", "error", "named"), BAD_ANSWERS)
def test_answers_that_are_no_probabilities_are_refused_and_nothing_changes(answer, error, named):
    state = aol.Margins(3)
    state.observe([0, 1, 2], [1, 2, 2])
    before = state.state_dict()
    with pytest.raises(error, match=named):
        state.observe([0, 1], answer)
    after = state.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in ("_count", "_sums"))


def test_logits_in_place_of_probabilities_are_reported_by_advance_on_a_device(monkeypatch):
    monkeypatch.setattr("aol._check.readable", lambda _: False)  # as on a CUDA device, where nothing is read
    state = aol.Margins(2)
    state.observe([0, 1, 1], torch.tensor([[0.5, 0.5], [3.0, -1.0], [0.9, 0.9]]))
    with pytest.raises(IndexError, match="probabilities"):
        state.advance()
    state.advance()
    assert state.missed[0] == 0.5
    assert state.missed[1].isnan()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, "list"])
def test_probabilities_may_have_any_precision_or_be_a_list(dtype):
    share = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]])
    given = share.tolist() if dtype == "list" else share.to(dtype)
    state = aol.Margins(3)
    state.observe([0, 1], given)
    state.advance()
    assert state.missed[:2].tolist() == [0.5, 0.25]


@pytest.mark.parametrize(
    "settings", [{}, {"signal": "error"}, {"signal": "age"}, {"signal": "age", "labels": [0, 1, 1]}]
)
def test_a_sample_without_an_answer_is_no_error_of_any_signal(settings):
    state = aol.Margins(2, **settings)
    key = [0, 1, 2] if "labels" in settings else [0, 1, 1]
    state.observe(key, torch.tensor([[0.0, 1.0], [torch.nan, 0.5], [0.25, 0.75]]))
    state.advance()
    assert state.missed.tolist() == [1.0, 0.0 if settings else 0.25]
    if "labels" in settings:
        assert state.state_dict()["_age"][0].tolist() == [2, 1, 1]


def test_a_huge_strength_keeps_probabilities_finite():
    state = aol.Margins(2, tau=1000.0, gain=1.0, width=0.0)
    for _ in range(5):
        state.observe([0, 0, 1], torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]]))
        state.advance()
        assert state.missed.isfinite().all()
    # Once the offset of a class is above 0, its probability is one.
    state = aol.Margins(2, tau=1000.0, gain=1.0, width=0.0, rho=1.0)
    state._offset[:] = torch.tensor([[4.0, -4.0]])
    state.observe([0, 1], torch.tensor([[0.9, 0.1], [0.6, 0.4]]))
    state.advance()
    assert state.missed.tolist() == [0.0, 1.0]


def test_ages_in_margins_are_those_of_sample_ages():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (20,), generator=generator)
    state, ages = aol.Margins(3, labels=labels, signal="age"), aol.SampleAges(labels)
    for _ in range(5):
        index, answer = torch.randint(0, 20, (2, 30), generator=generator)
        answer = answer % 3
        state.observe(index, answer)
        ages.observe(index, answer == labels[index])
        state.advance()
        ages.advance()
        assert state.state_dict()["_age"][0].equal(ages.age)


BAD_MAKINGS = [
    ({"num_classes": 2.0}, TypeError, "num_classes"),
    ({"num_classes": 50_000}, ValueError, "num_classes must be a whole number from 1 to 32768"),
    ({"num_classes": None}, TypeError, "num_classes"),
    ({"labels": [0, 3]}, ValueError, "labels"),
    ({"signal": "loss"}, ValueError, "signal"),
    ({"gain": math.nan}, ValueError, "gain"),
    ({"rho": 0.0}, ValueError, "rho"),
    ({"rho": None}, TypeError, "rho"),
    ({"rho": [0.1, 0.2], "gain": [0.1, 0.2, 0.3]}, ValueError, "rho"),
    ({"tau": 1.5, "signal": "error"}, ValueError, "tau"),
    ({"width": -1.0}, ValueError, "width"),
    ({"limit": math.inf}, ValueError, "limit"),
]


@pytest.mark.parametrize(("arguments", "error", "named"), BAD_MAKINGS, ids=str)
def test_margins_made_wrongly_name_the_argument(arguments, error, named):
    with pytest.raises(error, match=named):
        aol.Margins(**{"num_classes": 3, "signal": "age", **arguments})


# Offsets from counts


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=6), st.floats(0, 3))
def test_offsets_from_counts_agree_with_the_formula(counts, tau):
    logs = [math.log(n or 1) for n in counts]  # a class without samples counts as seen once
    wanted = [tau * (log - sum(logs) / len(logs)) for log in logs]
    assert aol.logit_offsets(counts, tau).tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def test_a_tau_of_one_is_the_balanced_softmax():
    counts = torch.tensor([500, 40, 3])
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    label = torch.tensor([0, 1, 2, 0, 1, 2])
    scaled = counts * logits.exp()  # Ren et al. 2020, equation 3
    wanted = -(scaled[torch.arange(6), label] / scaled.sum(1)).log()
    found = aol.softmax_loss(logits, label, offset=aol.logit_offsets(counts))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)


def test_offsets_from_counts_have_a_row_for_each_run():
    both = aol.logit_offsets([90, 10], [0.0, 1.5])
    assert both.shape == (2, 2)
    assert both[1].equal(aol.logit_offsets([90, 10], 1.5))
    own = aol.logit_offsets([[90, 10], [1, 1]])
    assert own[0].equal(aol.logit_offsets([90, 10]))
    assert own[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: aol.logit_offsets([-1, 2]), ValueError, "counts"),
        (lambda: aol.logit_offsets("ab"), TypeError, "counts"),
        (lambda: aol.logit_offsets([1, 2], -1.0), ValueError, "tau"),
        (lambda: aol.logit_offsets([[1, 2]] * 3, [1.0, 2.0]), ValueError, "tau"),
        (lambda: aol.posthoc_logits(torch.zeros(2, 3), [0.0, 0.0]), ValueError, "offset"),
        (lambda: aol.posthoc_logits(torch.zeros(2, 4, 3), torch.zeros(4, 3)), ValueError, "offset"),
        (lambda: aol.fit_offsets(torch.zeros(3), [0]), TypeError, "logits"),
        (lambda: aol.fit_offsets(torch.zeros(0, 2), []), ValueError, "logits"),
        (lambda: aol.fit_offsets(torch.tensor([[math.nan, 1.0]]), [0]), ValueError, "logits"),
        (lambda: aol.fit_offsets(torch.zeros(2, 2), [0]), ValueError, "label"),
        (lambda: aol.fit_offsets(torch.zeros(2, 2), [0, 2]), IndexError, "label"),
        (lambda: aol.fit_offsets(torch.zeros(2, 2), [0, 1], times=[1]), ValueError, "times"),
        (lambda: aol.fit_offsets(torch.zeros(2, 2), [0, 1], times=[0, 0]), ValueError, "times"),
        (lambda: aol.fit_offsets(torch.zeros(2, 2), [0, 1], times=[1, -1]), ValueError, "times"),
        (lambda: aol.Margins(2).advance(scale=25.0), ValueError, "scale"),
    ],
)
def test_bad_input_of_the_functions_names_the_argument(call, error, named):
    with pytest.raises(error, match=named):
        call()


# Offsets for trained models


def test_posthoc_offsets_take_arrays_and_refuse_nan():
    rng = np.random.default_rng(0)
    logits, label = rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
    offset = aol.fit_offsets(logits, label)
    assert torch.equal(offset, aol.fit_offsets(torch.tensor(logits), torch.tensor(label)))
    assert aol.posthoc_logits(logits, offset.numpy()).numpy() == pytest.approx(logits - offset.numpy())
    for wrong in ([0.0, math.nan, 0.0], torch.tensor([0.0, 0.0, math.nan])):
        with pytest.raises(ValueError, match="offset must hold numbers, not NaN"):
            aol.posthoc_logits(logits, wrong)
    with pytest.raises(ValueError, match="offset must hold numbers, not NaN"):
        aol.softmax_loss(torch.tensor(logits), torch.tensor(label), offset=torch.tensor([math.nan, 0.0, 0.0]))


def test_posthoc_logits_are_logits_minus_offsets():
    logits = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    offset = torch.tensor([[1.0, 0.0, -1.0], [0.5, 0.0, 0.0]])
    assert aol.posthoc_logits(logits, offset).equal(logits - offset[:, None])
    assert aol.posthoc_logits(logits[0], offset[0]).equal(logits[0] - offset[0])
    assert aol.posthoc_logits(logits[0, 0], offset[0]).equal(logits[0, 0] - offset[0])
    assert aol.posthoc_logits(torch.zeros(1, 2), torch.tensor([1, 2], dtype=torch.uint8)).tolist() == [[-1.0, -2.0]]


def predicted(imbalanced: bool, seed: int) -> tuple[list[torch.Tensor], list[np.ndarray]]:
    """Logits of a linear model on held-out and on test data, and their labels."""
    weights = [0.8, 0.14, 0.06] if imbalanced else None
    x, y = make_classification(
        6000, n_features=12, n_informative=6, n_classes=3, n_clusters_per_class=1, class_sep=0.7, weights=weights,
        random_state=seed,
    )  # fmt: skip
    model = LogisticRegression().fit(x[:2000], y[:2000])
    parts = [slice(2000, 4000), slice(4000, 6000)]
    return [torch.from_numpy(model.predict_log_proba(x[part])) for part in parts], [y[part] for part in parts]


def gains(imbalanced: bool, seeds: range) -> list[float]:
    found = []
    for seed in seeds:
        (held, test), (held_labels, labels) = predicted(imbalanced, seed)
        adjusted = aol.posthoc_logits(test, aol.fit_offsets(held, held_labels)).argmax(1)
        before = balanced_accuracy_score(labels, test.argmax(1))
        found.append(balanced_accuracy_score(labels, adjusted) - before)
    return found


def test_fitted_offsets_raise_the_balanced_accuracy_of_a_long_tailed_problem_and_of_no_balanced_one():
    found = gains(True, range(2))
    assert np.mean(found) > 0.03
    assert min(found) > -0.005
    assert max(map(abs, gains(False, range(2)))) < 0.01


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_fitted_offsets_have_the_scale_of_the_logits(scale):
    (held, _), (labels, _) = predicted(True, 0)
    offset = aol.fit_offsets(held * scale, labels) / scale
    torch.testing.assert_close(offset, aol.fit_offsets(held, labels), rtol=1e-4, atol=1e-4)


def test_logarithms_of_probabilities_of_zero_are_fitted_too():
    logits = torch.tensor([[0.0, -1.0, -math.inf]] * 40 + [[-0.5, -1.0, -math.inf]] * 40 + [[-9.0, -9.0, 0.0]] * 40)
    label = [0] * 40 + [1] * 40 + [2] * 40
    offset = aol.fit_offsets(logits, label)
    assert offset.isfinite().all()
    assert aol.posthoc_logits(logits, offset).argmax(1).tolist() == label


def test_fitted_offsets_are_never_worse_than_none_on_the_samples_they_are_fitted_to():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        logits, label = torch.randn(60, 4, generator=generator), torch.randint(0, 4, (60,), generator=generator)
        fitted = aol.posthoc_logits(logits, aol.fit_offsets(logits, label)).argmax(1)
        assert np.mean(accuracy(fitted, label)) >= np.mean(accuracy(logits.argmax(1), label)) - 1e-9


def test_a_sample_that_counts_several_times_is_fitted_as_its_copies_are():
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(3, (80,), generator=generator)
    logits = torch.randn(80, 3, generator=generator) + torch.tensor([2.0, 0.0, -1.0])
    times = torch.randint(4, (80,), generator=generator)
    once = aol.fit_offsets(logits.repeat_interleave(times, 0), label.repeat_interleave(times))
    assert once.abs().max() > 0.5
    torch.testing.assert_close(aol.fit_offsets(logits, label, times=times), once, atol=1e-5, rtol=1e-5)


def test_scale_multiplies_the_gain():
    moved = []
    for scale in (1.0, 0.25, 0.0):
        state = aol.Margins(2, rho=1.0, width=0.0, limit=100.0)
        for now in (1.0, scale):
            before = state.offsets
            state.observe([0, 0, 1, 1], [0, 0, 0, 1])
            state.advance(scale=now)
        moved.append((state.offsets - before)[0].item())
    assert moved[0] > 0
    assert moved == pytest.approx([moved[0], moved[0] / 4, 0.0])
