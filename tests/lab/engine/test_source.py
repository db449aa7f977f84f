"""Batches of both kinds of sources against images worked on one at a time."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from aol.lab.data.crops import RandomResizedCrop, crops_for
from aol.lab.data.decode import decode
from aol.lab.engine.kept_images import Decoded
from PIL import Image
from torch import Tensor

from aol import _seeds
from aol.lab.data import StoredImages, augment, gpu_decode, open_data
from aol.lab.data.errors import DataError
from aol.lab.data.images import Augmentation
from aol.lab.engine import OfflineLoop, image_requests, kept_images, side_streams, stored_source
from aol.lab.engine.source import OnDevice, shape_of, sources
from aol.lab.engine.stored_source import FromStorage
from aol.lab.settings import Settings, WrongSettingsError
from tests.support.running import PATIENCE
from tests.support.tiny_runs import CPU, run_to_end, small_networks, tiny_pair
from tests.support.tiny_sets import image_folder

COMMON = {"image_size": None, "normalisation": "centred", "workers": 0, "device": CPU}


def plain(pixels: Tensor) -> Tensor:
    return pixels.float() / 128 - 1


def changed(pixels: Tensor, row: int, column: int, flip: bool) -> Tensor:
    """One image [1, 8, 8]: padded by one black pixel, cut, mirrored."""
    cut = F.pad(pixels.float(), (1, 1, 1, 1))[:, row : row + 8, column : column + 8]
    return plain(cut.flip(2) if flip else cut)


def test_images_on_the_device_are_normalised_and_nothing_else_without_augmentation() -> None:
    pair = tiny_pair()
    train, test = sources(pair, augment=False, **COMMON)  # type: ignore[arg-type]
    assert isinstance(train, OnDevice)
    assert isinstance(test, OnDevice)
    index = torch.tensor([[3, 1, 1], [0, 89, 2]])
    train.prepare(3, torch.arange(3), epoch=0, seeds=[0, 1])
    for found in (train.plain(index), train.augmented(index, torch.arange(3))):
        assert torch.equal(found, plain(pair.train.images[index]))
    assert torch.equal(test.plain(torch.tensor([5])), plain(pair.test.images[[5]]))
    assert torch.equal(train.labels, pair.train.labels)


def test_standardised_pixels_have_the_mean_and_deviation_of_the_set_taken_out() -> None:
    pair = tiny_pair()
    (train, _) = sources(pair, augment=False, **(COMMON | {"normalisation": "standardised"}))  # type: ignore[arg-type]
    assert isinstance(train, OnDevice)
    wanted = (pair.train.images[:4].float() / 255 - 0.4) / 0.2
    torch.testing.assert_close(train.plain(torch.arange(4)), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mine", [torch.arange(7), torch.tensor([1, 3, 5])], ids=["all", "share"])
def test_crops_and_flips_are_those_drawn_for_the_run_the_epoch_and_the_place(mine: Tensor) -> None:
    pair, seeds, order = tiny_pair(), [4, 9], torch.arange(14).view(2, 7)
    (train, _) = sources(pair, augment=True, **COMMON)  # type: ignore[arg-type]
    assert isinstance(train, OnDevice)
    for epoch in range(2):
        train.prepare(7, mine, epoch=epoch, seeds=seeds)
        found = train.augmented(order[:, mine], torch.arange(mine.numel()))
        for row, seed in enumerate(seeds):
            generator = _seeds.generator(seed, 1_000_002, epoch)
            drawn = augment.draw(7, Augmentation(pad=1, flip=True), generator=generator)
            for column, place in enumerate(mine.tolist()):
                change = int(drawn.row[place]), int(drawn.column[place]), bool(drawn.flip[place])
                wanted = changed(pair.train.images[order[row, place]], *change)
                assert torch.equal(found[row, column], wanted)


def test_a_second_epoch_draws_into_the_memory_of_the_first() -> None:
    (train, _) = sources(tiny_pair(), augment=True, **COMMON)  # type: ignore[arg-type]
    assert isinstance(train, OnDevice)
    train.prepare(7, torch.arange(7), epoch=0, seeds=[0])
    assert train._draws is not None
    before, place = train._draws.row.clone(), train._draws.row.data_ptr()
    train.prepare(7, torch.arange(7), epoch=1, seeds=[0])
    assert not torch.equal(train._draws.row, before)
    assert train._draws.row.data_ptr() == place


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_is_decoded_in_order_whatever_the_number_of_workers(tmp_path: Path, workers: int) -> None:
    pair = open_data(str(image_folder(tmp_path)))
    assert shape_of(pair, 32) == (3, 32, 32)
    given = COMMON | {"image_size": 32, "workers": workers}
    train, test = sources(pair, augment=True, **given)  # type: ignore[arg-type]
    assert isinstance(train, FromStorage)
    assert isinstance(test, FromStorage)
    count = train.labels.numel()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(3))[None]
    mine = torch.arange(0, count, 2)
    batches = list(train.train(order, mine, batch=3, epoch=2, seeds=[5]))
    assert [batch.shape[1] for batch in batches] == [3] * (mine.numel() // 3) + [mine.numel() % 3][: mine.numel() % 3]
    shown = StoredImages(pair.train.records, RandomResizedCrop(32), seed=5)  # type: ignore[union-attr]
    shown.set_epoch(2)
    wanted = torch.stack([pair.normalisation(shown[int(i)][0]) for i in order[0, mine]])
    assert torch.equal(torch.cat(batches, 1)[0], wanted)
    clean = torch.cat(list(train.clean(torch.tensor([[4, 0, 0]]), batch=2)), 1)
    single = torch.cat(list(train.clean(torch.tensor([4, 0, 0]), batch=2)))
    assert clean.shape == (1, 3, 3, 32, 32)
    assert torch.equal(clean[0], single)
    assert torch.equal(single[1], single[2])
    assert not torch.equal(single[1], wanted[0])


def test_training_images_that_are_only_cut_by_workers_are_resized_to_the_same_crops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = open_data(str(image_folder(tmp_path)))
    crop, centre = crops_for(32)
    train, test = pair.train.with_transform(crop), pair.test.with_transform(centre)  # type: ignore[union-attr]
    order = torch.tensor([[7, 0, 3, 11, 5, 2, 9]])
    given = {"order": order, "mine": torch.arange(7), "batch": 4, "epoch": 3, "seeds": [4]}
    level = 1.05 / (255 * 0.224)
    for largest in (1024, 20):  # with 20, workers resize what is larger
        monkeypatch.setattr(image_requests, "LARGEST", largest)
        whole, cut = (
            FromStorage(train, test, pair.normalisation, workers=2, device=CPU, cuts=cuts) for cuts in (False, True)
        )
        found, wanted = (torch.cat(list(each.train(**given)), 1) for each in (cut, whole))  # type: ignore[arg-type]
        assert found.shape == (1, 7, 3, 32, 32)
        assert (found - wanted).abs().max() <= level
        whole.close()
        cut.close()


@pytest.mark.parametrize("mixed", [False, True], ids=["jpeg", "with png"])
def test_images_that_a_device_decodes_are_those_of_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mixed: bool
) -> None:
    """Files go to the device as they are; Pillow stands in for its decoder."""
    folder = image_folder(tmp_path)
    if mixed:  # one that the device's decoder does not take, among chunks of two
        file = sorted(folder.rglob("train/*/*.JPEG"))[5]
        Image.open(file).save(file, "PNG")
    pair, level = open_data(str(folder)), 1.05 / (255 * 0.224)
    given = COMMON | {"image_size": 32, "workers": 2}
    (wanted, _) = sources(pair, augment=True, **given)  # type: ignore[arg-type]
    monkeypatch.setattr(image_requests, "_CHUNK", 2)
    monkeypatch.setattr(gpu_decode, "can_decode", lambda _: True)
    calls: list[int] = []

    def decoded(files: list[Tensor], _: torch.device) -> list[Tensor]:
        calls.append(len(files))
        return [decode(bytes(file.numpy())) for file in files]

    monkeypatch.setattr(gpu_decode, "decode_jpegs", decoded)
    (found, _) = sources(pair, augment=True, **given)  # type: ignore[arg-type]
    assert isinstance(found, FromStorage)
    assert isinstance(wanted, FromStorage)
    kept = kept_images.decoded(pair.train.records, workers=0, device=CPU)  # type: ignore[union-attr]
    assert kept is not None
    whole = [pair.train.with_transform(None)[place][0].reshape(-1) for place in range(12)]  # type: ignore[union-attr]
    assert torch.equal(kept.pixels[: sum(map(len, whole))], torch.cat(whole))
    calls.clear()
    order = torch.tensor([[7, 0, 3, 11, 5, 2, 9]])
    epoch = {"order": order, "mine": torch.arange(7), "batch": 4, "epoch": 3, "seeds": [4]}
    here, there = (torch.cat(list(each.train(**epoch)), 1) for each in (found, wanted))  # type: ignore[arg-type]
    assert (here - there).abs().max() <= level
    here, there = (torch.cat(list(each.clean(order[0], batch=4))) for each in (found, wanted))
    assert (here - there).abs().max() <= level
    assert sum(calls) == (12 if mixed else 14)  # only the PNG is left to the worker
    found.close()
    wanted.close()


def test_a_file_that_the_device_cannot_decode_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = image_folder(tmp_path)
    bad = sorted(folder.rglob("train/*/*.JPEG"))[4]
    content = bad.read_bytes()
    bad.write_bytes(content[:300] + content[-2:])  # begins and ends as a JPEG

    def decoded(files: list[Tensor], _: torch.device) -> list[Tensor]:
        raise RuntimeError("nvjpeg")

    monkeypatch.setattr(gpu_decode, "can_decode", lambda _: True)
    monkeypatch.setattr(gpu_decode, "decode_jpegs", decoded)
    (train, _) = sources(open_data(str(folder)), augment=True, **COMMON | {"image_size": 32})  # type: ignore[arg-type]
    assert isinstance(train, FromStorage)
    assert len(list(train.clean(torch.tensor([0, 1]), batch=2))) == 1  # Pillow can
    with pytest.raises(DataError, match=bad.name):
        list(train.clean(torch.tensor([3, 4]), batch=2))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_are_made_ahead_are_those_that_are_made_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Three training passes, each known before the one before ends, with clean passes between them."""
    monkeypatch.setattr(image_requests, "_CHUNK", 2)
    monkeypatch.setattr(stored_source, "GROUP", 2)  # batches of five are three chunks, in two groups
    pair = open_data(str(image_folder(tmp_path)))
    crop, centre = crops_for(32)
    split = pair.train.with_transform(crop), pair.train.with_transform(centre)  # type: ignore[union-attr]
    orders = [torch.randperm(12, generator=torch.Generator().manual_seed(seed))[None] for seed in range(4)]
    everything = {}
    for ahead in (False, True):
        source = FromStorage(*split, pair.normalisation, workers=workers, device=CPU, cuts=True, ahead=ahead)
        seen = []
        for epoch, order in enumerate(orders[:3]):
            given = {"batch": 5, "epoch": epoch, "seeds": [4], "coming": orders[epoch + 1]}
            seen += [batch[0] for batch in source.train(order, torch.arange(12), **given)]  # type: ignore[arg-type]
            seen += list(source.clean(order[0], batch=7))
        other = orders[0].flip(1)  # not what was expected
        seen += [batch[0] for batch in source.train(other, torch.arange(12), batch=5, epoch=3, seeds=[4])]
        source.close()
        everything[ahead] = seen
    assert [len(batch) for batch in everything[True]] == [5, 5, 2, 7, 5] * 3 + [5, 5, 2]
    for here, there in zip(everything[True], everything[False], strict=True):
        assert torch.equal(here, there)


def test_the_next_pass_is_begun_before_it_is_asked_for(tmp_path: Path) -> None:
    pair = open_data(str(image_folder(tmp_path)))
    crop, centre = crops_for(32)
    split = pair.train.with_transform(crop), pair.train.with_transform(centre)  # type: ignore[union-attr]
    source = FromStorage(*split, pair.normalisation, workers=0, device=CPU, ahead=True)
    order, mine = torch.arange(12)[None], torch.arange(12)
    list(source.train(order, mine, batch=6, epoch=0, seeds=[1], coming=order.flip(1)))
    waiting = source._feed._passes["train"]._expected
    assert waiting is not None
    end = time.monotonic() + PATIENCE
    while waiting[1]._queue.qsize() < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    for file in tmp_path.rglob("*.JPEG"):  # it has read all it needs
        file.unlink()
    found = torch.cat(list(source.train(order.flip(1), mine, batch=6, epoch=1, seeds=[1])), 1)
    assert found.shape == (1, 12, 3, 32, 32)
    source.close()


def test_a_damaged_file_is_named_where_batches_are_made_ahead(tmp_path: Path) -> None:
    folder = image_folder(tmp_path)
    bad = sorted(folder.rglob("train/*/*.JPEG"))[7]
    bad.write_bytes(b"hello")
    pair = open_data(str(folder))
    split = pair.train.with_transform(crops_for(32)[1])  # type: ignore[union-attr]
    source = FromStorage(split, split, pair.normalisation, workers=2, device=CPU, ahead=True)
    with pytest.raises(DataError, match=bad.name):
        list(source.clean(torch.arange(12), batch=4))
    assert len(list(source.clean(torch.arange(6), batch=4))) == 2  # the others can still be read
    source.close()


@pytest.mark.parametrize("ahead", [False, True])
def test_after_an_error_the_next_pass_starts_anew(tmp_path: Path, ahead: bool) -> None:
    file = sorted(image_folder(tmp_path).rglob("train/*/*.JPEG"))[7]
    pair = open_data(str(tmp_path))
    split = pair.train.with_transform(crops_for(32)[1])  # type: ignore[union-attr]
    source = FromStorage(split, split, pair.normalisation, workers=1, device=CPU, ahead=ahead)
    order, mine = torch.arange(12)[None], torch.arange(12)

    def batches(epoch: int) -> int:
        given = {"batch": 4, "epoch": epoch, "seeds": [1], "coming": order}
        return len(list(source.train(order, mine, **given)))  # type: ignore[arg-type]

    content = file.read_bytes()
    file.unlink()
    with pytest.raises(FileNotFoundError, match=file.name):
        batches(0)
    file.write_bytes(content)
    assert batches(1) == 3  # it was expected while the file was missing
    workers = source._feed._workers
    assert workers is not None
    assert workers._pool is not None
    os.kill(next(iter(workers._pool._processes)), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="A worker process was killed"):
        [batches(epoch) for epoch in range(2, 9)]  # the first of them may have been made
    assert batches(9) == 3
    source.close()


def kept_source(root: Path, monkeypatch: pytest.MonkeyPatch, *, augment: bool = True, workers: int = 0) -> Decoded:
    """A folder that is decoded once, as on a GPU with room for it."""
    pair = open_data(str(image_folder(root)))
    decoded = kept_images.decoded
    monkeypatch.setattr(
        "aol.lab.engine.kept_images.kept", lambda split, **more: decoded(split.records, workers=workers, device=CPU)
    )
    train, test = sources(pair, augment=augment, **COMMON | {"image_size": 32})  # type: ignore[arg-type]
    assert isinstance(train, Decoded)
    assert isinstance(test, Decoded)
    return train


@pytest.mark.parametrize("workers", [0, 2])
def test_a_set_that_was_decoded_once_shows_the_crops_of_one_that_is_decoded_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    given = COMMON | {"image_size": 32}
    (streamed, _) = sources(open_data(str(image_folder(tmp_path / "a"))), augment=True, **given)  # type: ignore[arg-type]
    kept = kept_source(tmp_path / "b", monkeypatch, workers=workers)
    assert isinstance(streamed, FromStorage)
    level = 1.05 / (255 * 0.224)  # of the normalised pixels
    order, mine = torch.tensor([[7, 0, 3, 3, 11, 5, 2, 9]]), torch.tensor([1, 2, 4, 6, 7])
    for epoch in (0, 3):
        kept.prepare(8, mine, epoch=epoch, seeds=[4])
        found = kept.augmented(order[:, mine], torch.arange(5))
        wanted = torch.cat(list(streamed.train(order, mine, batch=2, epoch=epoch, seeds=[4])), 1)
        assert (found - wanted).abs().max() <= level
    plain = torch.cat(list(streamed.clean(order[0], batch=3)))
    assert (kept.plain(order[0]) - plain).abs().max() <= level
    assert torch.equal(kept.plain(order)[0], kept.plain(order[0]))
    assert torch.equal(kept.labels, streamed.labels)


def test_runs_have_their_own_crops_of_a_set_that_was_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = kept_source(tmp_path, monkeypatch)
    index, at = torch.tensor([[1, 5, 2], [1, 0, 2]]), torch.arange(3)
    kept.prepare(3, at, epoch=2, seeds=[4, 9])
    together = kept.augmented(index, at)
    for row, seed in enumerate([4, 9]):
        kept.prepare(3, at, epoch=2, seeds=[seed, seed])  # into the memory of the first
        torch.testing.assert_close(kept.augmented(index, at)[row], together[row])
    assert not torch.allclose(together[0, 0], together[1, 0])


def test_without_augmentation_a_set_that_was_decoded_once_shows_the_centre(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = kept_source(tmp_path, monkeypatch, augment=False)
    kept.prepare(2, torch.arange(2), epoch=0, seeds=[0])
    index = torch.tensor([[4, 1]])
    assert torch.equal(kept.augmented(index, torch.arange(2)), kept.plain(index))


def test_transforms_of_another_are_left_to_the_workers(tmp_path: Path) -> None:
    class Corner:
        size = 8

        def __call__(self, image: Tensor, generator: object) -> Tensor:
            return image[:, :8, :8]

    train = open_data(str(image_folder(tmp_path))).train
    assert isinstance(train, StoredImages)
    crop, centre = (train.with_transform(each) for each in crops_for(8))
    corner = train.with_transform(Corner())
    assert image_requests.has_views(crop, centre)
    assert image_requests.has_views(centre, centre)
    assert not image_requests.has_views(corner, centre)
    assert not image_requests.has_views(crop, corner)
    source = FromStorage(corner, corner, open_data("digits").normalisation, workers=0, device=CPU)
    assert source.area == 64


def test_large_sets_stay_in_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = open_data(str(image_folder(tmp_path))).train
    assert isinstance(train, StoredImages)
    assert kept_images.kept(train, workers=0, device=CPU) is None  # a network on a CPU is slower than decoding
    images = kept_images.decoded(train.records, workers=0, device=CPU)
    assert images is not None
    monkeypatch.setitem(kept_images._decoded, train.records, images)  # as if a GPU of this process kept them
    assert kept_images.kept(train, workers=0, device=CPU) is None
    whole = train.with_transform(None)
    for place in (0, 5, 11):
        pixels = whole[place][0].reshape(-1)
        start = int(images.start[place])
        assert torch.equal(images.pixels[start : start + pixels.numel()], pixels)
    monkeypatch.setattr(kept_images, "memory_limit", lambda _: 1000.0)
    assert not kept_images._fits(train.records, CPU)
    assert kept_images.decoded(train.records, workers=0, device=CPU) is None
    monkeypatch.setattr(kept_images, "memory_limit", lambda _: 1e9)
    assert kept_images._fits(train.records, CPU)
    monkeypatch.setattr(kept_images, "LARGEST", 30)
    assert kept_images.decoded(train.records, workers=0, device=CPU) is None


def test_waiting_for_images_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = open_data(str(image_folder(tmp_path)))
    (train, _) = sources(pair, augment=True, **COMMON | {"image_size": 32})  # type: ignore[arg-type]
    assert isinstance(train, FromStorage)
    clock = iter(range(1000))  # each reading a second after the last
    monkeypatch.setattr(side_streams.time, "perf_counter", lambda: float(next(clock)))
    list(train.train(torch.arange(12)[None], torch.arange(12), batch=4, epoch=0, seeds=[0]))
    assert train.waited == 3.0  # three batches


def test_sizes_that_do_not_fit_are_refused_by_name() -> None:
    pair = tiny_pair()
    assert shape_of(pair, None) == shape_of(pair, 8) == (1, 8, 8)
    with pytest.raises(WrongSettingsError, match="image_size"):
        shape_of(pair, 16)


def test_splits_of_two_kinds_are_refused(tmp_path: Path) -> None:
    folder = open_data(str(image_folder(tmp_path)))
    mixed = replace(tiny_pair(), test=folder.test)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="both splits"):
        sources(mixed, augment=True, **COMMON)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{}, {"scenario": "arrival", "fraction": 0.5}], ids=["all", "arrival"])
def test_a_loop_says_which_images_come_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, object]
) -> None:
    """Where they do not depend on weights: this run resamples from its third epoch on."""
    small_networks(monkeypatch)
    run = Settings(
        data="photos", net="cnn", imbalance=None, epochs=4, batch_size=5, image_size=32, weighting="aol",
        mechanism="resample", start=0.5, **given,  # type: ignore[arg-type]
    )  # fmt: skip
    loop = OfflineLoop([run], open_data(str(image_folder(tmp_path))), device=CPU, workers=0)
    assert isinstance(loop.train, FromStorage)
    orders, announced = [], []
    train = loop.train.train

    def noted(order: Tensor, *args: object, coming: Tensor | None, **more: object) -> object:
        orders.append(order.tolist())
        announced.append(None if coming is None else coming.tolist())
        return train(order, *args, coming=coming, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(loop.train, "train", noted)
    run_to_end(loop)
    assert run.first_weighted_epoch == 2
    assert announced == [orders[1], None, None, None]
