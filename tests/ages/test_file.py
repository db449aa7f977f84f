"""Ages in a memory-mapped file: the numbers of the store in memory, after crashes, and refused files."""

from __future__ import annotations

import copy
import errno
import itertools
import multiprocessing
import os
import pickle
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import aol
from aol import _files
from aol.ages import _file, sample
from tests.support.histories import same

SIZE = 157
LABELS = torch.arange(SIZE) ** 2 % 5
LOOK = ("age", "ema", "class_age", "class_weight", "sample_weight", "weights", "mean_age")
KINDS = {
    "ema": {"rho": 0.3},
    "sample level": {"rho": 0.3, "level": "sample"},
    "mean, grow": {"fuse": "mean", "absent": "grow"},
    "peak": {"fuse": "peak"},
    "compact": {"rho": 0.3, "store": "compact"},
    "runs": {"rho": [0.3, 0.0, 1.0], "level": "sample"},
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many parts and blocks, of uneven sizes, also for few samples."""
    monkeypatch.setattr(sample, "_CHUNK", 10)
    monkeypatch.setattr(_file, "_BLOCK", 32)
    monkeypatch.setattr(_file, "_PART", 7)


def tell(ages, epoch: int) -> None:
    """Observe the answers of an epoch: two thirds of the samples."""
    generator = torch.Generator().manual_seed(epoch)
    index = torch.randperm(SIZE, generator=generator)[: 2 * SIZE // 3]
    ages.observe(index, torch.rand(*ages.rho.shape, len(index), generator=generator) < 0.6)


def train(ages, epochs: range) -> None:
    for epoch in epochs:
        tell(ages, epoch)
        ages.advance()


def agree(one, other) -> bool:
    return one.epoch == other.epoch and all(same(getattr(one, name), getattr(other, name)) for name in LOOK)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_file_holds_the_numbers_of_the_store_in_memory(kind, tmp_path):
    held, filed = aol.SampleAges(LABELS, **kind), aol.SampleAges(LABELS, **kind, file=tmp_path / "ages")
    assert agree(held, filed)
    for epoch in range(5):
        train(held, range(epoch, epoch + 1))
        train(filed, range(epoch, epoch + 1))
        assert agree(held, filed)
    assert same(torch.cat(list(filed.weight_blocks(20)), dim=-1), held.weights)
    assert same(filed.weight([3, 150]), held.weight([3, 150]))


def test_an_old_set_in_a_file_has_the_numbers_of_one_in_memory_also_when_opened_again(tmp_path):
    settings = {"after": [1, 2], "factor": [3, 5]}
    held, filed = aol.OldSet(LABELS, **settings), aol.OldSet(LABELS, **settings, file=tmp_path / "ages")
    for first in (0, 2):
        train(held, range(first, first + 2))
        train(filed, range(first, first + 2))
        assert agree(held, filed)
        assert same(held.old, filed.old)
        assert bool(held.old.any(1).all())
        del filed
        filed = aol.OldSet(LABELS, **settings, file=tmp_path / "ages")
        assert agree(held, filed)
    del filed
    with pytest.raises(ValueError, match=r"of other ages.*after"):
        aol.OldSet(LABELS, after=[1, 3], factor=[3, 5], file=tmp_path / "ages")


def test_a_file_made_in_inference_mode_is_used_in_inference_mode(tmp_path):
    held = aol.SampleAges(LABELS)
    train(held, range(2))
    with torch.inference_mode():
        filed = aol.SampleAges(LABELS, file=tmp_path / "ages")
        train(filed, range(2))
        assert agree(held, filed)


@pytest.mark.parametrize("level", ["class", "sample"])
def test_weights_are_read_from_a_file_whatever_the_default_device(level, tmp_path):
    filed = aol.SampleAges(LABELS, level=level, file=tmp_path / "ages")
    train(filed, range(2))
    wanted = filed.weights
    with torch.device("meta"):
        assert same(torch.cat(list(filed.weight_blocks(20))), wanted)


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="the file is read from its map")
def test_a_system_that_reads_less_than_was_asked_for_is_asked_again(tmp_path, monkeypatch):
    held, filed = aol.SampleAges(LABELS, level="sample"), aol.SampleAges(LABELS, level="sample", file=tmp_path / "ages")
    train(held, range(2))
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda handle, rooms, start: read(handle, [rooms[0][:3]], start))
    train(filed, range(2))
    assert agree(held, filed)
    assert same(torch.cat(list(filed.weight_blocks(100))), held.weights)


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="the file is read from its map")
def test_a_file_that_is_cut_while_it_is_in_use_is_damaged(tmp_path):
    filed = aol.SampleAges(LABELS, level="sample", file=tmp_path / "ages")
    os.truncate(filed.file, filed._file._starts[2 + 2 * filed._file._current])  # where smoothed ages begin
    with pytest.raises(ValueError, match="is damaged: it was cut while it was in use"):
        list(filed.weight_blocks(20))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_file_that_is_opened_again_continues_from_its_last_advance(kind, tmp_path):
    held, filed = aol.SampleAges(LABELS, **kind), aol.SampleAges(LABELS, **kind, file=tmp_path / "ages")
    train(held, range(3))
    train(filed, range(3))
    tell(filed, 77)  # an epoch that is not finished is dropped
    del filed
    filed = aol.SampleAges(LABELS.numpy().astype(np.uint8), **kind, file=str(tmp_path / "ages"))
    assert agree(held, filed)
    train(held, range(3, 5))
    train(filed, range(3, 5))
    assert agree(held, filed)


@pytest.mark.parametrize("kind", [aol.SampleAges, aol.ShardedSampleAges])
def test_states_go_from_a_file_into_memory_and_back(kind, tmp_path):
    filed = kind(LABELS, num_classes=5, file=tmp_path / "ages")
    held = kind(LABELS, num_classes=5)
    train(filed, range(2))
    tell(filed, 2)
    held.load_state_dict(filed.state_dict())  # also within an epoch
    filed.advance()
    held.advance()
    assert agree(held, filed)
    train(held, range(3, 6))
    filed.load_state_dict(held.state_dict())
    assert agree(held, filed)
    early = kind(LABELS, num_classes=5)
    filed.load_state_dict(early.state_dict())  # an older state
    del filed
    assert agree(early, kind(LABELS, num_classes=5, file=tmp_path / "ages"))


def test_a_state_that_is_refused_leaves_the_file_as_it_was(tmp_path):
    filed = aol.SampleAges(LABELS, file=tmp_path / "ages")
    train(filed, range(2))
    state = filed.state_dict()
    state["ema"][0, 3] = 99.0
    with pytest.raises(ValueError, match="ema"):
        filed.load_state_dict(state)
    before = filed.state_dict()["ema"]
    del filed
    assert same(aol.SampleAges(LABELS, file=tmp_path / "ages").state_dict()["ema"], before)


def test_rewind_returns_to_this_epoch_or_the_one_before(tmp_path):
    held, filed = aol.SampleAges(LABELS), aol.SampleAges(LABELS, file=tmp_path / "ages")
    train(held, range(2))
    train(filed, range(3))
    filed.rewind(2)
    assert agree(held, filed)
    tell(filed, 8)
    filed.rewind(2)
    assert agree(held, filed)
    with pytest.raises(ValueError, match=r"epoch must be 2, .* not 1"):
        filed.rewind(1)
    del filed
    filed = aol.SampleAges(LABELS, file=tmp_path / "ages")
    assert agree(held, filed)
    train(held, range(2, 4))
    train(filed, range(2, 4))
    assert agree(held, filed)
    with pytest.raises(ValueError, match="epoch must be 4"):
        held.rewind(3)


@pytest.mark.parametrize("section", [1, 2], ids=["words", "ema"])
def test_rewind_to_a_damaged_copy_is_refused_and_keeps_the_newest_state(section, tmp_path):
    held, filed = aol.SampleAges(LABELS), aol.SampleAges(LABELS, file=tmp_path / "ages")
    for ages in (held, filed):
        train(ages, range(2))
        tell(ages, 2)
    file = filed._file
    file._section(section, 1 - file._current).view(torch.int32)[0, 7] ^= 3
    with pytest.raises(ValueError, match=r"is damaged: the checksum of epoch 1 .* Epoch 2 is kept"):
        filed.rewind(1)
    assert file.epoch == 2
    assert agree(held, filed)
    del ages, file, filed
    filed = aol.SampleAges(LABELS, file=tmp_path / "ages")
    assert agree(held, filed)
    tell(filed, 2)
    held.advance()
    filed.advance()
    assert agree(held, filed)


# Crashes


def killed_in_advance(path: Path, writes: int) -> None:
    ages, count = aol.SampleAges(LABELS, file=path), itertools.count(1)  # threads write
    tell(ages, 2)
    write = os.pwrite

    def killed(handle: int, content: bytes, start: int) -> int:
        if next(count) == writes:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(handle, content, start)

    os.pwrite = killed
    ages.advance()


@pytest.mark.parametrize("writes", [1, 2, 7, 11, 12])
def test_a_process_killed_in_advance_leaves_the_state_before_it(writes, tmp_path):
    held, filed = aol.SampleAges(LABELS), aol.SampleAges(LABELS, file=tmp_path / "ages")
    train(held, range(2))
    train(filed, range(2))
    del filed
    process = multiprocessing.get_context("fork").Process(target=killed_in_advance, args=(tmp_path / "ages", writes))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    filed = aol.SampleAges(LABELS, file=tmp_path / "ages")
    assert agree(held, filed)
    train(held, range(2, 4))
    train(filed, range(2, 4))
    assert agree(held, filed)


@pytest.mark.parametrize("at", [1, 4, 11, 12])
def test_a_disk_that_fails_in_advance_leaves_the_state_before_it(at, tmp_path, monkeypatch):
    held, filed = aol.SampleAges(LABELS), aol.SampleAges(LABELS, file=tmp_path / "ages")
    for ages in (held, filed):
        train(ages, range(2))
        tell(ages, 2)
    count, write = itertools.count(1), os.pwrite

    def fails(handle: int, content: bytes, start: int) -> int:
        if next(count) == at:
            raise OSError(errno.EIO, "Input/output error")
        return write(handle, content, start)

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", fails)
        with pytest.raises(OSError, match=r"ages cannot be used \(Input/output error"):
            filed.advance()
    assert agree(held, filed)
    held.advance()
    filed.advance()  # what was observed is still there
    assert agree(held, filed)


# Files that are refused


def test_one_process_at_a_time_has_a_file_open(tmp_path):
    filed = aol.SampleAges(LABELS, file=tmp_path / "ages")
    with pytest.raises(_files.FolderInUseError, match="in use by another"):
        aol.SampleAges(LABELS, file=tmp_path / "ages")
    del filed
    aol.SampleAges(LABELS, file=tmp_path / "ages")


def test_a_full_disk_is_said_in_one_sentence_and_leaves_no_file(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"ages needs [\d,]+ bytes, and the disk has no room") as error:
        aol.SampleAges(LABELS, file=tmp_path / "ages")
    assert error.value.errno == errno.ENOSPC
    assert not (tmp_path / "ages").exists()


def test_a_file_of_more_blocks_than_the_process_may_write_is_a_full_disk(tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(OSError, match="no room"):
            aol.SampleAges(LABELS, file=tmp_path / "ages")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "ages").exists()


@pytest.mark.parametrize("change", [-1, -1000, 1])
def test_a_file_of_another_size_is_refused(change, tmp_path):
    path = tmp_path / "ages"
    aol.SampleAges(LABELS, file=path)
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(ValueError, match=r"is damaged: it has [\d,]+ bytes instead of"):
        aol.SampleAges(LABELS, file=path)


@pytest.mark.parametrize("content", [b"", b"not ages", bytes(1 << 20)])
def test_another_kind_of_file_is_refused_and_kept(content, tmp_path):
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="holds no ages"):
        aol.SampleAges(LABELS, file=path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"rho": 0.4}, "rho"),
        ({"store": "compact"}, "store"),
        ({"labels": LABELS.flip(0)}, "labels"),
        ({"labels": LABELS[:-1]}, "num_samples"),
        ({"absent": "grow"}, "absent"),
    ],
)
def test_a_file_of_other_ages_is_refused(changed, word, tmp_path):
    aol.SampleAges(LABELS, rho=0.3, file=tmp_path / "ages")
    with pytest.raises(ValueError, match=f"of other ages.*{word}"):
        aol.SampleAges(**{"labels": LABELS, "rho": 0.3, **changed}, file=tmp_path / "ages")


@pytest.mark.parametrize("section", ["labels", "words", "ema"])
def test_a_damaged_section_is_refused(section, tmp_path):
    filed = aol.SampleAges(LABELS, file=tmp_path / "ages")
    train(filed, range(2))
    getattr(filed._file, section).flatten()[7] = 3
    del filed
    with pytest.raises(ValueError, match="is damaged"):
        aol.SampleAges(LABELS, file=tmp_path / "ages")


@pytest.mark.parametrize("store", ["full", "compact"])
def test_the_same_damage_of_words_and_smoothed_ages_is_refused(store, tmp_path):
    filed = aol.SampleAges(LABELS, store=store, file=tmp_path / "ages")
    train(filed, range(2))
    for section in (filed._file.words, filed._file.ema):
        section.view(torch.uint8)[0, 14] ^= 1
    del filed, section
    with pytest.raises(ValueError, match="is damaged"):
        aol.SampleAges(LABELS, store=store, file=tmp_path / "ages")


def test_a_damaged_header_of_the_newest_state_gives_the_one_before_and_a_warning(tmp_path):
    held, filed = aol.SampleAges(LABELS), aol.SampleAges(LABELS, file=tmp_path / "ages")
    train(held, range(2))
    train(filed, range(3))
    place = filed._file._current
    del filed
    with (tmp_path / "ages").open("r+b") as file:
        file.seek(place * _file._ALIGNED + 40)
        file.write(b"?")
    with pytest.warns(UserWarning, match=r"has a damaged header\. Its ages are those of epoch 2; a later epoch"):
        again = aol.SampleAges(LABELS, file=tmp_path / "ages")
    assert agree(held, again)


def test_as_many_runs_as_the_header_can_hold_are_kept_and_more_refused(tmp_path):
    rates = torch.linspace(0.1, 0.9, 1000, dtype=torch.float64) + 1e-9
    filed = aol.SampleAges([0, 1], rho=rates, file=tmp_path / "ages")
    filed.observe([0], torch.zeros(1000, 1, dtype=torch.bool))
    filed.advance()
    age = filed.age
    del filed
    assert same(aol.SampleAges([0, 1], rho=rates, file=tmp_path / "ages").age, age)
    with pytest.raises(ValueError, match="at most 1000"):
        aol.SampleAges([0, 1], rho=torch.full((1001,), 0.5), file=tmp_path / "more")


def test_a_folder_that_is_not_there_is_made_and_one_in_place_of_the_file_is_refused(tmp_path):
    aol.SampleAges(LABELS, file=tmp_path / "new" / "ages")
    assert (tmp_path / "new" / "ages").is_file()
    with pytest.raises(OSError, match="cannot be used"):
        aol.SampleAges(LABELS, file=tmp_path)


def test_ages_in_a_file_are_not_copied_or_pickled(tmp_path):
    filed = aol.SampleAges(LABELS, file=tmp_path / "ages")
    for way in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            way(filed)
    with pytest.raises(ValueError, match='device="cpu"'):
        aol.SampleAges(LABELS, file=tmp_path / "more", device="meta")
