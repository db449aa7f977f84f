"""A checkpoint that anyone may have changed: refused in one sentence, and never loaded in part."""

from __future__ import annotations

import copy
import io
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aol._checkpoint import DamagedCheckpointError, load_tensors
from aol.lab.engine.loop import Loop
from aol.lab.train.groups import load_checkpoint, save_checkpoint
from tests.support.tiny_runs import make_loop, settings, stream_settings

State = dict[str, object]
KINDS = {
    "sgd": [settings(weighting="aol", average=0.9), settings(weighting="old", seed=1, average=0.9)],
    "adamw": [settings(weighting="aol", optimiser="adamw", margin="age", lr=0.001)],
    "plain": [settings(momentum=0.0)],
    "all": [stream_settings(weighting="aol", margin="error")],
    "reservoir": [stream_settings(weighting="aol", memory="reservoir:9")],
    "last": [stream_settings(weighting="error", memory="none")],
}


def trained(kind: str) -> tuple[State, Loop]:
    runs = KINDS[kind]
    keep = {"keep_samples": True} if kind == "sgd" else {}
    loop, other = make_loop(runs, **keep), make_loop(runs, **keep)
    for _ in range(2):
        loop.run_epoch()
    return loop.state_dict(), other


def leaves(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[tuple[object, ...], object]]:
    if path:
        yield path, value
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from leaves(each, (*path, key))


def changed(state: State, path: tuple[object, ...], value: object) -> State:
    """Return a copy with another value at a path; `...` removes it."""
    found = here = dict(state)
    for key in path[:-1]:
        here[key] = copy.copy(here[key])
        here = here[key]
    if value is ...:
        del here[path[-1]]
    else:
        here[path[-1]] = value
    return found


def wrong(value: object) -> Iterator[object]:
    """Yield what cannot be in the place of a value."""
    yield from (..., None, "x", 2**70, -1, {}, [])
    if isinstance(value, torch.Tensor):
        yield value.flatten()[:-1] if value.dim() else value[None].repeat(2)
        yield value[None]
        yield value.to(torch.complex64)
        yield torch.zeros(1, dtype=value.dtype).expand(2**40)
        yield value.to_sparse() if value.dim() else value.numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_missing_or_of_another_kind_is_refused(kind: str) -> None:
    state, other = trained(kind)
    tried = 0
    for path, value in leaves(state):
        if value is None or path[-1] in ("indices", "stacking") or (kind == "plain" and "optimiser" in path):
            continue  # not loaded, of any size, or read before the loop is made (`runs/group_training.py`)
        for each in wrong(value):
            if type(each) is type(value) and not isinstance(each, torch.Tensor) and each == value:
                continue
            if path[-1] == "sha256" and each is ...:
                continue  # states of earlier versions have none
            with pytest.raises((ValueError, TypeError), match=r"[Ss]tate|started with"):
                other.load_state_dict(changed(state, path, each))
            tried += 1
    assert tried > 100
    other.load_state_dict(state)
    other.run_epoch()


VALUES = {
    ("ages", "word"): -5,
    ("ages", "ema"): float("inf"),
    ("ages", "epoch"): 1,
    ("error_rates", "rate"): -0.5,
    ("error_rates", "right"): 10**6,
    ("test_ages", "word"): 1 << 20,
    ("samples", "age"): -5,
    ("samples", "times"): 10**6,
    ("samples", "answer"): 7.5,
    ("samples", "mean"): float("inf"),
    ("signals", "wrong"): -1,
    ("history", "by_epoch"): 3.0,
    ("learner", "net", "network.head.weight"): None,
    ("epoch",): 99,
    ("failed", 0): 99,
}


@pytest.mark.parametrize("path", VALUES)
def test_a_value_that_no_run_reaches_is_refused(path: tuple[object, ...]) -> None:
    state, other = trained("sgd")
    before: object = state
    for key in path:
        before = before[key]
    after = torch.full_like(before, VALUES[path]) if isinstance(before, torch.Tensor) and VALUES[path] else VALUES[path]
    with pytest.raises(ValueError, match="damaged"):
        other.load_state_dict(changed(state, path, after))


@pytest.mark.parametrize(("kind", "key"), [("all", "counts"), ("reservoir", "indices"), ("last", "indices")])
@pytest.mark.parametrize("value", [-1, 10**9])
def test_a_memory_of_samples_that_are_not_there_is_refused(kind: str, key: str, value: int) -> None:
    if (key, value) == ("counts", 10**9):
        value = 2**62  # whose sum wraps
    state, other = trained(kind)
    full = torch.full_like(state["memories"][0][key], value)
    with pytest.raises((ValueError, IndexError), match=r"damaged|memories"):
        other.load_state_dict(changed(state, ("memories", 0, key), full))


def test_a_momentum_in_another_memory_format_is_rearranged(tmp_path: Path) -> None:
    state, other = trained("sgd")
    twin = copy.deepcopy(state)
    for moment in twin["learner"]["optimiser"]["state"].values():
        moment["momentum_buffer"] = moment["momentum_buffer"].contiguous()
    same = make_loop(KINDS["sgd"], keep_samples=True)
    for loop, each in ((other, state), (same, twin)):
        loop.load_state_dict(each)
        loop.run_epoch()
    one, two = (loop.learner.networks(0)["network"] for loop in (other, same))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_flipped_bit_anywhere_is_found_or_makes_no_difference(tmp_path: Path) -> None:
    state, other = trained("adamw")
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, state)
    whole, generator = path.read_bytes(), torch.Generator().manual_seed(0)
    refused = 0
    for place in torch.randint(0, 8 * len(whole), (300,), generator=generator).tolist():
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            other.load_state_dict(load_checkpoint(path))
        except ValueError:
            refused += 1
            continue
        torch.testing.assert_close(other.learner.state_dict()["net"], state["learner"]["net"], rtol=0, atol=0)
    assert refused > 200


class _Zeros:
    def __reduce__(self) -> tuple[type, tuple[int]]:
        return bytearray, (10**11,)


def test_a_file_that_would_fill_the_memory_is_refused_before_it_does(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    torch.save({"a": torch.zeros(4)}, path)
    with zipfile.ZipFile(path) as archive:
        members = {each.filename: archive.read(each) for each in archive.infolist()}
    pickled = next(name for name in members if name.endswith("data.pkl"))

    def written(content: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> None:
        with zipfile.ZipFile(path, "w", kind) as archive:
            for name, each in content.items():
                archive.writestr(name, each)

    written(members)
    assert load_tensors(path).keys() == {"a"}
    written(members, zipfile.ZIP_DEFLATED)
    with pytest.raises(DamagedCheckpointError, match="compressed"):
        load_tensors(path)
    written(members | {pickled: pickle.dumps({"a": _Zeros()}, protocol=2)})
    with pytest.raises(DamagedCheckpointError, match="more than tensors"):
        load_tensors(path)


def test_nested_lists_of_any_size_are_shown_in_few_words() -> None:
    nested: list[object] = ["x"]
    for _ in range(60):
        nested = [nested, nested]
    buffer = io.BytesIO()
    torch.save({"failed": nested}, buffer)
    state, other = trained("plain")
    for key in ("failed", "runs", "epoch"):
        with pytest.raises(ValueError, match="state") as caught:
            other.load_state_dict({**state, key: nested})
        assert len(str(caught.value)) < 300
