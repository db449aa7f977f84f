"""The library where tensors lie in two places: by a device that is pretended, and with a default device of the user's.

On a real one `tests/gpu` asks the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
ANSWER = torch.tensor([0, 1, 0, 0, 2, 2, 0])
SHARES = torch.nn.functional.one_hot(ANSWER) * 0.5 + torch.tensor([0.1, 0.2, 0.2])
AGES: dict[str, Callable[[str], torch.nn.Module]] = {
    "class": lambda at: aol.SampleAges(LABELS, device=at),
    "sample": lambda at: aol.SampleAges(LABELS, level="sample", device=at),
    "ages of classes": lambda at: aol.ClassAges(3, rho=0.5, device=at),
    "error rates": lambda at: aol.ErrorRates(3, rho=0.5, device=at),
}
MARGINS: dict[str, Callable[[str], torch.nn.Module]] = {
    "ages of pairs": lambda at: aol.Margins(3, width=0.1, signal="age", device=at),
    "ages of samples": lambda at: aol.Margins(3, width=0.1, signal="age", labels=LABELS, device=at),
    "errors": lambda at: aol.Margins(3, width=0.1, signal="error", device=at),
    "probabilities": lambda at: aol.Margins(3, width=0.1, device=at),
}
STATES = AGES | MARGINS
pretended = pytest.mark.usefixtures("pretending")
PLACES = [("cuda", "cuda", "cuda"), ("cuda", "cpu", "cuda"), ("cuda", "cuda", "cpu"), ("cpu", "cuda", "cuda")]


@pytest.fixture
def pretending() -> Iterator[None]:
    with pretended_device():
        yield


def key_of(state: torch.nn.Module) -> Tensor:
    """What `observe` takes: indices of samples, or labels."""
    return LABELS if getattr(state, "labels", None) is None else torch.arange(7)


def told(state: torch.nn.Module, key_at: str = "cpu", given_at: str = "cpu") -> Tensor:
    """Observe and advance twice, and return the weights or offsets that follow, on the host."""
    key = key_of(state).to(key_at)
    margins = isinstance(state, aol.Margins)
    given = RIGHT if not margins else SHARES if state.signal == "probability" else ANSWER
    times = {} if isinstance(state, aol.SampleAges) else {"times": torch.arange(7).to(key_at)}
    for turn in range(2):
        state.observe(key, (given if turn else given.flip(0)).to(given_at), **times)
        state.advance()
    return (state.offsets if margins else state.weight(key)).cpu()


@pretended
@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("places", PLACES, ids="-".join)
def test_states_are_the_same_wherever_they_and_what_they_are_told_lie(kind: str, places: tuple[str, str, str]) -> None:
    at, key_at, given_at = places
    expected = told(STATES[kind]("cpu"))
    assert expected.unique().numel() > 1
    assert torch.equal(told(STATES[kind](at), key_at, given_at), expected)


@pretended
def test_answers_on_the_device_are_waited_for_by_ages_on_the_host() -> None:
    ages, right = aol.SampleAges(LABELS), RIGHT.cuda()
    waits.clear()
    ages.observe(range(7), right)
    assert waits  # a copy that was not waited for would be read before it is there
    ages.advance()
    assert ages.age.tolist() == [1 if each else 2 for each in RIGHT.tolist()]


@pretended
@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize(
    ("key_at", "loss", "divisor"),
    [
        ("cpu", aol.softmax_loss, {}),
        ("cuda", aol.softmax_loss, {"total": torch.tensor(2.0)}),
        ("cuda", aol.sigmoid_loss, {"divide_by": "count"}),
        ("cuda", aol.focal_loss, {"total": 2.0}),
    ],
)
def test_a_step_on_the_device_never_waits(
    kind: str, key_at: str, loss: Callable[..., Tensor], divisor: dict[str, object]
) -> None:
    state = STATES[kind]("cuda")
    told(state)
    margins = isinstance(state, aol.Margins)
    logits, key = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)), key_of(state)
    weight = torch.ones(7) if margins else state.weight(key).cpu()
    offset = state.offsets.cpu() if margins else None
    expected = aol.weighted_mean(loss(logits, LABELS, offset=offset), weight, **divisor)
    logits, labels, key, weight = logits.cuda(), LABELS.to(key_at), key.to(key_at), weight.cuda()
    with no_waiting():
        if margins:
            state.observe(key, logits.softmax(-1))
            step = aol.weighted_mean(loss(state.adjust(logits), labels), weight, **divisor)
        else:
            state.observe(key, aol.is_correct(logits, labels))
            step = aol.weighted_mean(loss(logits, labels), state.weight(key), **divisor)
    assert isinstance(step, OnDevice)
    torch.testing.assert_close(step.cpu(), expected)


@pretended
@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize(("here", "there"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_state_goes_on_where_the_other_device_stood(kind: str, here: str, there: str) -> None:
    first, second = STATES[kind](here), STATES[kind](there)
    told(first)
    first.observe([0, 1], [2, 2] if isinstance(first, aol.Margins) else [False, False])
    second.load_state_dict(first.state_dict())
    first.to(there)
    assert first.device.type == there
    assert torch.equal(told(first, "cpu", "cuda"), told(second, "cpu", "cuda"))


@pretended
def test_a_stray_answer_on_the_device_is_reported_and_loses_nothing() -> None:
    margins = MARGINS["ages of samples"]("cuda")
    margins.observe(torch.tensor([0, 7, -1, 1, 6]).cuda(), torch.tensor([1, 0, 0, 3, 0]).cuda())
    with pytest.raises(IndexError, match="label and answer"):
        margins.advance()
    margins.advance()
    assert margins.state_dict()["_age"].cpu()[0].tolist() == [2, 1, 1, 1, 1, 1, 2]
    assert margins.missed.cpu()[[0, 2]].tolist() == [1.0, 1.0]


@pretended
@pytest.mark.parametrize("kind", ["class", "ages of classes"])
def test_predicted_classes_in_place_of_truths_are_reported_without_waiting(kind: str) -> None:
    ages, other = AGES[kind]("cuda"), AGES[kind]("cuda")
    key = key_of(ages).cuda()
    other.observe(key, RIGHT.cuda())
    right, predicted = RIGHT.to(torch.int64).cuda(), torch.tensor([0, 1, 2, 0, 1, 2, 2], dtype=torch.uint8).cuda()
    with no_waiting():
        ages.observe(key, right)
        ages.observe(key, predicted)  # no value of this call counts
    state, ages = ages.state_dict(), AGES[kind]("cuda")
    ages.load_state_dict(state)
    with pytest.raises(IndexError, match=r"correct be true or false \(not predicted classes\).*ignored"):
        ages.advance()
    assert ages.epoch == 0
    ages.advance()
    other.advance()
    assert torch.equal(ages.weight(key).cpu(), other.weight(key).cpu())
    with pytest.raises(ValueError, match="correct must be true or false"):
        ages.observe(key, [0, 1, 2, 0, 1, 2, 2])  # what can be read is refused at once


@pretended
@pytest.mark.parametrize("kind", ["ages of classes", "error rates", "errors"])
def test_negative_times_on_the_device_are_reported_and_lose_nothing(kind: str) -> None:
    state, other = STATES[kind]("cuda"), STATES[kind]("cuda")
    given = ANSWER if kind == "errors" else RIGHT
    label, answer, times = (each.cuda() for each in (LABELS, given, torch.tensor([1, -1, 2, 0, 1, 2**50, 1])))
    with no_waiting():
        state.observe(label, answer, times=times)
    kept = [0, 2, 3, 4, 6]
    other.observe(LABELS[kept], given[kept], times=[1, 2, 0, 1, 1])
    with pytest.raises(IndexError, match=r"times 0 or more.*ignored"):
        state.advance()
    state.advance()
    other.advance()
    seen = {"errors": "missed", "error rates": "error_rate"}.get(kind, "accuracy")
    assert torch.equal(getattr(state, seen).cpu(), getattr(other, seen).cpu())


@pretended
def test_weights_that_stayed_on_the_host_go_to_the_losses_without_waiting() -> None:
    loss, weight = torch.tensor([1.0, 3.0]).cuda(), torch.tensor([3.0, 1.0])
    with no_waiting():
        mean = aol.weighted_mean(loss, weight)
        total = aol.loss_total([torch.ones_like(loss), loss], divide_by="count")
    assert (mean.item(), total.item()) == (1.5, 4.0)


@pretended
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
def test_a_default_device_leaves_ages_where_their_labels_are(labels: object) -> None:
    ages = aol.SampleAges(labels, rho=[0.0, 0.5])
    ages.observe(range(7), torch.stack((RIGHT, RIGHT)))
    ages.advance()
    ages.observe([[0, 1], [5, 6]], [[True, False], [True, False]])
    assert ages.device.type == "cpu"
    assert ages.weight([0, 1]).shape[-1] == 2
    margins = aol.Margins(3, labels=labels)
    margins.observe(range(7), ANSWER)
    margins.advance()
    assert margins.offsets.device.type == "cpu"


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("kind", [aol.ClassAges, aol.ErrorRates, aol.Margins])
def test_ages_of_classes_lie_on_the_default_device_as_a_whole(kind: type[aol.ClassAges]) -> None:
    assert {value.device.type for value in kind(3).buffers()} == {"meta"}


def listed(samples: Iterator[object]) -> list[object]:
    return [each.tolist() if isinstance(each, Tensor) else each for each in samples]


def remembered() -> list[Tensor]:
    memory = aol.Reservoir(3)
    memory.add(range(9))
    return [memory.indices]


@pytest.mark.parametrize(
    "order",
    [
        lambda: aol.AgeSampler(aol.SampleAges(LABELS)),
        lambda: aol.ShiftingTail(LABELS, 2, period=1, steps=2),
        lambda: [aol.long_tail(LABELS, 2)],
        remembered,
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
