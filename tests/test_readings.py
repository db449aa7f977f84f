"""Sums by class of what networks answer."""

from __future__ import annotations

import torch

from aol.readings import answers


def test_the_first_of_equal_logits_is_the_answer_and_nan_is_none() -> None:
    values = torch.tensor([-torch.inf, 0.0, 1.0, torch.inf, torch.nan])
    logits = torch.cartesian_prod(values, values, values)[None]
    answer, answered = answers(logits)
    for row, (first, known) in zip(logits[0].tolist(), zip(answer[0], answered[0], strict=True), strict=True):
        broken = [value != value for value in row]
        assert known == (not any(broken))
        assert first == (broken.index(True) if any(broken) else row.index(max(row)))
