"""The common checks, run over every state, sampler, stream and memory; and over every public name."""

from __future__ import annotations

import inspect

import pytest

import aol
from tests.support import checks
from tests.support.subjects import SUBJECTS

NEEDS_STRANGERS = checks.check_refuses_states_of_others


@pytest.mark.parametrize("check", [c for c in checks.CHECKS if c is not NEEDS_STRANGERS], ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_one_of_them(name, check):
    check(SUBJECTS[name])


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_state_of_something_else_is_refused(name):
    own = name.split("-")[0]
    strangers = [checks.worked(subject) for other, subject in SUBJECTS.items() if other.split("-")[0] != own]
    NEEDS_STRANGERS(SUBJECTS[name], strangers)


def test_no_public_state_sampler_stream_or_memory_is_left_out():
    stateful = {name for name in aol.__all__ if hasattr(getattr(aol, name), "load_state_dict")}
    losses = {name for name in stateful if name.endswith("Loss")}  # with tests of their own
    assert stateful - losses == {name.split("-")[0] for name in SUBJECTS}


PUBLIC = [name for name in aol.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_documented_with_an_example(name):
    thing = getattr(aol, name)
    assert thing.__doc__
    assert ">>>" in thing.__doc__
    assert thing.__doc__.strip().splitlines()[0].endswith((".", ":"))


@pytest.mark.parametrize("name", [name for name in PUBLIC if inspect.isclass(getattr(aol, name))])
def test_every_public_method_and_property_is_documented(name):
    for member, value in inspect.getmembers(getattr(aol, name)):
        ours = (getattr(value, "__module__", None) or "").startswith("aol") or isinstance(value, property)
        if not member.startswith("_") and ours and (callable(value) or isinstance(value, property)):
            assert inspect.getdoc(value), f"{name}.{member}"


def test_public_names_are_sorted_and_there():
    assert aol.__all__ == sorted(aol.__all__)
    assert all(hasattr(aol, name) for name in aol.__all__)


BAD_MAKINGS = {
    "labels": [
        ([], ValueError),
        ([[0, 1]], ValueError),
        (0, ValueError),
        ([-1], ValueError),
        ([0, 2**62], ValueError),
        ([0.5], TypeError),
        ([True], TypeError),
        (["cat"], TypeError),
        ("cat", TypeError),
        (None, TypeError),
    ],
    "num_classes": [(1, ValueError), (2**62, ValueError), (0, ValueError), (2.0, TypeError), (True, TypeError)],
    "rho": [
        (-0.1, ValueError),
        (1.1, ValueError),
        (float("nan"), ValueError),
        ([], ValueError),
        ([[0.5]], ValueError),
        ([0.5, 2.0], ValueError),
        ("0.5", TypeError),
        (None, TypeError),
        (True, TypeError),
        (1j, TypeError),
    ],
    "level": [("classes", ValueError), (None, ValueError), (["class"], ValueError)],
    "fuse": [("median", ValueError), ("mean", ValueError)],
    "absent": [("drop", ValueError)],
}


@pytest.mark.parametrize(("name", "value", "error"), [(n, *case) for n, cases in BAD_MAKINGS.items() for case in cases])
def test_ages_made_wrongly_name_the_argument(name, value, error):
    arguments = {"labels": [0, 1], name: value}
    with pytest.raises(error, match=name):
        aol.SampleAges(**arguments)
    if name in ("num_classes", "rho") and value != 1:
        for kind in (aol.ClassAges, aol.ErrorRates):
            with pytest.raises(error, match=name):
                kind(**{"num_classes": 3, name: value})
