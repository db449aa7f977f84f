"""Large images on a CUDA device: kept there or streamed, the same crops, and exact when resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aol.lab.data import open_data
from aol.lab.data.encoded_images import Ragged, centre_boxes, crop_boxes, draw_crops
from aol.lab.engine import source
from aol.lab.engine.loop import Loop
from aol.lab.engine.source import Decoded, FromStorage, source_of
from aol.lab.nets.fused.resample import batch
from aol.lab.settings import Settings
from tests.support.tiny_sets import image_folder
from tests.support.views import images, ragged, resample, sizes

CUDA = torch.device("cuda")
COMMON = {"run": Settings(image_size=64), "augment": True, "workers": 2, "device": CUDA}
LEVEL = 1 / (255 * 0.224)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    return image_folder(root, per_class={"train": 40, "val": 8}, side=90)


@pytest.fixture
def nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "room_on", lambda _: 0)


@pytest.mark.parametrize("training", [True, False])
def test_the_kernel_is_the_matrix_products(training: bool) -> None:
    given = images()
    sides = sizes(given)
    boxes = crop_boxes(sides, draw_crops(len(given), seed=5, epoch=1)) if training else centre_boxes(sides)
    here, index = ragged(given), torch.arange(len(given))
    there = Ragged(*(part.cuda() for part in here))
    numbers = {"scale": torch.ones(3, device=CUDA), "shift": torch.zeros(3, device=CUDA)}
    found = batch(there, index.cuda(), boxes.cuda(), size=224, **numbers).cpu()
    # Places of up to 500 pixels round by 500 · 2⁻²⁴ each, and a pixel may differ from the next by 255.
    torch.testing.assert_close(found, resample(here, index, boxes, size=224), rtol=1e-4, atol=2 * 255 * 500 / 2**24)


def test_a_set_that_is_kept_shows_the_crops_of_one_that_is_streamed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = open_data(folder)
    kept = source_of(pair, pair.train, **COMMON)  # type: ignore[arg-type]
    assert isinstance(kept, Decoded)
    source._kept.clear()
    monkeypatch.setattr(source, "room_on", lambda _: 0)
    streamed = source_of(pair, pair.train, **COMMON)  # type: ignore[arg-type]
    assert isinstance(streamed, FromStorage)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0))[None].cuda()
    mine = torch.arange(120, device=CUDA)
    kept.prepare(120, mine, epoch=3, seeds=[7])
    wanted = torch.cat(list(streamed.train(order, mine, batch=50, epoch=3, seeds=[7])), 1)
    plain = torch.cat(list(streamed.clean(order[0], batch=50)))
    for off in (kept.augmented(order, mine) - wanted, kept.plain(order[0]) - plain):
        assert off.abs().max() < 1.3 * LEVEL
    streamed.close()


def losses_of(folder: Path, signal: str = "eval") -> list[torch.Tensor]:
    """Train, train half, go on from there; return the losses of both."""
    run = Settings(
        data="photos", net="cnn", imbalance=None, epochs=3, batch_size=50, lr=1e-3, weighting="aol", signal=signal,
        image_size=64,
    )  # fmt: skip
    first, second = (Loop([run], open_data(folder), device=CUDA, workers=2) for _ in range(2))
    first.run_epoch()
    second.load_state_dict(first.state_dict())
    for loop in (first, second):
        while not loop.done:
            loop.run_epoch()
        loop.close()
    return [loop.history.epoch("train_loss")[:, 0] for loop in (first, second)]


def test_a_resumed_run_is_the_run(folder: Path) -> None:
    torch.testing.assert_close(*losses_of(folder, "train"), rtol=2e-2, atol=2e-2)  # atomic sums of gradients


def test_a_captured_step_of_streamed_images_is_the_step(
    folder: Path, nothing_fits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three batches of 50, 50 and 20: two graphs, which read the images from one place."""
    streamed, resumed = losses_of(folder)
    torch.testing.assert_close(streamed, resumed, rtol=2e-2, atol=2e-2)
    monkeypatch.setattr(source, "room_on", lambda _: 1 << 30)
    torch.testing.assert_close(streamed, losses_of(folder)[0], rtol=2e-2, atol=1e-2)
