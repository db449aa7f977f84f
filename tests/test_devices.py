"""The library where tensors lie in two places: by a device that is pretended, and with a default device of the user's.

On a real one `tests/gpu` asks the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
import torch
from pandas.testing import assert_frame_equal
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import aol
from aol.plugins.sklearn import AgedClassifier
from tests.support.pretended_device import OnDevice, no_waiting, pretended_device, waits

LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 2])
RIGHT = torch.tensor([True, False, True, False, False, True, False])
PLACES = list(product(("cpu", "cuda"), repeat=3))


@pytest.fixture
def pretended() -> Iterator[None]:
    with pretended_device():
        yield


def made(kind: str, device: str) -> aol.SampleAges | aol.ClassAges | aol.ErrorRates:
    if kind in ("class", "sample"):
        return aol.SampleAges(LABELS, level=kind, device=device)
    return (aol.ClassAges if kind == "ages of classes" else aol.ErrorRates)(3, rho=0.5, device=device)


def told(ages: aol.SampleAges | aol.ClassAges | aol.ErrorRates, key_at: str, right_at: str) -> Tensor:
    """Observe and advance twice, and return the weights that follow, on the host."""
    key = (torch.arange(7) if isinstance(ages, aol.SampleAges) else LABELS).to(key_at)
    for turn in range(2):
        right = (RIGHT if turn else ~RIGHT.flip(0)).to(right_at)
        ages.observe(key, right)
        ages.advance()
    return ages.weight(key).cpu()


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("kind", ["class", "sample", "ages of classes", "error rates"])
@pytest.mark.parametrize("places", PLACES, ids="-".join)
def test_ages_are_the_same_wherever_they_and_what_they_are_told_lie(kind: str, places: tuple[str, str, str]) -> None:
    ages_at, key_at, right_at = places
    expected = told(made(kind, "cpu"), "cpu", "cpu")
    assert expected.unique().numel() > 1
    assert torch.equal(told(made(kind, ages_at), key_at, right_at), expected)


@pytest.mark.usefixtures("pretended")
def test_answers_on_the_device_are_waited_for_by_ages_on_the_host() -> None:
    ages = aol.SampleAges(LABELS)
    right = RIGHT.cuda()
    waits.clear()
    ages.observe(range(7), right)
    assert waits  # a copy that was not waited for would be read before it is there
    ages.advance()
    assert ages.age.tolist() == [1 if each else 2 for each in RIGHT.tolist()]


@pytest.mark.usefixtures("pretended")
def test_counts_on_the_device_are_waited_for_by_ages_on_the_host() -> None:
    rates = aol.ErrorRates(3, rho=0.5)
    rates.observe(LABELS.cuda(), RIGHT.cuda(), times=torch.arange(7).cuda())
    rates.advance()
    assert rates.error_rate.tolist() == pytest.approx([1.0, 3 / 5, 10 / 15])


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("kind", ["class", "sample", "ages of classes", "error rates"])
@pytest.mark.parametrize("key_at", ["cpu", "cuda"])
@pytest.mark.parametrize("divisor", [{}, {"divide_by": "count"}, {"total": 2.0}, {"total": torch.tensor(2.0)}])
@pytest.mark.parametrize("loss", [aol.softmax_loss, aol.sigmoid_loss, aol.focal_loss])
def test_a_step_on_the_device_never_waits(kind: str, key_at: str, divisor: dict, loss: Callable[..., Tensor]) -> None:
    ages = made(kind, "cuda")
    told(ages, "cpu", "cpu")
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(7, 3, generator=generator), LABELS
    key = torch.arange(7) if isinstance(ages, aol.SampleAges) else labels
    expected = aol.weighted_mean(loss(logits, labels), ages.weight(key).cpu(), **divisor)
    logits, labels, key = logits.cuda(), labels.to(key_at), key.to(key_at)
    with no_waiting():
        right = aol.is_correct(logits, labels)
        ages.observe(key, right)
        found = aol.weighted_mean(loss(logits, labels), ages.weight(key), **divisor)
    assert isinstance(found, OnDevice)
    torch.testing.assert_close(found.cpu(), expected)


MARGINS = {
    "ages of pairs": {"signal": "age"},
    "ages of samples": {"signal": "age", "labels": LABELS},
    "errors": {"signal": "error"},
    "probabilities": {"signal": "probability"},
}
ANSWER = torch.tensor([0, 1, 0, 0, 2, 2, 0])
SHARES = torch.nn.functional.one_hot(ANSWER) * 0.5 + torch.tensor([0.1, 0.2, 0.2])


def shown(margins: aol.Margins, key_at: str, answer_at: str) -> Tensor:
    """Observe and advance twice, and return the offsets that follow, on the host."""
    key = (LABELS if margins.labels is None else torch.arange(7)).to(key_at)
    for turn in range(2):
        answer = SHARES if margins.signal == "probability" else ANSWER
        margins.observe(key, (answer if turn else answer.flip(0)).to(answer_at), times=torch.arange(7).to(key_at))
        margins.advance()
    return margins.offsets.cpu()


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("kind", MARGINS)
@pytest.mark.parametrize("places", PLACES, ids="-".join)
def test_margins_are_the_same_wherever_they_and_what_they_are_told_lie(kind: str, places: tuple[str, str, str]) -> None:
    at, key_at, answer_at = places
    expected = shown(aol.Margins(3, width=0.1, device="cpu", **MARGINS[kind]), "cpu", "cpu")
    assert expected.unique().numel() > 1
    assert torch.equal(shown(aol.Margins(3, width=0.1, device=at, **MARGINS[kind]), key_at, answer_at), expected)


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("kind", MARGINS)
@pytest.mark.parametrize("key_at", ["cpu", "cuda"])
@pytest.mark.parametrize("loss", [aol.softmax_loss, aol.sigmoid_loss, aol.focal_loss])
def test_a_step_with_margins_on_the_device_never_waits(kind: str, key_at: str, loss: Callable[..., Tensor]) -> None:
    margins = aol.Margins(3, width=0.1, device="cuda", **MARGINS[kind])
    shown(margins, "cpu", "cpu")
    logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    expected = loss(logits + margins.offsets.cpu(), LABELS)
    key = (LABELS if margins.labels is None else torch.arange(7)).to(key_at)
    logits, labels = logits.cuda(), LABELS.cuda()
    with no_waiting():
        margins.observe(key, logits.softmax(-1))
        found = [loss(margins.adjust(logits), labels), loss(logits, labels, offset=margins.offsets)]
    for each in found:
        torch.testing.assert_close(each.cpu(), expected)


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("kind", MARGINS)
@pytest.mark.parametrize(("here", "there"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_margins_go_on_where_the_other_device_stood(kind: str, here: str, there: str) -> None:
    first, second = (aol.Margins(3, width=0.1, device=place, **MARGINS[kind]) for place in (here, there))
    shown(first, "cpu", "cpu")
    first.observe([0, 1], [2, 2])
    second.load_state_dict(first.state_dict())
    first.to(there)
    for margins in (first, second):
        assert margins.device.type == there
        shown(margins, "cpu", "cuda")
    assert torch.equal(first.offsets.cpu(), second.offsets.cpu())


@pytest.mark.usefixtures("pretended")
def test_a_stray_answer_on_the_device_is_reported_and_loses_nothing() -> None:
    margins = aol.Margins(3, labels=LABELS, signal="age", device="cuda")
    margins.observe(torch.tensor([0, 7, -1, 1, 6]).cuda(), torch.tensor([1, 0, 0, 3, 0]).cuda())
    with pytest.raises(IndexError, match="label and answer"):
        margins.advance()
    margins.advance()
    assert margins.state_dict()["_age"].cpu()[0].tolist() == [2, 1, 1, 1, 1, 1, 2]
    assert margins.missed.cpu()[[0, 2]].tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("kind", ["class", "ages of classes", "error rates"])
@pytest.mark.parametrize("key_at", ["cpu", "cuda"])
@pytest.mark.parametrize("saved", [False, True])
def test_predicted_classes_in_place_of_truths_are_reported_without_waiting(kind: str, key_at: str, saved: bool) -> None:
    ages, other = made(kind, "cuda"), made(kind, "cuda")
    key = (torch.arange(7) if isinstance(ages, aol.SampleAges) else LABELS).to(key_at)
    other.observe(key, RIGHT.cuda())
    right, predicted = RIGHT.to(torch.int64).cuda(), torch.tensor([0, 1, 2, 0, 1, 2, 2], dtype=torch.uint8).cuda()
    with no_waiting():
        ages.observe(key, right)
        ages.observe(key, predicted)  # no value of this call counts
    if saved:
        state, ages = ages.state_dict(), made(kind, "cuda")
        ages.load_state_dict(state)
    with pytest.raises(IndexError, match=r"correct be true or false \(not predicted classes\).*ignored"):
        ages.advance()
    assert ages.epoch == 0
    ages.advance()
    other.advance()
    assert torch.equal(ages.weight(key).cpu(), other.weight(key).cpu())
    ages.observe(key, right)
    ages.advance()
    assert ages.epoch == 2


@pytest.mark.usefixtures("pretended")
def test_predicted_classes_in_place_of_truths_of_one_run_are_reported() -> None:
    runs = {"rho": [0.5, 0.1], "device": "cuda"}
    for ages in (aol.SampleAges([0, 0, 1], **runs), aol.ClassAges(3, **runs)):
        ages.observe(torch.arange(3).cuda(), torch.tensor([[1, 0, 1], [1, 5, 1]]).cuda())
        with pytest.raises(IndexError, match="correct be true or false"):
            ages.advance()


@pytest.mark.usefixtures("pretended")
def test_predicted_classes_are_refused_at_once_where_they_can_be_read() -> None:
    ages = made("class", "cuda")
    with pytest.raises(ValueError, match="correct must be true or false"):
        ages.observe(torch.arange(3).cuda(), [0, 1, 2])


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("kind", ["ages of classes", "error rates", "margins"])
def test_negative_times_on_the_device_are_reported_and_lose_nothing(kind: str) -> None:
    def state() -> aol.ClassAges | aol.ErrorRates | aol.Margins:
        return aol.Margins(3, signal="error", device="cuda") if kind == "margins" else made(kind, "cuda")

    found, other = state(), state()
    right = ANSWER if kind == "margins" else RIGHT
    label, answer, times = (each.cuda() for each in (LABELS, right, torch.tensor([1, -1, 2, 0, 1, 2**50, 1])))
    with no_waiting():
        found.observe(label, answer, times=times)
    kept = [0, 2, 3, 4, 6]
    other.observe(LABELS[kept], right[kept], times=[1, 2, 0, 1, 1])
    with pytest.raises(IndexError, match=r"times 0 or more.*ignored"):
        found.advance()
    for each in (found, other):
        each.advance()
    seen = "missed" if kind == "margins" else "error_rate" if kind == "error rates" else "accuracy"
    assert torch.equal(getattr(found, seen).cpu(), getattr(other, seen).cpu())


@pytest.mark.usefixtures("pretended")
def test_weights_that_stayed_on_the_host_go_to_the_losses_without_waiting() -> None:
    loss, weight = torch.tensor([1.0, 3.0]).cuda(), torch.tensor([3.0, 1.0])
    with no_waiting():
        parts = [aol.weighted_mean(loss, weight), aol.gather(loss, torch.tensor([1, 0]))]
        total = aol.loss_total([torch.ones_like(loss), loss], divide_by="count")
    assert [each.cpu().tolist() for each in (*parts, total)] == [1.5, [3.0, 1.0], 4.0]


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("kind", ["class", "sample", "ages of classes", "error rates"])
@pytest.mark.parametrize(("here", "there"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_state_goes_on_where_the_other_device_stood(kind: str, here: str, there: str) -> None:
    first, second = made(kind, here), made(kind, there)
    told(first, "cpu", "cpu")
    first.observe([0, 1], [False, False])
    second.load_state_dict(first.state_dict())
    first.to(there)
    for ages in (first, second):
        assert ages.device.type == there
        told(ages, "cpu", "cuda")
    key = torch.arange(3)
    assert torch.equal(first.weight(key).cpu(), second.weight(key).cpu())


@pytest.mark.usefixtures("pretended")
def test_a_sampler_draws_alike_from_ages_on_either_device() -> None:
    drawn = []
    for place in ("cpu", "cuda"):
        ages = made("sample", place)
        told(ages, "cpu", "cpu")
        drawn.append(list(aol.AgeSampler(ages, num_samples=20, seed=1)))
    assert drawn[0] == drawn[1]


@pytest.mark.usefixtures("pretended")
def test_a_recorder_goes_on_when_its_ages_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "pretended")
    generator = torch.Generator().manual_seed(0)
    written = []
    for place in ("cpu", "cuda"):
        ages = aol.SampleAges(LABELS)
        recorder = aol.Recorder(tmp_path / place, ages)
        ages.to(place)
        for _ in range(2):
            logits = torch.randn(7, 3, generator=generator.manual_seed(1)).to(place)
            ages.observe(range(7), aol.is_correct(logits, LABELS))
            recorder.observe(torch.arange(7).to(place), logits)
            ages.advance()
            recorder.advance()
        recorder.close()
        written.append(aol.load_runs(tmp_path / place).classes(over_time=True).drop(columns=["id", "method"]))
    assert len(written[0]) == 2 * 3
    assert_frame_equal(written[0], written[1])


# With a default device of the user's: "meta" holds no data, so that whatever strays there cannot be read.


@pytest.fixture
def elsewhere() -> Iterator[None]:
    before = torch.get_default_device()
    torch.set_default_device("meta")
    yield
    torch.set_default_device(before)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("labels", [LABELS, LABELS.tolist(), LABELS.numpy()], ids=["tensor", "list", "array"])
@pytest.mark.parametrize("rho", [0.5, [0.0, 0.5]], ids=["single", "runs"])
def test_a_default_device_leaves_ages_where_their_labels_are(labels: object, rho: object) -> None:
    ages = aol.SampleAges(labels, rho=rho)
    ages.observe(range(7), RIGHT if rho == 0.5 else torch.stack((RIGHT, RIGHT)))
    ages.advance()
    if rho != 0.5:
        ages.observe([[0, 1], [5, 6]], [[True, False], [True, False]])
    assert ages.device.type == "cpu"
    assert ages.weight([0, 1]).shape[-1] == 2
    margins = aol.Margins(3, labels=labels, gain=rho)
    margins.observe(range(7), ANSWER if rho == 0.5 else torch.stack((ANSWER, ANSWER)))
    margins.advance()
    assert margins.offsets.device.type == "cpu"


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("kind", [aol.ClassAges, aol.ErrorRates, aol.Margins])
def test_ages_of_classes_lie_on_the_default_device_as_a_whole(kind: type[aol.ClassAges]) -> None:
    assert {value.device.type for value in kind(3).buffers()} == {"meta"}


def listed(samples: Iterator[object]) -> list[object]:
    return [each.tolist() if isinstance(each, Tensor) else each for each in samples]


def reservoir() -> list[Tensor]:
    memory = aol.Reservoir(3)
    memory.add(range(9))
    return [memory.indices]


def kept() -> list[Tensor]:
    memory = aol.KeepAll()
    memory.add([3, 1])
    return [memory.indices]


@pytest.mark.parametrize(
    "order",
    [
        lambda: aol.ShuffledSampler(5),
        lambda: aol.AgeSampler(aol.SampleAges(LABELS)),
        lambda: aol.ShiftingTail(LABELS, 2, period=1, steps=2),
        lambda: aol.Arrivals(LABELS, 0.5, steps=2),
        lambda: [aol.long_tail(LABELS, 2)],
        reservoir,
        kept,
    ],
)
def test_a_default_device_changes_no_order_and_no_memory(order: Callable[[], Iterator[object]]) -> None:
    expected = listed(order())
    before = torch.get_default_device()
    torch.set_default_device("meta")
    try:
        assert listed(order()) == expected
    finally:
        torch.set_default_device(before)


@pytest.mark.usefixtures("elsewhere")
def test_a_default_device_leaves_records_and_estimators_on_the_host(tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS)
    logits = torch.zeros(7, 3, device="cpu")
    with aol.Recorder(tmp_path, ages, images=torch.zeros(7, 4, 4, device="cpu")) as recorder:
        ages.observe(range(7), aol.is_correct(logits, LABELS))
        recorder.observe(range(7), logits)
        ages.advance()
        recorder.advance(test_accuracy=0.5)
    X, y = LABELS[:, None].numpy().astype("float64"), LABELS.numpy()  # noqa: N806
    assert AgedClassifier(LogisticRegression(), rounds=2, cv=2).fit(X, y).ages_.min() == 1
