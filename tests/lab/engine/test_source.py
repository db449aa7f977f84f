"""Batches of both kinds of sources against images worked on one at a time."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aol import _seeds
from aol.lab.data import DataError, StoredImages, augment, open_data
from aol.lab.data.encoded_images import draw_crops
from aol.lab.data.images import Augmentation
from aol.lab.engine import source
from aol.lab.engine.loop import Loop
from aol.lab.engine.source import Decoded, FromStorage, OnDevice, input_shape, source_of
from aol.lab.settings import Settings, WrongSettingsError
from tests.support import views
from tests.support.running import PATIENCE
from tests.support.tiny_runs import CPU, network, run_to_end, small_networks, tiny_pair
from tests.support.tiny_sets import image_folder

COMMON = {"run": Settings(), "workers": 0, "device": CPU}


def plain(pixels: Tensor) -> Tensor:
    return pixels.float() / 128 - 1


def changed(pixels: Tensor, row: int, column: int, flip: bool) -> Tensor:
    """One image [1, 8, 8]: padded by one black pixel, cut, mirrored."""
    cut = F.pad(pixels.float(), (1, 1, 1, 1))[:, row : row + 8, column : column + 8]
    return plain(cut.flip(2) if flip else cut)


def test_images_on_the_device_are_normalised_and_nothing_else_without_augmentation() -> None:
    pair = tiny_pair()
    train, test = (source_of(pair, split, augment=False, **COMMON) for split in (pair.train, pair.test))  # type: ignore
    assert isinstance(train, OnDevice)
    assert isinstance(test, OnDevice)
    index = torch.tensor([[3, 1, 1], [0, 89, 2]])
    train.prepare(3, torch.arange(3), epoch=0, seeds=[0, 1])
    for found in (train.plain(index), train.augmented(index, torch.arange(3))):
        assert torch.equal(found, plain(pair.train.images[index]))
    assert torch.equal(test.plain(torch.tensor([5])), plain(pair.test.images[[5]]))
    assert torch.equal(train.labels, pair.train.labels)


@pytest.mark.parametrize("mine", [torch.arange(7), torch.tensor([1, 3, 5])], ids=["all", "share"])
def test_crops_and_flips_are_those_drawn_for_the_run_the_epoch_and_the_place(mine: Tensor) -> None:
    pair, seeds, order = tiny_pair(), [4, 9], torch.arange(14).view(2, 7)
    train = source_of(pair, pair.train, augment=True, **COMMON)  # type: ignore[arg-type]
    assert isinstance(train, OnDevice)
    memory = set()
    for epoch in range(2):
        train.prepare(7, mine, epoch=epoch, seeds=seeds)
        memory.add(train._draws.row.data_ptr())  # type: ignore[union-attr]
        found = train.augmented(order[:, mine], torch.arange(mine.numel()))
        for row, seed in enumerate(seeds):
            generator = _seeds.generator(seed, 1_000_002, epoch)
            drawn = augment.draw(7, Augmentation(pad=1, flip=True), generator=[generator])
            for column, place in enumerate(mine.tolist()):
                change = int(drawn.row[0, place]), int(drawn.column[0, place]), bool(drawn.flip[0, place])
                wanted = changed(pair.train.images[order[row, place]], *change)
                assert torch.equal(found[row, column], wanted)
    assert len(memory) == 1


LARGE = COMMON | {"run": Settings(image_size=32), "augment": True}
LEVEL = 1.05 / (255 * 0.224)  # of the normalised pixels
TRAIN = {"order": torch.tensor([[7, 0, 3, 11, 5, 2, 9]]), "mine": torch.arange(7), "batch": 4, "seeds": [4]}


def streamed(root: Path, **given: object) -> FromStorage:
    pair = open_data(root)
    train = source_of(pair, pair.train, **LARGE | given)  # type: ignore[arg-type]
    assert isinstance(train, FromStorage)
    return train


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_is_decoded_in_order_whatever_the_number_of_workers(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_CHUNK", 2)  # batches of three are two requests
    pair = open_data(image_folder(tmp_path))
    assert isinstance(pair.train, StoredImages)
    assert input_shape(Settings(image_size=32), pair) == (3, 32, 32)
    assert input_shape(Settings(image_size=None), pair) == (3, 224, 224)
    train = streamed(tmp_path, workers=workers)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))[None]
    mine = torch.arange(0, 12, 2)
    for epoch in (2, 3):
        batches = list(train.train(order, mine, batch=4, epoch=epoch, seeds=[5]))
        assert [batch.shape for batch in batches] == [(1, 4, 3, 32, 32), (1, 2, 3, 32, 32)]
        draws, places = draw_crops(12, seed=5, epoch=epoch), order[0, mine].tolist()
        views = torch.stack([pair.train.view(place, draws[place], 32) for place in places]).permute(0, 3, 1, 2)
        assert torch.equal(torch.cat(batches, 1)[0], pair.normalisation(views))
    clean = torch.cat(list(train.clean(torch.tensor([[4, 0, 0]]), batch=2)), 1)
    single = torch.cat(list(train.clean(torch.tensor([4, 0, 0]), batch=2)))
    assert clean.shape == (1, 3, 3, 32, 32)
    assert torch.equal(clean[0], single)
    assert torch.equal(single[1], single[2])
    assert torch.equal(single[0], pair.normalisation(pair.train.view(4, None, 32).permute(2, 0, 1)))
    train.close()


def test_the_global_generator_is_left_alone(tmp_path: Path) -> None:
    for workers in (0, 1):
        train = streamed(image_folder(tmp_path / str(workers)), workers=workers)
        torch.manual_seed(3)
        list(train.train(**TRAIN, epoch=0))  # type: ignore[arg-type]
        here = torch.rand(3)
        assert torch.equal(here, torch.rand(3, generator=torch.Generator().manual_seed(3)))
        train.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_file_is_named_and_the_others_can_still_be_read(tmp_path: Path, workers: int) -> None:
    bad = sorted(image_folder(tmp_path).rglob("train/*/*.JPEG"))[7]
    bad.write_bytes(b"hello")
    train = streamed(tmp_path, workers=workers)
    with pytest.raises(DataError, match=rf"^{bad}: not an image$"):
        list(train.clean(torch.arange(12), batch=4))
    assert len(list(train.clean(torch.arange(6), batch=4))) == 2
    bad.unlink()
    with pytest.raises(FileNotFoundError, match=bad.name):
        list(train.clean(torch.arange(12), batch=4))
    train.close()


def children() -> set[int]:
    """Processes of this one that are alive."""
    own = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(child) for child in own if Path(f"/proc/{child}/stat").read_text().split()[2] != "Z"}


def gone(processes: set[int]) -> bool:
    end = time.monotonic() + PATIENCE
    while processes & children() and time.monotonic() < end:
        time.sleep(0.05)
    return not processes & children()


def test_worker_processes_stay_from_pass_to_pass_and_end_with_the_source(tmp_path: Path) -> None:
    image_folder(tmp_path)
    before = children()
    train = streamed(tmp_path, workers=2)
    list(train.train(**TRAIN, epoch=0))  # type: ignore[arg-type]
    workers = children() - before
    assert len(workers) == 2
    list(train.clean(torch.arange(3), batch=2))
    assert children() - before == workers
    train.close()
    assert gone(workers)
    list(train.clean(torch.arange(3), batch=2))  # another pass starts others
    again = children() - before
    assert len(again) == 2
    del train
    gc.collect()
    assert gone(again)


def test_after_a_killed_worker_the_next_pass_starts_anew(tmp_path: Path) -> None:
    before = (image_folder(tmp_path), children())[1]
    train = streamed(tmp_path, workers=1)
    assert len(list(train.clean(torch.arange(12), batch=4))) == 3
    (worker,) = children() - before
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="worker"):
        list(train.clean(torch.arange(12), batch=4))
    assert len(list(train.clean(torch.arange(12), batch=4))) == 3
    train.close()


@pytest.fixture(autouse=True)
def _views_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a set that was decoded once be shown on a CPU, too."""
    monkeypatch.setitem(sys.modules, "aol.lab.nets.fused.resample", views)  # type: ignore[arg-type]


def kept_source(root: Path, monkeypatch: pytest.MonkeyPatch, **given: object) -> Decoded:
    """A folder that is decoded once, as on a GPU with room for it."""
    monkeypatch.setattr(source, "room_on", lambda _: 1 << 30)
    monkeypatch.setattr(source, "_CHUNK", 5)
    pair = open_data(root)
    train = source_of(pair, pair.train, **LARGE | given)  # type: ignore[arg-type]
    assert isinstance(train, Decoded)
    return train


def test_a_set_that_was_decoded_once_shows_the_crops_of_one_that_is_decoded_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_folder(tmp_path)
    each_time = streamed(tmp_path)
    kept = kept_source(tmp_path, monkeypatch, workers=2)
    order, mine = torch.tensor([[7, 0, 3, 3, 11, 5, 2, 9]]), torch.tensor([1, 2, 4, 6, 7])
    for epoch in (0, 3):
        kept.prepare(8, mine, epoch=epoch, seeds=[4])
        wanted = torch.cat(list(each_time.train(order, mine, batch=2, epoch=epoch, seeds=[4])), 1)
        assert (kept.augmented(order[:, mine], torch.arange(5)) - wanted).abs().max() <= LEVEL
    plain = torch.cat(list(each_time.clean(order[0], batch=3)))
    assert (kept.plain(order[0]) - plain).abs().max() <= LEVEL
    assert torch.equal(kept.plain(order)[0], kept.plain(order[0]))
    assert torch.equal(kept.labels, each_time.labels)
    assert kept.names(torch.tensor([5])) == each_time.names(torch.tensor([5])) == ["train/n01443537/n01443537_1.JPEG"]


def test_runs_have_their_own_crops_of_a_set_that_was_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = kept_source(image_folder(tmp_path), monkeypatch)
    index, at = torch.tensor([[1, 5, 2], [1, 0, 2]]), torch.arange(3)
    kept.prepare(3, at, epoch=2, seeds=[4, 9])
    assert kept._boxes is not None
    together, place = kept.augmented(index, at), kept._boxes.data_ptr()
    for row, seed in enumerate([4, 9]):
        kept.prepare(3, at, epoch=2, seeds=[seed, seed])
        assert kept._boxes.data_ptr() == place  # into the memory of the first
        torch.testing.assert_close(kept.augmented(index, at)[row], together[row])
    assert not torch.allclose(together[0, 0], together[1, 0])


def test_sets_that_do_not_fit_are_decoded_while_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = open_data(image_folder(tmp_path)).train
    assert isinstance(split, StoredImages)
    pixels = [split.whole(place).reshape(-1) for place in range(12)]
    size = sum(map(len, pixels))
    assert source.room_on(CPU) == 0  # a network on a CPU is slower than decoding
    for room in (0, size - 1):
        monkeypatch.setattr(source, "room_on", lambda _, room=room: room)
        assert source.keep(source.Reader(split, 32, workers=0, device=CPU)) is None
    monkeypatch.setattr(source, "room_on", lambda _: size)
    images = source.keep(source.Reader(split, 32, workers=0, device=CPU))
    assert images is not None
    assert torch.equal(images.pixels[:size], torch.cat(pixels))
    assert source.keep(source.Reader(split, 64, workers=0, device=CPU)) is images  # of the next group


def test_sizes_that_do_not_fit_are_refused_by_name() -> None:
    pair = tiny_pair()
    assert input_shape(Settings(image_size=None), pair) == input_shape(Settings(image_size=8), pair) == (1, 8, 8)
    with pytest.raises(WrongSettingsError, match="image_size"):
        input_shape(Settings(image_size=16), pair)


@pytest.mark.parametrize("kept", [False, True], ids=["streamed", "kept"])
def test_a_resumed_run_is_the_run(tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    small_networks(monkeypatch)
    monkeypatch.setattr(source, "room_on", lambda _: (1 << 30) * kept)
    run = Settings(data="photos", net="cnn", imbalance=None, epochs=3, batch_size=5, image_size=32, weighting="aol")
    pair = open_data(image_folder(tmp_path))
    first, second, third = (Loop([run], pair, device=CPU, workers=count) for count in (2, 0, 1))
    assert isinstance(first.train, Decoded if kept else FromStorage)
    run_to_end(first)
    second.run_epoch()
    third.load_state_dict(second.state_dict())
    run_to_end(third)
    here, there = network(first), network(third)
    assert all(torch.equal(value, there[name]) for name, value in here.items())
    for name in ("train_loss", "test_accuracy"):
        assert torch.equal(first.history.epoch(name), third.history.epoch(name))
    for loop in (first, third):
        loop.close()
