"""A damaged checkpoint is refused, and never loaded in part."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from aol._checkpoint import DamagedCheckpointError, load_tensors
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
