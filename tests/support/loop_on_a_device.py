"""A plain PyTorch loop on a device, as the README has it: tests that ask for `device`, run on the CPU and on CUDA."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import aol
from aol.records.record import read_run
from tests.support.wide_margins import (
    CLASSES,
    DATA,
    EPOCHS,
    IMAGES,
    KINDS,
    LABELS,
    RATE,
    SAMPLES,
    SEED,
    SIZE,
    ages,
    check_ages,
    check_moved,
    network,
    no_waiting,
    shuffled_steps,
    weights,
)

BACKENDS = {"cpu": "aot_eager", "cuda": "inductor"}


def key_of(kind: str, y: Tensor, index: Tensor) -> Tensor:
    return y if kind == "ages of classes" else index


def trained(
    kind: str,
    device: str,
    *,
    ages_at: str | None = None,
    epochs: int = EPOCHS,
    precision: torch.dtype = torch.float32,
    parts: int = 1,
    pinned: bool = False,
    state: dict | None = None,
    keys_move: bool = True,
) -> tuple[nn.Linear, aol.SampleAges | aol.ClassAges, dict]:
    """Train, and return the model, its ages and a state to go on from."""
    model, known = network().to(device), ages(kind, ages_at or device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    scaler = torch.amp.GradScaler(device, enabled=precision == torch.float16, init_scale=1024.0)
    order = aol.ShuffledSampler(SAMPLES, seed=SEED)
    if state is not None:
        model.load_state_dict(state["model"])
        known.load_state_dict(state["ages"])
        order.load_state_dict(state["order"])
    loader = DataLoader(aol.Indexed(DATA), batch_size=SIZE // parts, sampler=order, pin_memory=pinned)
    watched = device if known.device.type == device else "cpu"

    def moved(batch: list[Tensor]) -> list[Tensor]:
        x, y, index = batch
        x, y = (each.to(device, non_blocking=pinned) for each in (x, y))
        return [x, y, index.to(device, non_blocking=pinned) if keys_move else index]

    while known.epoch < epochs:
        batches = [moved(batch) for batch in loader]
        for start in range(0, len(batches), parts):
            step = batches[start : start + parts]
            keys = [key_of(kind, y, index) for _, y, index in step]
            with no_waiting(watched):
                total = aol.loss_total([known.weight(key) for key in keys])
                for (x, y, _), key in zip(step, keys, strict=True):
                    with torch.autocast(device, precision, enabled=precision != torch.float32):
                        logits = model(x)
                        loss = aol.weighted_mean(aol.softmax_loss(logits, y), known.weight(key), total=total)
                    assert loss.dtype == torch.float32
                    scaler.scale(loss).backward()
            scaler.step(optimizer)  # looks for infinite gradients, where it scales
            scaler.update()
            optimizer.zero_grad()
        with torch.no_grad():
            for batch in map(moved, DataLoader(loader.dataset, SIZE)):
                known.observe(key_of(kind, *batch[1:]), aol.is_correct(model(batch[0]), batch[1]))
        known.advance()
    states = {"model": copy.deepcopy(model.state_dict()), "ages": known.state_dict(), "order": order.state_dict()}
    return model, known, states


PRECISIONS = {"float32": (torch.float32, 1e-4), "bfloat16": (torch.bfloat16, 0.03), "float16": (torch.float16, 0.01)}


@pytest.mark.parametrize(
    ("kind", "precision", "parts"),
    [
        ("sample", "float32", 1),
        ("sample", "float16", 3),
        ("class", "bfloat16", 3),
        ("ages of classes", "float32", 3),
        ("ages of classes", "bfloat16", 1),
    ],
)
def test_a_loop_keeps_the_ages_and_moves_the_model_as_by_hand(
    kind: str, precision: str, parts: int, device: str
) -> None:
    dtype, off = PRECISIONS[precision]
    model, known, _ = trained(kind, device, precision=dtype, parts=parts)
    assert known.device.type == device
    check_ages(known, kind, EPOCHS)
    check_moved(model, kind, shuffled_steps(EPOCHS, SIZE, SEED), off)


@pytest.mark.parametrize("kind", ["sample", "ages of classes"])
@pytest.mark.parametrize(
    ("home", "keys_move", "pinned"), [("cpu", True, False), ("cpu", False, True), ("device", True, True)]
)
def test_ages_may_lie_elsewhere_than_the_model(
    kind: str, keys_move: bool, pinned: bool, home: str, device: str
) -> None:
    at = device if home == "device" else "cpu"
    pinned = pinned and torch.cuda.is_available()
    model, known, _ = trained(kind, device, ages_at=at, keys_move=keys_move, pinned=pinned)
    check_ages(known, kind, EPOCHS)
    check_moved(model, kind, shuffled_steps(EPOCHS, SIZE, SEED))


@pytest.mark.parametrize("of_sample", [aol.softmax_loss, aol.focal_loss])
def test_a_compiled_step_trains_alike(of_sample: Callable[..., Tensor], device: str) -> None:
    model, known = network().to(device), ages("sample", device)
    known.observe(range(SAMPLES), aol.is_correct(IMAGES, LABELS))
    known.advance()
    x, y, index = (each.to(device) for each in (IMAGES, LABELS, torch.arange(SAMPLES)))

    def loss(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return aol.weighted_mean(of_sample(model(x), y), weight)

    compiled = torch.compile(loss, backend=BACKENDS[device], fullgraph=True)
    weight = known.weight(index)
    compiled(x, y, weight).backward()
    found = model.weight.grad.clone()
    model.zero_grad()
    loss(x, y, weight).backward()
    torch.testing.assert_close(found, model.weight.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_with_ages_in_it_is_not_compiled_anew_every_epoch(kind: str, device: str) -> None:
    model, known = network().to(device), ages(kind, device)
    x, y, index = (each.to(device) for each in (IMAGES, LABELS, torch.arange(SAMPLES)))
    each_loss = aol.softmax_loss(IMAGES, LABELS).double()

    def step(x: Tensor, y: Tensor, key: Tensor) -> Tensor:
        logits = model(x)
        known.observe(key, aol.is_correct(logits, y))
        return aol.weighted_mean(aol.softmax_loss(logits, y), known.weight(key))

    torch.compiler.reset()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for epoch in range(12):
        with torch._dynamo.config.patch(error_on_recompile=epoch > 0):
            loss = compiled(x, y, key_of(kind, y, index))
        weight = torch.tensor(weights(kind, epoch)).double()
        assert loss.item() == pytest.approx(float((weight * each_loss).sum() / weight.sum()), rel=1e-5)
        known.advance()
    check_ages(known, kind, 12)


@pytest.mark.parametrize(("kind", "turned"), [("sample", False), ("class", True), ("ages of classes", False)])
def test_a_loop_goes_on_from_a_file_that_the_other_device_wrote(
    kind: str, turned: bool, device: str, tmp_path: Path
) -> None:
    first, second = ("cpu", device) if turned else (device, "cpu")
    *_, state = trained(kind, first, epochs=2)
    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True, map_location=second)
    model, known, _ = trained(kind, second, epochs=4, state=loaded)
    check_ages(known, kind, 4)
    check_moved(model, kind, shuffled_steps(4, SIZE, SEED))


@pytest.mark.parametrize("kind", ["sample", "ages of classes"])
def test_ages_on_the_host_wait_for_answers_that_are_late(kind: str, device: str) -> None:
    known = ages(kind)
    key = LABELS if kind == "ages of classes" else torch.arange(SAMPLES)
    for epoch in range(2):
        x, y = IMAGES.to(device), LABELS.to(device)
        where = key.to(device) if epoch % 2 else key
        if device == "cuda":
            torch.cuda._sleep(200_000_000)  # about a tenth of a second: the answers are not there yet
        known.observe(where, aol.is_correct(x, y))
        known.advance()
    check_ages(known, kind, 2)
    assert known.weight(key.to(device)).device.type == "cpu"


def test_a_sampler_and_a_recorder_take_ages_from_the_device(device: str, tmp_path: Path) -> None:
    drawn, written = [], []
    for place in ("cpu", device):
        known = ages("sample", place)
        recorder = aol.Recorder(tmp_path / f"{len(drawn)}", known)
        for _ in range(3):
            logits = IMAGES.to(place)
            known.observe(range(SAMPLES), aol.is_correct(logits, LABELS))
            recorder.observe(torch.arange(SAMPLES), logits)
            known.advance()
            recorder.advance()
        recorder.close()
        drawn.append(list(aol.AgeSampler(known, num_samples=50, seed=1)))
        readings = read_run(recorder.folder).over_time
        kept = ("age", "smoothed_age", "weight", "train_count", "train_accuracy")  # losses are rounded differently
        written.append({name: readings[name].tolist() for name in kept})
    assert drawn[0] == drawn[1]
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("kind", "loss", "options"),
    [
        ("sample", aol.softmax_loss, {}),
        ("class", aol.sigmoid_loss, {"divide_by": "count"}),
        ("ages of classes", aol.focal_loss, {"total": 3.0}),
        ("error rates", aol.softmax_loss, {}),
    ],
    ids=["sample", "class", "ages of classes", "error rates"],
)
def test_a_step_does_not_wait_for_the_device(
    kind: str, loss: Callable[..., Tensor], options: dict, device: str
) -> None:
    known = aol.ErrorRates(3, rho=0.5, device=device) if kind == "error rates" else ages(kind, device)
    model = network().to(device)
    x, y, index = (each.to(device) for each in (IMAGES, LABELS, torch.arange(SAMPLES)))
    key = index if isinstance(known, aol.SampleAges) else y
    known.observe(key, aol.is_correct(model(x), y))
    known.advance()
    with no_waiting(device):
        logits = model(x)
        known.observe(key, aol.is_correct(logits, y))
        aol.weighted_mean(loss(logits, y), known.weight(key), **options).backward()
    assert torch.isfinite(model.weight.grad).all()


MARGINS = {
    "ages of samples": {"signal": "age", "labels": LABELS},
    "ages of pairs": {"signal": "age"},
    "errors": {"signal": "error"},
    "probabilities": {"signal": "probability"},
}


@pytest.mark.parametrize(
    ("kind", "runs"), [("ages of samples", None), ("ages of pairs", 3), ("errors", None), ("probabilities", 3)]
)
def test_margins_of_the_device_agree_with_the_cpu_and_do_not_wait(kind: str, runs: int | None, device: str) -> None:
    generator, gain = torch.Generator().manual_seed(0), 0.5 if runs is None else torch.linspace(0.0, 1.0, runs)
    made = [aol.Margins(CLASSES, **MARGINS[kind], gain=gain, width=0.1, device=place) for place in ("cpu", device)]
    for _ in range(6):
        for _ in range(3):  # with repeats
            key = torch.randint(0, SAMPLES if "labels" in MARGINS[kind] else CLASSES, (50,), generator=generator)
            answer = torch.randn((*(() if runs is None else (runs,)), 50, CLASSES), generator=generator).softmax(-1)
            for margins in made:
                given = key.to(margins.device), answer.to(margins.device)
                with no_waiting(margins.device.type):
                    margins.observe(*given)
                    margins.adjust(given[1])
        here, there = (margins.pending()[:2] for margins in made)
        assert all(torch.equal(one, other.cpu()) for one, other in zip(here, there, strict=True))
        for margins in made:
            margins.advance(scale=0.9)
        torch.testing.assert_close(made[1].offsets.cpu(), made[0].offsets, rtol=1e-5, atol=1e-6)
    assert made[0].offsets.abs().max() > 0.01


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_offsets_are_added_in_full_precision_under_autocast(dtype: torch.dtype, device: str) -> None:
    logits, y = (1.1 * IMAGES).to(device, dtype), LABELS.to(device)
    offset = torch.tensor([1.0001, 0.0, -1.0001], device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        found = [loss(logits, y, offset=offset) for loss in (aol.softmax_loss, aol.sigmoid_loss, aol.focal_loss)]
    for loss, value in zip((aol.softmax_loss, aol.sigmoid_loss, aol.focal_loss), found, strict=True):
        assert value.dtype == torch.float32
        assert value.equal(loss(logits.float() + offset, y))


CRITERIA: dict[str, Callable[[], nn.Module]] = {
    "counts": lambda: aol.LogitAdjustedLoss(CLASSES),
    "memory": lambda: aol.LogitAdjustedLoss(CLASSES, memory=20.0),
    "margins": lambda: aol.MarginLoss(CLASSES, every=2),
    "ages": lambda: aol.AgeWeightedLoss(CLASSES, every=8),
}


@pytest.mark.parametrize("make", CRITERIA.values(), ids=CRITERIA)
def test_a_loss_learns_and_answers_as_on_the_cpu_and_does_not_wait(make: Callable[[], nn.Module], device: str) -> None:
    here, there = make(), make()
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        logits, y = torch.randn((20, CLASSES), generator=generator), torch.randint(CLASSES, (20,), generator=generator)
        near, far = logits.requires_grad_(), logits.detach().to(device).requires_grad_()
        target, wanted = y.to(device), here(near, y)
        with no_waiting(device if step else "cpu"):  # the first call moves the state
            loss = there(far, target)
            loss.backward()
        torch.testing.assert_close(loss.detach().cpu(), wanted.detach())
        torch.testing.assert_close(far.grad.cpu(), torch.autograd.grad(wanted, near)[0])
    state = there.state_dict()
    assert {value.device.type for value in state.values() if isinstance(value, Tensor)} == {device}
    for name, value in here.state_dict().items():
        torch.testing.assert_close(state[name], value, check_device=False)
