"""Large images on a CUDA device: kept there or streamed, the same crops, and exact when resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from aol.lab.data.crops import crops_for
from aol.lab.data.gpu_decode import can_decode
from aol.lab.engine.kept_images import Decoded

from aol.lab.data import gpu_decode, open_data
from aol.lab.data.resample import Ragged, centre_view, crop_view, largest_crops, resample
from aol.lab.engine import OfflineLoop
from aol.lab.engine.source import Decoding, sources
from aol.lab.engine.stored_source import FromStorage
from aol.lab.nets.fused.resample import batch
from aol.lab.settings import Settings
from tests.lab.data.test_resample import images, sizes
from tests.support.tiny_sets import image_folder

CUDA = torch.device("cuda")
COMMON = {"image_size": 64, "normalisation": "centred", "augment": True, "workers": 2, "device": CUDA}


WAYS = {  # who decodes images that are not kept
    "workers": Decoding(keep=False),
    "device": Decoding(keep=False),
    "both": Decoding(keep=False, cpu_share=0.4),
}
MOST = {"workers": 1.3, "device": 16, "both": 40}  # grey levels; two decoders differ more where colours meet


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    return image_folder(root, per_class={"train": 40, "val": 8}, side=90)


@pytest.mark.parametrize("size", [32, 224])
def test_crops_on_the_device_are_within_a_quarter_of_a_grey_level(size: int) -> None:
    given, (crop, centre) = images(), crops_for(size)
    ragged, sides, index = Ragged.of(given), sizes(given), torch.arange(len(given))
    there = Ragged(*(each.cuda() for each in ragged[:4]))
    boxes = torch.from_numpy(crop.boxes(*sides.T.numpy(), seed=5, epoch=1))
    for view, kind in ((crop_view(boxes, size), crop), (centre_view(sides, centre), centre)):
        extent = largest_crops(sides, kind)
        wanted = resample(ragged, index, view, size=size, extent=extent)
        moved = type(view)(*(each.cuda() for each in view))
        found = resample(there, index.cuda(), moved, size=size, extent=extent)
        assert (found.cpu() - wanted).abs().max() < 0.25


@pytest.mark.parametrize("planar", [False, True])
def test_the_kernel_is_the_matrix_products(planar: bool) -> None:
    given, (crop, centre) = images(), crops_for(224)
    ragged, sides, index = Ragged.of(given, planar=planar), sizes(given), torch.arange(len(given))
    there = Ragged(*(each.cuda() for each in ragged[:4]), planar)
    boxes = torch.from_numpy(crop.boxes(*sides.T.numpy(), seed=5, epoch=1))
    numbers = {"scale": torch.ones(3, device=CUDA), "shift": torch.zeros(3, device=CUDA)}
    for view, kind in ((crop_view(boxes, 224), crop), (centre_view(sides, centre), centre)):
        wanted = resample(ragged, index, view, size=224, extent=largest_crops(sides, kind))
        moved = type(view)(*(each.cuda() for each in view))
        found = batch(there, index.cuda(), moved, size=224, **numbers)
        # Places of up to 500 pixels round by 500 · 2⁻²⁴ each, and a pixel may differ from the next by 255.
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=2 * 255 * 500 / 2**24)


@pytest.mark.parametrize("by", WAYS)
def test_a_set_that_is_kept_shows_the_crops_of_one_that_is_streamed(
    folder: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder of the device may differ by some grey levels."""
    if by == "workers":
        monkeypatch.setattr(gpu_decode, "can_decode", lambda _: False)
    elif not can_decode(CUDA):
        pytest.skip("torchvision with nvJPEG is missing")
    pair = open_data(folder)
    (kept, _) = sources(pair, **COMMON)  # type: ignore[arg-type]
    (streamed, _) = sources(pair, decoding=WAYS[by], **COMMON)  # type: ignore[arg-type]
    assert isinstance(kept, Decoded)
    assert isinstance(streamed, FromStorage)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0))[None].cuda()
    mine = torch.arange(120, device=CUDA)
    kept.prepare(120, mine, epoch=3, seeds=[7])
    wanted = torch.cat(list(streamed.train(order, mine, batch=50, epoch=3, seeds=[7])), 1)
    level, most = 1 / (255 * 0.224), MOST[by]
    plain = torch.cat(list(streamed.clean(order[0], batch=50)))
    for off in (kept.augmented(order, mine) - wanted, kept.plain(order[0]) - plain):
        assert off.abs().max() < most * level
        assert off.abs().mean() < 1.5 * level
    streamed.close()


@pytest.mark.parametrize("by", WAYS)
def test_batches_that_are_made_ahead_are_those_of_their_own_samples(
    folder: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four passes over twenty batches, each known before; the step that uses a batch is slow, then quick.

    What is made ahead must neither be overwritten before it was used nor used before it is there.
    """
    if by == "workers":
        monkeypatch.setattr(gpu_decode, "can_decode", lambda _: False)
    elif not can_decode(CUDA):
        pytest.skip("torchvision with nvJPEG is missing")
    pair, mine = open_data(folder), torch.arange(120, device=CUDA)
    (kept, _) = sources(pair, **COMMON)  # type: ignore[arg-type]
    (streamed, _) = sources(pair, decoding=WAYS[by], **COMMON)  # type: ignore[arg-type]
    assert isinstance(kept, Decoded)
    assert isinstance(streamed, FromStorage)
    orders = [torch.randperm(120, generator=torch.Generator().manual_seed(seed))[None].cuda() for seed in range(5)]
    busy = torch.randn((4096, 4096), device=CUDA)
    place = torch.empty((1, 6, 3, 64, 64), device=CUDA)  # as the images of a captured step
    level, most = 1 / (255 * 0.224), MOST[by]
    for epoch in range(4):
        seen = []
        given = {"batch": 6, "epoch": epoch, "seeds": [7], "coming": orders[epoch + 1]}
        for number, shown in enumerate(streamed.train(orders[epoch], mine, **given)):  # type: ignore[arg-type]
            place.copy_(shown)
            del shown
            for _ in range(40 if number % 8 < 4 else 0):
                busy = torch.tanh(busy @ busy)
            seen.append(place.clone())
        kept.prepare(120, mine, epoch=epoch, seeds=[7])
        off = kept.augmented(orders[epoch], mine) - torch.cat(seen, 1)
        assert off.abs().max() < most * level
        assert off.abs().mean() < 1.5 * level
        clean = torch.cat(list(streamed.clean(orders[epoch][0], batch=7)))  # while the next pass is begun
        assert (kept.plain(orders[epoch][0]) - clean).abs().max() < most * level
    streamed.close()


@pytest.mark.parametrize("decoding", [Decoding(), WAYS["device"], WAYS["both"]], ids=["kept", "streamed", "shared"])
@pytest.mark.parametrize("signal", ["eval", "train"])
def test_a_resumed_run_is_the_run(folder: Path, decoding: Decoding, signal: str) -> None:
    run = Settings(
        data="photos", net="resnet32", imbalance=None, epochs=3, batch_size=50, lr=0.01, weighting="aol", signal=signal,
        image_size=64, precision="bf16", clean_part=0.8 if signal == "eval" else 1.0,
    )  # fmt: skip

    first, second = (OfflineLoop([run], open_data(folder), device=CUDA, workers=2, decoding=decoding) for _ in range(2))
    assert isinstance(first.train, Decoded if decoding.keep else FromStorage)
    first.run_epoch()
    second.load_state_dict(first.state_dict())
    for each in (first, second):
        while not each.done:
            each.run_epoch()
        each.close()
    here, there = (each.learner.networks(0)["network"] for each in (first, second))
    for name, value in here.items():
        torch.testing.assert_close(value, there[name], rtol=2e-2, atol=2e-2)  # atomic sums of gradients
    waited, took = (first.history.epoch(name)[:, 0] for name in ("data_seconds", "train_seconds"))
    assert ((waited >= 0) & (waited <= took * 1.05)).all()


def test_a_captured_step_of_streamed_images_is_the_step(folder: Path) -> None:
    """Three batches of 50, 50 and 20: two graphs, which read the images from one place."""
    losses = []
    for decoding in (Decoding(), WAYS["device"], WAYS["both"]):
        run = Settings(
            data="photos", net="cnn", imbalance=None, epochs=2, batch_size=50, lr=1e-3, image_size=64, signal="none"
        )
        loop = OfflineLoop([run], open_data(folder), device=CUDA, workers=2, decoding=decoding)
        for _ in range(2):
            loop.run_epoch()
        losses.append(loop.history.epoch("train_loss")[:, 0])
        loop.close()
    for streamed in losses[1:]:
        torch.testing.assert_close(losses[0], streamed, rtol=2e-2, atol=1e-2)
