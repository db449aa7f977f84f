"""A share of the JPEGs is decoded by workers, the rest by the device, for which Pillow stands in here."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from aol.lab.data import gpu_decode, open_data
from aol.lab.data.crops import crops_for
from aol.lab.data.decode import decode, open_image
from aol.lab.data.errors import DataError
from aol.lab.engine import OfflineLoop, image_requests
from aol.lab.engine.image_batches import BatchMaker
from aol.lab.engine.image_requests import ImageReader, decoded_by_worker
from aol.lab.engine.side_streams import SideStreams
from aol.lab.engine.source import Decoding, sources
from aol.lab.engine.stored_source import FromStorage, worker_count
from aol.lab.settings import Settings
from tests.lab.data.test_workers import _runs
from tests.support.pretended_device import PLACE, OnDevice, no_waiting, pretended_device
from tests.support.running import PATIENCE, environment
from tests.support.tiny_runs import CPU, network, run_to_end, small_networks
from tests.support.tiny_sets import image_folder

LEVEL = 1.05 / (255 * 0.224)  # of the normalised pixels
ORDER = torch.tensor([[7, 0, 3, 11, 5, 2, 9, 1]])


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The files that the device has decoded, in order."""
    found: list[bytes] = []
    pretend(found.append, monkeypatch.setattr)
    monkeypatch.setattr(image_requests, "_CHUNK", 3)
    return found


def pretend(
    note: Callable[[bytes], None],
    patch: Callable[[object, str, object], None],
    place: Callable[[Tensor], Tensor] = lambda image: image,
) -> None:
    """Let a CPU be a device that decodes JPEGs, and places what was decoded."""

    def decoded(files: list[Tensor], _: torch.device) -> list[Tensor]:
        for file in files:
            note(bytes(file.numpy()))
        try:
            return [place(decode(bytes(file.numpy()))) for file in files]
        except DataError:
            raise RuntimeError("nvjpeg") from None

    patch(gpu_decode, "can_decode", lambda _: True)
    patch(gpu_decode, "decode_jpegs", decoded)


def source_of(folder: Path, share: float, *, workers: int = 0, size: int = 32) -> FromStorage:
    common = {"image_size": size, "normalisation": "centred", "augment": True, "device": CPU}
    (found, _) = sources(open_data(str(folder)), workers=workers, decoding=Decoding(cpu_share=share), **common)  # type: ignore[arg-type]
    assert isinstance(found, FromStorage)
    return found


def shown(source: FromStorage, mine: Tensor | None = None, *, epoch: int = 3) -> Tensor:
    """The training images of `ORDER`, [n, 3, size, size]."""
    mine = torch.arange(8) if mine is None else mine
    return torch.cat(list(source.train(ORDER, mine, batch=5, epoch=epoch, seeds=[4])), 1)[0]


@given(st.integers(0, 10**9), st.integers(0, 10**4), st.floats(0, 1))
def test_a_share_is_one_of_any_samples_and_of_any_epochs(first: int, epoch: int, share: float) -> None:
    """Multiples of an irrational part of a circle are spread evenly: a few too many or too few, however many."""
    by_sample = sum(decoded_by_worker(first + each, epoch, share) for each in range(500))
    by_epoch = sum(decoded_by_worker(first, epoch + each, share) for each in range(500))
    assert abs(by_sample - 500 * share) < 8
    assert abs(by_epoch - 500 * share) < 8
    assert not decoded_by_worker(first, epoch, 0.0)
    assert decoded_by_worker(first, epoch, 1.0)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_share_is_decoded_by_workers_and_the_images_are_the_same(
    tmp_path: Path, files: list[bytes], share: float, workers: int
) -> None:
    paths = [path.read_bytes() for path in sorted(image_folder(tmp_path).rglob("train/*/*.JPEG"))]
    wanted, found = source_of(tmp_path, 0.0), source_of(tmp_path, share, workers=workers)
    there, plain = shown(wanted), torch.cat(list(wanted.clean(ORDER[0], batch=5)))
    files.clear()
    assert (shown(found) - there).abs().max() <= LEVEL
    assert files == [paths[i] for i in ORDER[0] if not decoded_by_worker(int(i), 3, share)]
    files.clear()
    assert (torch.cat(list(found.clean(ORDER[0], batch=5))) - plain).abs().max() <= LEVEL
    assert files == [paths[i] for i in ORDER[0] if not decoded_by_worker(int(i), 0, share)]
    found.close()


def test_each_sample_has_the_same_pixels_in_any_pass_that_shows_it(tmp_path: Path, files: list[bytes]) -> None:
    """On any number of processes, with any number of workers, and after a pass that was not read to its end."""
    image_folder(tmp_path)
    one, two = source_of(tmp_path, 0.5, workers=2), source_of(tmp_path, 0.5)
    there = shown(one)
    for rank in range(3):
        assert torch.equal(shown(two, torch.arange(rank, 8, 3)), there[rank::3])
    part = one.train(ORDER, torch.arange(8), batch=2, epoch=3, seeds=[4], coming=ORDER)
    assert torch.equal(next(part)[0], there[:2])
    part.close()
    assert torch.equal(shown(one), there)
    assert 0 < len(files) < 3 * 8
    one.close()


@pytest.mark.parametrize("what", ["train", "clean"])
def test_the_device_mixes_both_kinds_without_making_the_host_wait(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = open_data(str(image_folder(tmp_path)))
    crop, centre = crops_for(32)
    train, clean = (pair.train.with_transform(each) for each in (crop, centre))  # type: ignore[union-attr]
    wanted = ImageReader(train, clean, cuts=True, encoded=True, share=0.5)
    chunks = [wanted([(what, index, 4, 3) for index in part]) for part in ORDER[0].split(3)]
    batches = []
    with pretended_device():
        for device in (CPU, PLACE):
            pretend(lambda _: None, monkeypatch.setattr, partial(Tensor.to, device=device, non_blocking=True))
            maker = BatchMaker(centre, train.records, pair.normalisation, device)
            maker._crops.by_kernel = False
            with no_waiting():
                batches.append(maker(chunks, SideStreams(CPU)))  # type: ignore[arg-type]
    here, there = batches
    assert isinstance(there, OnDevice)
    assert (there.inner - here).abs().max() < LEVEL / 4  # products of float16
    assert {bool(each) for chunk in chunks for each in chunk.encoded} == {True, False}  # type: ignore[union-attr]


def test_large_photos_are_decoded_at_a_part_of_their_size(
    tmp_path: Path, files: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crops of 150 pixels and more are shown on 16: an eighth has enough of them; to half a pixel of the result."""
    image_folder(tmp_path, side=640)
    there = shown(source_of(tmp_path, 0.0, size=16))
    decoded: list[tuple[int, int]] = []

    def noted(content: bytes, source: str, *, reduce: int) -> Image.Image:
        image = open_image(content, source, reduce=reduce)
        decoded.append(image.size)
        return image

    monkeypatch.setattr(image_requests, "open_image", noted)
    found = source_of(tmp_path, 1.0, size=16)
    images = shown(found)
    assert {height for _, height in decoded} == {80}
    # The canvas is 4 × 4 pixels enlarged 160 times: half a pixel of a result is a fortieth of such a pixel.
    assert (images - there).abs().mean() < 2 * LEVEL
    assert (images - there).abs().max() < 16 * LEVEL
    clean = torch.cat(list(found.clean(ORDER[0], batch=8)))
    plain = torch.cat(list(source_of(tmp_path, 0.0, size=16).clean(ORDER[0], batch=8)))
    assert (clean - plain).abs().mean() < 2 * LEVEL
    assert (clean - plain).abs().max() < 16 * LEVEL


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by", ["worker", "device"])
def test_a_damaged_file_is_named_whoever_decodes_it(tmp_path: Path, files: list[bytes], by: str, workers: int) -> None:
    paths = sorted(image_folder(tmp_path).rglob("train/*/*.JPEG"))
    bad = next(place for place in range(12) if decoded_by_worker(place, 0, 0.5) == (by == "worker"))
    content = paths[bad].read_bytes()
    paths[bad].write_bytes(content[:300] + content[-2:])  # begins and ends as a JPEG
    source = source_of(tmp_path, 0.5, workers=workers)
    with pytest.raises(DataError, match=f"{paths[bad].name}: a damaged image"):
        list(source.clean(torch.arange(12), batch=4))
    assert len(list(source.clean(torch.tensor([each for each in range(12) if each != bad]), batch=4))) == 3
    paths[bad].write_bytes(content)
    assert len(list(source.clean(torch.arange(12), batch=4))) == 3
    source.close()


def test_a_killed_worker_is_said_to_be_one_and_the_next_pass_has_others(tmp_path: Path, files: list[bytes]) -> None:
    image_folder(tmp_path)
    source = source_of(tmp_path, 0.5, workers=1)
    there = shown(source)
    workers = source._feed._workers
    assert workers is not None
    assert workers._pool is not None
    (process,) = workers._pool._processes.values()
    process.kill()
    process.join()
    with pytest.raises(RuntimeError, match="A worker process was killed, perhaps for want of memory"):
        shown(source)
    assert torch.equal(shown(source), there)
    source.close()


@pytest.mark.usefixtures("files")
def test_a_run_that_is_stopped_within_an_epoch_goes_on_as_if_it_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_networks(monkeypatch)
    pair = open_data(str(image_folder(tmp_path)))
    run = Settings(data="photos", net="cnn", imbalance=None, epochs=3, batch_size=5, image_size=32, weighting="aol")
    loop = partial(OfflineLoop, [run], pair, device=CPU, decoding=Decoding(cpu_share=0.5))
    wanted, stopped = run_to_end(loop(workers=0)), loop(workers=2)
    stopped.run_epoch()
    state, seen = copy.deepcopy(stopped.state_dict()), 0

    def interrupt() -> None:
        nonlocal seen
        seen += 1
        if seen == 2:  # of three batches
            raise KeyboardInterrupt

    stopped.on_batch = interrupt
    with pytest.raises(KeyboardInterrupt):
        stopped.run_epoch()
    stopped.close()
    resumed = loop(workers=1)
    resumed.load_state_dict(state)
    run_to_end(resumed)
    for name, value in network(wanted).items():
        assert torch.equal(network(resumed)[name], value)
    assert torch.equal(resumed.ages.age, wanted.ages.age)
    resumed.close()


def test_ctrl_c_ends_the_program_and_its_workers(tmp_path: Path) -> None:
    """The signal goes to all processes, as from a terminal, when the device decodes its second batch."""
    image_folder(tmp_path / "photos")
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background processes ignore it
        "from functools import partial\n"
        "from multiprocessing import active_children\n"
        "from aol.cli import main\n"
        "from aol.lab.engine import source\n"
        "from tests.lab.engine.test_cpu_share import pretend\n"
        "calls = []\n"
        "def note(_):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 6:\n"
        "        print(*(child.pid for child in active_children()), flush=True)\n"
        "        os.killpg(0, signal.SIGINT)\n"
        "pretend(note, setattr)\n"
        "source.Decoding = partial(source.Decoding, cpu_share=0.5)\n"
        "words = 'train --data photos --net cnn --image-size 32 --epochs 9 --batch-size 4 --workers 2 --device cpu'\n"
        "sys.exit(main([*words.split(), '--out', 'runs']))\n"
    )
    root = Path(__file__).parents[3]
    paths = os.pathsep.join([str(root / "src"), str(root)])  # from another folder
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False,
        cwd=tmp_path, env=environment(PYTHONPATH=paths), start_new_session=True,
    )  # fmt: skip
    assert ran.returncode == 130, ran.stderr
    assert "stopped" in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stderr
    numbers = [int(word) for word in ran.stdout.split()[:2]]
    assert len(numbers) == 2
    end = time.monotonic() + PATIENCE
    while any(_runs(number) for number in numbers):
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_a_part(share: float) -> None:
    with pytest.raises(ValueError, match="cpu_share must"):
        Decoding(cpu_share=share)


def test_half_is_left_to_many_workers_by_default() -> None:
    assert [Decoding().share(workers) for workers in (0, 15, 16, 64)] == [0.0, 0.0, 0.5, 0.5]
    assert [Decoding(cpu_share=share).share(64) for share in (0.0, 0.25)] == [0.0, 0.25]


@pytest.mark.parametrize(
    ("own", "launcher", "processes", "expected"),
    [(8, 64, 8, 8), (32, 64, 8, 8), (8, 8, 4, 2), (64, 64, 8, 8), (4, 64, 1, 4), (3, 2, 2, 1), (2, 64, 0, 2)],
    ids=["own cores", "a half for four each", "part of a machine", "all for all", "alone", "more here", "no launcher"],
)
def test_cores_that_a_launcher_has_given_to_each_process_are_not_divided_again(
    own: int, launcher: int, processes: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(launcher if process else own)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert worker_count(None, torch.device("cuda")) == expected


def test_processes_on_one_machine_divide_its_cores_and_only_linux_has_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(20)))
    gpu, found = torch.device("cuda"), []
    for processes in ("1", "3", "64"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        found.append(worker_count(None, gpu))
    assert found == [20, 6, 1]
    assert worker_count(None, CPU) == 0
    monkeypatch.setattr(sys, "platform", "win32")
    assert [worker_count(given, gpu) for given in (None, 16)] == [0, 0]
