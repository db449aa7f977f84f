"""`aol train` and `aol stream`: flags to runs, defaults, output folders, displays, exit status."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import torch

from aol.cli import main
from aol.lab.cli import BY_DATA, DEFAULTS, STREAM, runs_of, settings_of
from tests.cli.test_parser import flags
from tests.support.running import PATIENCE
from tests.support.tiny_sets import image_folder

SRC = Path(__file__).resolve().parents[2] / "src"
RUN_KEYS = {"config", "accuracy", "per_class_accuracy", "class_age", "class_weight", "seconds", "out"}
FEW = ["--epochs", "1", "--batch-size", "512"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", ["train", "stream"])
def test_every_flag_is_accepted_with_its_default(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = {**DEFAULTS, **BY_DATA["digits"], **(STREAM if command == "stream" else {}), "epochs": 1}
    words = [command]
    for name in settings_of(command):
        flag = "--steps" if (command, name) == ("stream", "epochs") else f"--{name.replace('_', '-')}"
        value = start[name]
        words += [flag, "none" if value is None else str(value).lower()]
    words += ["--data-dir", str(tmp_path), "--out", str(tmp_path / "out"), "--device", "cpu", "--together", "2"]
    words += ["--stacking", "grouped", "--workers", "0", "--checkpoint-seconds", "30", "--deterministic", "--debug"]
    words += ["--resume", "--minutes", "60", "--json"]
    words += ["--keep-samples"] if command == "train" else []
    try:
        assert main(words) == 0
    finally:
        torch.use_deterministic_algorithms(False)
    assert flags(command) - set(words) - {"--help", "--fresh", "--ray"} == set()
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["config"] == runs_of(command, {"epochs": ["1"], "fraction": [str(start["fraction"])]})[0].as_dict()


def test_a_stream_tells_of_thresholds_of_zero_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    assert main(["stream", "--steps", "8", "--period", "3", "--weighting", "aol", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count("positive-median") == 1
    assert not [each for each in recwarn if "threshold" in str(each.message)]


@pytest.mark.parametrize("words", [["train", *FEW], ["stream", "--steps", "2"]])
def test_json_is_one_object_and_nothing_else(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--weighting", "none,aol", "--json", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.count("\n") == 1
    (key, runs), *rest = json.loads(said.out, parse_constant=pytest.fail).items()
    assert (key, rest) == ("runs", [])
    assert [run["config"]["weighting"] for run in runs] == ["none", "aol"]
    for run in runs:
        assert run.keys() >= RUN_KEYS
        assert run["accuracy"].keys() >= {"last", "best", "tail_mean"}
        assert len(run["per_class_accuracy"]) == len(run["class_age"]) == len(run["class_weight"]) == 10
        assert Path(run["out"]).is_dir()
        assert run["seconds"] > 0


def made(command: str = "train", **given: str) -> int:
    return len(runs_of(command, {name: [text] for name, text in given.items()}))


def test_comma_grids_make_a_run_each_and_equal_ones_once() -> None:
    assert made(weighting="none,aol", seed="0,1,2") == 6
    assert made(weighting="none,cb,aol", rho="0.1,0.9", level="class,sample") == 1 + 1 + 4
    assert made(weighting="none,aol,cb+aol", rho="0.1,0.5", beta="0.9,0.99", level="class, sample") == 1 + 4 + 8
    assert made(loss="softmax,sigmoid,focal", mechanism="reweight,resample", divide_by="weight,count") == 12
    assert made(seed="1,1,1") == 1
    assert made(weighting="none,aol", fuse="ema,peak", rho="0.1,0.5,0.9", level="class,sample") == 2 + 6 + 2
    assert made(weighting="aol,error", fuse="peak", rho="0,0.1,0.5") == 2 + 3  # at 0 all weights are one
    assert made(temper="0.5,1", power="0.5,1", weighting="none,frequency") == 1 + 4
    assert made("stream", weighting="aol", fuse="ema,peak", rho="0.1,0.5") == 2


def test_seeds_may_be_ranges() -> None:
    runs = runs_of("train", {"seed": ["0-2,7", "9-10"]})
    assert [run.seed for run in runs] == [0, 1, 2, 7, 9, 10]


def test_defaults_follow_the_data_set_and_flags_override_them(tmp_path: Path) -> None:
    runs = runs_of("train", {"data": ["digits,cifar100", str(tmp_path)]})
    assert [(run.epochs, run.batch_size, run.imbalance) for run in runs] == [
        (60, 32, 50.0), (200, 128, 50.0), (30, 128, None),
    ]  # fmt: skip
    (run,) = runs_of("train", {"data": ["cifar10"], "epochs": ["3"], "imbalance": ["none"]})
    assert (run.epochs, run.batch_size, run.imbalance) == (3, 128, None)
    (run,) = runs_of("stream", {})
    assert (run.scenario, run.epochs, run.batch_size, run.schedule) == ("stream", 100, 32, "fixed")
    (run,) = runs_of("train", {"fraction": ["0.5"]})
    assert (run.scenario, run.fraction) == ("arrival", 0.5)


def test_a_run_that_fails_is_named_and_makes_the_exit_status_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--epochs", "3", "--lr", "1e6", "--warmup", "0", "--momentum", "1", "--seed", "7"]
    assert main([*words, "--json", "--out", str(tmp_path)]) == 1
    (run,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["runs"]
    epoch = run["failed_at_epoch"]
    assert epoch >= 1
    assert main([*words, "--resume", "--out", str(tmp_path)]) == 1
    assert re.search(rf"Failed: none, seed 7: .* epoch {epoch}\.", capsys.readouterr().out)


def test_without_out_every_command_gets_a_new_folder_and_latest_points_to_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []
    for _ in range(2):
        assert main(["train", *FEW, "--json"]) == 0
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        made.append(Path(run["out"]).resolve())
    folders = sorted(path for path in (folder / "runs").iterdir() if not path.is_symlink())
    assert len(folders) == 2
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(-2)?", path.name) for path in folders)
    assert (folder / "runs" / "latest").is_symlink()
    assert made[1].is_relative_to((folder / "runs" / "latest").resolve())
    assert made[0].parts[-3:] != made[1].parts[-3:]
    assert main(["train", *FEW, "--resume", "--json"]) == 0  # of the latest
    assert len(list((folder / "runs").iterdir())) == 3


def test_a_folder_called_latest_is_left_alone(folder: Path) -> None:
    (folder / "runs" / "latest").mkdir(parents=True)
    assert main(["train", *FEW]) == 0
    assert not (folder / "runs" / "latest").is_symlink()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "--fresh"], "--fresh"),
        (["train", "--resume", "--fresh", "--out", "runs"], "--resume and --fresh contradict"),
        (["train", "--resume"], "runs/latest"),
        (["train", "--net", "resnet34"], "resnet34"),
        (["train", "--data", "file"], "file is a file"),
    ],
)
def test_wrong_words_leave_no_folder(
    words: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "file").touch()
    assert main(words) == 2
    assert says in capsys.readouterr().err
    assert not list(folder.glob("runs/*"))


def test_a_command_stopped_before_it_trains_leaves_no_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("aol.lab.data.open.open_sets", stopped)
    assert main(["train", "--epochs", "1"]) == 130
    assert not list(folder.glob("runs/*"))


def test_data_that_cannot_be_read_is_a_failure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "empty").mkdir()
    assert main(["train", "--data", "empty"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_several_processes_need_a_folder_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # as by torchrun
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert main(["train", *FEW]) == 2
    assert "--out must be given" in capsys.readouterr().err


def test_a_folder_with_runs_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert main(["train", *FEW, *out]) == 0
    assert main(["train", *FEW, *out]) == 2
    said = capsys.readouterr().err
    assert "--resume" in said
    assert "--fresh" in said
    assert main(["train", *FEW, "--lr", "0.2", *out, "--resume"]) == 2
    assert "other runs" in capsys.readouterr().err
    assert main(["train", *FEW, "--lr", "0.2", *out, "--fresh"]) == 0


def test_large_images_on_a_cpu_are_warned_of_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = image_folder(tmp_path / "photos")
    words = ["train", "--data", str(photos), "--epochs", "1", "--device", "cpu", "--net", "cnn"]
    assert main([*words, "--image-size", "16", "--out", str(tmp_path / "small")]) == 0
    assert "Warning" not in capsys.readouterr().err
    assert main([*words, "--image-size", "128", "--out", str(tmp_path / "large")]) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert "128 pixels" in first
    assert "--image-size 64" in first


def test_plain_lines_where_there_is_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--epochs", "2", "--weighting", "none,cb,aol", "--seed", "0-2", "--batch-size", "512"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "epoch 2/2" in said.err
    for column in ("method", "seeds", "accuracy %", "gain", "95 % interval"):
        assert column in said.out
    assert f"aol report {tmp_path}" in said.out


def test_what_standard_output_cannot_write_is_written_as_a_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aol", "train", *FEW, "--weighting", "none,aol", "--out"]
    env = os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(
        [*command, os.fsencode(tmp_path) + b"/caf\xe9"], env=env, capture_output=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert b"aol \\u03c1=0.5 class" in done.stdout
    assert b"/caf\\udce9" in done.stdout


def hears_control_c() -> None:
    """Undo what a shell does to what it starts in the background, as these tests may be: it makes it deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def on_a_terminal(words: list[str], when: Path | None = None, keys: bytes = b"") -> tuple[int, str, bool]:
    """Run on a pseudo-terminal, press keys once a file is there; status, what was drawn, and whether modes are back."""
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    env = os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "aol", *words], stdin=slave, stdout=slave, stderr=slave, env=env,
        preexec_fn=lambda: (hears_control_c(), os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
    )  # fmt: skip
    drawn, end = b"", time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if select.select([master], [], [], 0.05)[0]:
            drawn += os.read(master, 65536)
        elif process.poll() is not None:
            break
        if when is not None and list(when.parent.glob(when.name)):
            os.write(master, keys)
            when = None
    status = process.wait(PATIENCE)
    restored = termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)
    return status, drawn.decode(), restored


def test_control_c_is_one_line_and_can_be_resumed_from(tmp_path: Path) -> None:
    words = ["train", "--epochs", "3000", "--checkpoint-seconds", "0", "--out", str(tmp_path)]
    status, drawn, restored = on_a_terminal(words, when=tmp_path / "work" / "*", keys=b"\x03")
    assert status in (130, -signal.SIGINT)  # Python ends by the signal if it came inside exec(); 130 for a shell too
    assert "aol: stopped" in drawn.rstrip().splitlines()[-1]
    assert f"aol resume {tmp_path}" in drawn
    assert "Traceback" not in drawn
    assert restored


def test_fresh_deletes_runs_and_nothing_else(tmp_path: Path) -> None:
    words = ["train", *FEW, "--fresh", "--json", "--out"]
    assert main([*words, str(tmp_path / "new")]) == 0
    for place in ("mine/letter.txt", "runs-only/runs/letter.txt"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).touch()
        assert main([*words, str(tmp_path / place.split("/")[0])]) == 0
        assert (tmp_path / place).exists()
