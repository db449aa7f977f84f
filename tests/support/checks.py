"""Checks that hold for every state, sampler, stream and memory, whatever it does."""

from __future__ import annotations

import copy
import io
import pickle
import random
import warnings

import numpy as np
import pytest
import torch

from tests.support.subjects import Subject


def plain(value) -> object:
    """A value in a form that compares with ==, to the last bit and NaN to NaN."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():  # the bits of a NaN differ by how it was computed
            value = value.masked_fill(value.isnan(), torch.nan)
        return (str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes())
    if isinstance(value, np.ndarray):
        return ("array", plain(torch.from_numpy(value)))
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value


def view(subject: Subject, thing) -> object:
    return plain(subject.look(thing))


def worked(subject: Subject, pieces: int = 5, seed: int = 0):
    """One that has done some work; with five pieces a state is in the middle of an epoch."""
    thing = subject.make(seed)
    for number in range(pieces):
        subject.work(thing, number)
    return thing


def assert_go_on_alike(subject: Subject, one, other) -> None:
    assert view(subject, one) == view(subject, other)
    for number in range(5, 9):
        subject.work(one, number)
        subject.work(other, number)
        assert view(subject, one) == view(subject, other)


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def check_pickle_and_copy_go_on_alike_and_share_nothing(subject: Subject) -> None:
    for twin_of in (lambda thing: pickle.loads(pickle.dumps(thing)), copy.deepcopy):
        for pieces in (0, 5):
            thing = worked(subject, pieces)
            twin, before = twin_of(thing), view(subject, thing)
            assert type(twin) is type(thing)
            subject.work(twin_of(twin), 5)
            assert view(subject, thing) == before
            assert_go_on_alike(subject, thing, twin)


def check_a_state_goes_on_alike(subject: Subject) -> None:
    for through in (lambda state: state, through_a_file):
        for pieces in (0, 5):
            thing, fresh, used = worked(subject, pieces), subject.make(0), worked(subject, 3)
            state = through(thing.state_dict())
            fresh.load_state_dict(state)
            used.load_state_dict(state)  # whatever it had done before is gone
            assert view(subject, thing) == view(subject, fresh)
            assert_go_on_alike(subject, used if subject.starts_over else thing, fresh)


def check_a_state_is_tensors_and_primitives(subject: Subject) -> None:
    def allowed(value) -> bool:
        if isinstance(value, list | tuple):
            return all(map(allowed, value))
        if isinstance(value, dict):
            return all(isinstance(key, str) and allowed(each) for key, each in value.items())
        return value is None or type(value) in (bool, int, float, str, torch.Tensor)

    for pieces in (0, 5):
        assert allowed(worked(subject, pieces).state_dict())


def spoil(value) -> None:
    """Write over a tensor, or the tensors in a dict."""
    if isinstance(value, dict):
        for each in value.values():
            spoil(each)
    elif isinstance(value, torch.Tensor) and value.numel():
        value.fill_(1)


def check_a_state_shares_nothing(subject: Subject) -> None:
    thing, other = worked(subject), subject.make(0)
    before = view(subject, thing)
    state = thing.state_dict()
    other.load_state_dict(state)
    state.pop("order", None)  # shared by design: a loader takes a state every step, and must not copy it every step
    spoil(state)
    state.clear()
    assert view(subject, thing) == before
    assert view(subject, other) == before
    taken = thing.state_dict()
    other.load_state_dict(taken)
    spoil(taken)  # the loaded one has a copy even of the order
    assert view(subject, other) == before


def check_inference_mode_leaves_no_trace(subject: Subject) -> None:
    thing = worked(subject, 2)
    with torch.inference_mode():
        for number in range(2, 5):
            subject.work(thing, number)
    buffers = thing.buffers() if isinstance(thing, torch.nn.Module) else ()
    assert not any(buffer.is_inference() for buffer in buffers)  # which no gradient could use
    assert_go_on_alike(subject, thing, worked(subject))


def check_what_comes_out_is_a_copy(subject: Subject) -> None:
    thing = worked(subject)
    before = view(subject, thing)
    for name in dir(type(thing)):
        if isinstance(getattr(type(thing), name), property) and not name.startswith("_"):
            spoil(getattr(thing, name))
    for value in subject.look(thing):
        if not any(value is each for each in thing.state_dict().values()):
            spoil(value)
    assert view(subject, thing) == before


def check_what_goes_in_is_left_alone_and_not_kept(subject: Subject) -> None:
    """Every tensor that a method is given is written over as soon as it returns."""
    honest, thing = worked(subject), subject.make(0)

    def spoiling(method):
        def call(*arguments):
            own = [each.clone() for each in arguments]
            method(*own)
            for mine, given in zip(own, arguments, strict=True):
                assert plain(mine) == plain(given)  # left alone
                spoil(mine)

        return call

    for name in [name for name in ("observe", "add") if hasattr(thing, name)]:
        setattr(thing, name, spoiling(getattr(thing, name)))
    for number in range(5):
        subject.work(thing, number)
    vars(thing).pop("observe", None)
    vars(thing).pop("add", None)
    assert view(subject, thing) == view(subject, honest)


def check_refuses_states_of_others(subject: Subject, strangers: list) -> None:
    thing = worked(subject)
    before = view(subject, thing)
    for make in subject.others:
        with pytest.raises(ValueError, match=r"This (is not a )?state.*\."):
            thing.load_state_dict(make().state_dict())
        assert view(subject, thing) == before
    for stranger in strangers:
        with pytest.raises(ValueError, match=r"This (is not a )?state.*\."):
            thing.load_state_dict(stranger.state_dict())
        assert view(subject, thing) == before


def check_refuses_damaged_states(subject: Subject) -> None:
    thing, target = worked(subject), worked(subject, 4)
    before = view(subject, target)
    whole = thing.state_dict()
    damaged = [{k: v for k, v in whole.items() if k != key} for key in whole]
    damaged += [{**whole, key: value} for key in whole for value in (None, -5, {}, torch.zeros(2, 3, 4))]
    for key, value in whole.items():
        if isinstance(value, torch.Tensor):
            damaged += [{**whole, key: value[None]}, {**whole, key: value.numpy()}]
            damaged += [] if subject.grows or not value.dim() else [{**whole, key: value[..., :-1]}]
        elif isinstance(value, dict):
            damaged += [{**whole, key: {k: v for k, v in value.items() if k != name}} for name in value]
            damaged += [{**whole, key: {**value, name: None}} for name in value if value[name] is not None]
    for state in damaged:
        if plain(list(state.values())) == plain(list(whole.values())):
            continue
        with pytest.raises((ValueError, TypeError), match="state"):
            target.load_state_dict(state)
        assert view(subject, target) == before
    target.load_state_dict(whole)
    assert view(subject, target) == view(subject, thing)


def in_a_model(state: torch.nn.Module) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model.add_module("state", state)
    return model


def check_a_state_lives_in_a_users_model(subject: Subject) -> None:
    thing = worked(subject)
    if not isinstance(thing, torch.nn.Module):
        return
    before, model = view(subject, thing), in_a_model(thing).half()
    assert model[0].weight.dtype == torch.float16
    assert view(subject, thing) == before  # its numbers keep their type, and are not rounded
    assert not list(thing.parameters())
    whole, other = model.state_dict(), in_a_model(subject.make(0)).half()
    rest = {key: value for key, value in whole.items() if not key.startswith("state.")}
    other.load_state_dict(rest, strict=False)  # a checkpoint from before there was a state
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict(rest)
    assert view(subject, other.state) == view(subject, subject.make(0))
    other.load_state_dict(through_a_file(whole))
    assert view(subject, other.state) == before
    with pytest.raises(ValueError, match=r"This state does not fit"):
        in_a_model(subject.others[0]()).load_state_dict(whole)


def check_seeding(subject: Subject) -> None:
    same, again, other = (worked(subject, 12, seed=seed) for seed in (4, 4, 5))
    assert view(subject, same) == view(subject, again)
    if subject.seeded:
        assert view(subject, same) != view(subject, other)


def check_leaves_global_generators_alone(subject: Subject) -> None:
    def states():
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002

    before = states()
    thing = worked(subject, 6)
    subject.look(thing)
    subject.make(0).load_state_dict(thing.state_dict())
    assert states() == before
    torch.manual_seed(123)  # nor do they listen to them
    reseeded = worked(subject, 6)
    assert view(subject, reseeded) == view(subject, thing)
    torch.set_rng_state(torch.tensor(before[0], dtype=torch.uint8))


def check_memory_is_bounded(subject: Subject) -> None:
    def held(thing) -> int:
        return len(pickle.dumps(thing))

    few, many = worked(subject, 6), worked(subject, 60)
    if subject.grows:
        assert held(many) <= 10 * held(few) + 2 * 8 * 300
    else:
        assert abs(held(many) - held(few)) <= 64  # a counter may need a byte or two more


def check_bad_calls_name_the_argument_and_change_nothing(subject: Subject) -> None:
    thing = worked(subject)
    before = view(subject, thing)
    assert subject.bad_calls
    for call, error, named in subject.bad_calls:
        with pytest.raises(error, match=named) as caught:
            call(thing)
        assert type(caught.value) in (ValueError, TypeError, IndexError)
        assert str(caught.value).endswith(".")
        assert view(subject, thing) == before


def strange(value: torch.Tensor) -> list[torch.Tensor]:
    """A tensor in the kinds for which PyTorch has few operations."""
    number = value.double().nan_to_num(0.0).float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # prototypes, and what will go
        odd = [
            value.to("meta"),
            number.to(torch.float8_e4m3fn),
            torch.quantize_per_tensor(number, 1.0, 0, torch.quint8),
            value.to(torch.complex64),
        ]
        if value.dim():
            odd += [value.to_sparse(), torch.nested.nested_tensor([value, value])]
    return odd


def check_strange_tensors_raise_whatever_they_raise_and_change_nothing(subject: Subject) -> None:
    thing, size = worked(subject), 2
    before, state = view(subject, thing), thing.state_dict()
    index, runs = torch.arange(size), getattr(thing, "rho", torch.tensor(0)).shape
    answer = torch.ones((*runs, size), dtype=torch.int64)
    calls = [lambda odd=odd: thing.load_state_dict(odd) for odd in strange(index)]
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            calls += [lambda odd=odd, key=key: thing.load_state_dict({**state, key: odd}) for odd in strange(value)]
    if hasattr(thing, "observe"):
        calls += [lambda odd=odd: thing.observe(odd, answer) for odd in strange(index)]
        calls += [lambda odd=odd: thing.observe(index, odd) for odd in strange(answer)]
    if hasattr(thing, "add"):
        calls += [lambda odd=odd: thing.add(odd) for odd in strange(index)]
    for call in calls:
        with pytest.raises(Exception):  # noqa: B017, PT011
            call()
        assert view(subject, thing) == before


def check_an_empty_call_changes_nothing(subject: Subject) -> None:
    thing = worked(subject)
    before = view(subject, thing)
    runs = getattr(thing, "rho", torch.tensor(0)).shape
    if hasattr(thing, "observe"):
        thing.observe([], torch.zeros(*runs, 0, dtype=torch.int64))
        assert not hasattr(thing, "weight") or thing.weight([]).shape == (*runs, 0)
    elif hasattr(thing, "add"):
        thing.add([])
    else:
        iter(thing)  # an iterator that is not begun
    assert view(subject, thing) == before


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
