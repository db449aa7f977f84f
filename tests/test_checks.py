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
    "labels": {ValueError: ([], [[0, 1]], 0, [-1], [0, 2**62]), TypeError: ([0.5], [True], ["cat"], "cat", None)},
    "num_classes": {ValueError: (1, 2**62, 0), TypeError: (2.0, True)},
    "rho": {ValueError: (-0.1, 1.1, float("nan"), [], [[0.5]], [0.5, 2.0]), TypeError: ("0.5", None, True, 1j)},
    "level": {ValueError: ("classes", None, ["class"])},
    "fuse": {ValueError: ("median", "mean")},
    "absent": {ValueError: ("drop",)},
}


@pytest.mark.parametrize("name", BAD_MAKINGS)
def test_ages_made_wrongly_name_the_argument(name):
    for error, values in BAD_MAKINGS[name].items():
        for value in values:
            with pytest.raises(error, match=name):
                aol.SampleAges(**{"labels": [0, 1], name: value})
            for kind in (aol.ClassAges, aol.ErrorRates) if name in ("num_classes", "rho") and value != 1 else ():
                with pytest.raises(error, match=name):
                    kind(**{"num_classes": 3, name: value})
