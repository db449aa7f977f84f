"""A damaged checkpoint is refused, and never loaded in part."""

from __future__ import annotations

from pathlib import Path

import torch

from aol.lab.train.groups import load_checkpoint, save_checkpoint
from tests.support.tiny_runs import make_loop, settings


def test_a_flipped_bit_anywhere_is_found_or_makes_no_difference(tmp_path: Path) -> None:
    runs = [settings(weighting="aol", margin="age", lr=0.001)]
    loop, other = make_loop(runs), make_loop(runs)
    loop.run_epoch()
    state = loop.state_dict()
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
