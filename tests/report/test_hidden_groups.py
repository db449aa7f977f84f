"""Hidden groups: old samples of learnt classes by the class they are taken for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import aol
from aol.cli import build
from aol.lab.cli import runs_of, settings_of
from aol.report.advice import advise, hidden_groups
from tests.support.made_runs import make_data

samples = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([-1, 0, 1, 2]), st.sampled_from([0, 1, 2, 6, 9])), max_size=150
)


@given(samples)
def test_groups_are_what_plain_python_finds(rows: list[tuple[int, int, int]]) -> None:
    label, prediction, age = (np.array([row[place] for row in rows], dtype=np.int64) for place in range(3))
    found = hidden_groups(label, prediction.astype(np.int32), age.astype(np.int32))
    wanted = []
    for c in range(3):
        known = [(p, a) for y, p, a in rows if y == c and p >= 0 and a > 0]
        if not known or sum(p == c for p, _ in known) / len(known) < 0.8:
            continue
        for other in {0, 1, 2} - {c}:
            count = sum(y == c and p == other and a > 5 for y, p, a in rows)
            if count >= 5:
                wanted.append((count, c, other))
    assert sorted((size, label, other) for label, other, size, _ in found) == sorted(wanted)
    assert [size for *_, size, _ in found] == sorted((size for *_, size, _ in found), reverse=True)


def test_a_report_names_the_groups_of_learnt_classes_only() -> None:
    data = make_data(names=["coat", "pullover", "bag"], counts=[100, 100, 100])
    assert data.samples is not None
    label = np.repeat([0, 1, 2], 100)
    prediction = label.copy()
    prediction[:7] = 1  # coats that are taken for pullovers
    prediction[100:150] = 2  # pullovers are not learnt
    age = np.where(prediction == label, 1, 8)
    told = replace(data.samples, label=label, prediction=prediction.astype(np.int32), age=age.astype(np.int32))
    (advice,) = [each for each in advise(replace(data, samples=told)) if each.kind == "hidden"]
    assert "7 old samples of “coat” are taken for “pullover”, though 93% of the class is learnt" in advice.text
    assert list(advice.classes) == [0]
    assert advice.see == "samples"
    flags = advice.text.rstrip(".").rpartition(": ")[2].split()
    words = build("train").parse_args(["train", *flags])
    (run,) = runs_of("train", {name: getattr(words, name) for name in settings_of("train")})
    assert (run.weighting, run.level, run.fuse, run.temper) == ("aol", "sample", "peak", 1.5)
    own = replace(data, samples=told, run=replace(data.run, settings={"lr": 0.1}))
    (advice,) = [each for each in advise(own) if each.kind == "hidden"]
    known = {"aol": aol, "labels": label, "index": [0, 1]}
    make, _, weigh = advice.text.rstrip(".").rpartition(": ")[2].partition(", then ")
    exec(make, known)
    assert eval(weigh, known).tolist() == [1.0, 1.0]
    young = replace(told, age=np.minimum(told.age, 3))
    assert "hidden" not in {each.kind for each in advise(replace(data, samples=young))}
