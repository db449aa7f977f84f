"""Calls that must fail, as (call, error, name of the argument), for each kind of subject."""

from __future__ import annotations

import torch

X = torch.tensor([0, 1])
OK = [True, False]
BAD_SAMPLE_CALLS = (
    (lambda a: a.observe([0, 7], OK), IndexError, "index"),
    (lambda a: a.observe([-1, 0], OK), IndexError, "index"),
    (lambda a: a.observe([0.0, 1.0], OK), TypeError, "index"),
    (lambda a: a.observe([True, False], OK), TypeError, "index"),
    (lambda a: a.observe(["a", "b"], OK), TypeError, "index"),
    (lambda a: a.observe(None, OK), TypeError, "index"),
    (lambda a: a.observe(0, True), ValueError, "index"),
    (lambda a: a.observe([[[0]]], OK), ValueError, "index"),
    (lambda a: a.observe([[0], [1, 2]], OK), TypeError, "index"),
    (lambda a: a.observe(X, [True]), ValueError, "correct"),
    (lambda a: a.observe(X, [[[True, False]]]), ValueError, "correct"),
    (lambda a: a.observe(X, [1.0, 0.0]), TypeError, "correct"),
    (lambda a: a.observe(X, None), TypeError, "correct"),
    (lambda a: a.weight([7]), IndexError, "index"),
    (lambda a: a.weight(3), ValueError, "index"),
    (lambda a: a.load_state_dict(None), TypeError, "state"),
)
BAD_RUN_CALLS = (
    (lambda a: a.observe(X, OK), ValueError, "correct"),
    (lambda a: a.observe([[0], [1], [2], [3]], [[True]] * 4), ValueError, "index"),
    (lambda a: a.observe([[0, 7], [0, 1]], [OK, OK]), IndexError, "index"),
    (lambda a: a.weight([[0], [1], [2], [3]]), ValueError, "index"),
)
BAD_CLASS_CALLS = (
    (lambda c: c.observe([0, 3], OK), IndexError, "label"),
    (lambda c: c.observe([0, -1], OK), IndexError, "label"),
    (lambda c: c.observe([0.0, 1.0], OK), TypeError, "label"),
    (lambda c: c.observe(0, True), ValueError, "label"),
    (lambda c: c.observe([[0, 1]], [OK]), ValueError, "label"),
    (lambda c: c.observe(X, [True]), ValueError, "correct"),
    (lambda c: c.observe(X, [0.5, 0.5]), TypeError, "correct"),
    (lambda c: c.observe(X, None), TypeError, "correct"),
    (lambda c: c.weight([3]), IndexError, "label"),
    (lambda c: c.weight("a"), TypeError, "label"),
    (lambda c: c.load_state_dict([]), TypeError, "state"),
)
BAD_CLASS_RUN_CALLS = (
    (lambda c: c.observe(X, OK), ValueError, "correct"),
    (lambda c: c.observe([[0, 1]] * 3, [OK] * 3), ValueError, "label"),
    (lambda c: c.observe([[0, 3], [0, 1]], [OK, OK]), IndexError, "label"),
)
A = [1, 2]  # answers
BAD_MARGIN_CALLS = (
    (lambda m: m.observe([0, -1], A), IndexError, "label"),
    (lambda m: m.observe([0, 99], A), IndexError, "label"),
    (lambda m: m.observe(0, 1), ValueError, "label"),
    (lambda m: m.observe(X, OK), TypeError, "answer"),
    (lambda m: m.observe(X, [0.0, 1.0]), ValueError, "answer"),
    (lambda m: m.observe(X, None), TypeError, "answer"),
    (lambda m: m.observe(X, [1]), ValueError, "answer"),
    (lambda m: m.advance(scale=-1.0), ValueError, "scale"),
    (lambda m: m.advance(scale="fast"), TypeError, "scale"),
    (lambda m: m.adjust(torch.zeros(2, 3, dtype=torch.int64)), TypeError, "logits"),
    (lambda m: m.adjust(torch.zeros(2, 4)), ValueError, "logits"),
    (lambda m: m.load_state_dict(None), TypeError, "state"),
)
BAD_MARGIN_SINGLE_CALLS = (
    *BAD_MARGIN_CALLS,
    (lambda m: m.observe([[0, 1]], [A]), ValueError, "label"),
    (lambda m: m.observe(X, [1, 3]), IndexError, "answer"),
    (lambda m: m.observe(X, [1, -1]), IndexError, "answer"),
    (lambda m: m.observe(X, A, times=[1]), ValueError, "times"),
    (lambda m: m.observe(X, A, times=[0.5, 1.0]), TypeError, "times"),
)
BAD_MARGIN_RUN_CALLS = (
    *BAD_MARGIN_CALLS,
    (lambda m: m.observe(X, A), ValueError, "answer"),
    (lambda m: m.observe(X, [[1, 3], A]), IndexError, "answer"),
    (lambda m: m.observe([[0, 1]] * 3, [A] * 3), ValueError, "label"),
    (lambda m: m.adjust(torch.zeros(2, 3)), ValueError, "logits"),
    (lambda m: m.adjust(torch.zeros(3, 2, 3)), ValueError, "logits"),
)
BAD_SAMPLER_CALLS = (
    (lambda s: s.set_epoch(-1), ValueError, "epoch"),
    (lambda s: s.set_epoch(1.5), TypeError, "epoch"),
    (lambda s: s.load_state_dict(7), TypeError, "state"),
)
BAD_STREAM_CALLS = (
    (lambda s: s[99], IndexError, "step"),
    (lambda s: s["a"], TypeError, "step"),
    (lambda s: s.counts(99), IndexError, "step"),
    (lambda s: s.load_state_dict("x"), TypeError, "state"),
)
BAD_MEMORY_CALLS = (
    (lambda m: m.add([0.5]), TypeError, "indices"),
    (lambda m: m.add([-1]), IndexError, "indices"),
    (lambda m: m.add([[1]]), ValueError, "indices"),
    (lambda m: m.load_state_dict(None), TypeError, "state"),
)
