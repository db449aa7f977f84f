from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aol.report.page import as_script
from aol.report.payload import pack, spread, steps
from tests.support.made_runs import PAYLOADS


def unpacked(packed: dict[str, object]) -> list[float]:
    """The page's own reading, written out: see assets/data.js."""
    raw = base64.b64decode(str(packed["data"]))
    wide = packed["bits"] == 16
    codes = [raw[i] + 256 * raw[i + 1] for i in range(0, len(raw), 2)] if wide else list(raw)
    top = (2**16 if wide else 2**8) - 2
    low, high, power = (float(packed[name]) for name in ("low", "high", "power"))  # type: ignore[arg-type]
    return [float("nan") if code > top else low + (high - low) * (code / top) ** (1 / power) for code in codes]


def restored(coded: list[object], length: int) -> list[int]:
    """The page's own reading of ages, written out."""
    first, text = coded
    ages = [first]
    for byte in base64.b64decode(str(text)):
        for place in range(4):
            before = ages[-1]
            ages.append([0, 1, max(1, before) + 1, before][byte >> 2 * place & 3])
    return ages[:length]


@pytest.mark.parametrize(
    ("bits", "power", "error"), [(16, 1.0, 1e-5), (16, 0.5, 4e-5), (8, 1.0, 2.1e-3), (8, 0.5, 4.1e-3)]
)
def test_packed_numbers_come_back_to_what_a_screen_can_show(bits: int, power: float, error: float) -> None:
    values = np.random.default_rng(0).normal(size=500)
    values[7] = np.nan
    values[8] = np.inf
    found = np.array(unpacked(pack(values, bits=bits, power=power)))
    assert np.isnan(found[[7, 8]]).all()
    rest = np.delete(np.arange(500), [7, 8])
    assert np.abs(found - values)[rest].max() <= error * np.ptp(values[rest])


def test_a_root_keeps_small_values_apart() -> None:
    values = np.array([1.0, 1.001, 1.01, 100.0])
    assert len(set(unpacked(pack(values, bits=8, power=0.5)))) >= 3
    assert len(set(unpacked(pack(values, bits=8, power=1.0)))) == 2


@pytest.mark.parametrize("values", [np.zeros((0, 3)), np.full(4, np.nan), np.full(3, 2.5)])
def test_nothing_no_number_and_one_number_can_be_packed(values: np.ndarray) -> None:
    np.testing.assert_array_equal(unpacked(pack(values)), values.ravel())


@given(st.lists(st.sampled_from("rwa"), max_size=50), st.integers(0, 3))
def test_ages_come_back_exactly(data: list[str], first: int) -> None:
    ages = [first]
    for what in data:
        ages.append({"r": 1, "w": max(1, ages[-1]) + 1, "a": ages[-1]}[what])
    assert restored(steps(np.array(ages)), len(ages)) == ages  # type: ignore[arg-type]


def test_a_history_of_two_hundred_epochs_is_short() -> None:
    ages = np.tile(np.arange(1, 11), 20)
    assert len(json.dumps(steps(ages))) < 90


@given(st.integers(0, 300), st.integers(2, 300))
def test_a_spread_is_even_and_keeps_the_ends(size: int, points: int) -> None:
    places = spread(size, points)
    assert len(places) <= min(size, points) or size == 0
    if size:
        assert places[-1] == size - 1
        assert places[0] == 0
        gaps = np.diff(places)
        assert not len(gaps) or gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize("text", PAYLOADS)
def test_text_cannot_end_the_element_it_stands_in(text: str) -> None:
    script = as_script({"name": text})
    assert "<" not in script
    assert "\u2028" not in script
    assert json.loads(script) == {"name": text}
