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

from aol import cli
from aol.cli import main
from tests.support.bad_input import WRONG

SRC = Path(__file__).resolve().parents[2] / "src"
RUN_KEYS = {"config", "accuracy", "per_class_accuracy", "class_age", "class_weight", "seconds", "out"}
FEW = ["--epochs", "1", "--batch-size", "512"]


@pytest.mark.parametrize("words", WRONG, ids=str)
def test_wrong_words_are_one_line_that_says_what_would_be_right(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    status = main([*words.split(), "--out", str(out)])
    said = capsys.readouterr()
    assert (status, said.out, said.err) == (2, "", f"aol: {WRONG[words]}\n")
    assert not list(out.rglob("*.json"))


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ([], "aol: the following arguments are required: COMMAND"),
        (["fly"], "aol: argument COMMAND: invalid choice: 'fly'"),
        (["train", "--parallel", "all"], "aol: argument --parallel: invalid choice: 'all'"),
        (["train", "--epoch", "3"], "aol: unrecognized arguments: --epoch 3"),
        (["train", "--data", "./nowhere"], "aol: "),
    ],
)
def test_words_that_the_parser_refuses_are_one_line_too(
    words: list[str], start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(start)
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("command", ["train", "stream"])
def test_every_option_is_in_the_tour_of_bad_input_or_takes_anything(command: str) -> None:
    toured = {word for words in WRONG for word in words.split() if word.startswith("--")}
    anything = {"--data-dir", "--out", "--parallel", "--tensorboard", "--deterministic", "--json", "--debug", "--help"}
    assert options(command) - toured - anything == set()


def options(command: str) -> set[str]:
    parser = cli._parser()
    (action,) = (each for each in parser._actions if each.dest == "command")
    return {flag for each in action.choices[command]._actions for flag in each.option_strings if flag[1] == "-"}  # type: ignore


@pytest.mark.parametrize("command", ["train", "stream"])
def test_every_option_of_the_help_is_accepted_with_its_default(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    words = [command, "--json"]
    for flag, default in re.findall(r"(--[a-z-]+) VALUES (?:(?!--|\[).)*\[([^\]]+)\]", text.partition("options:")[2]):
        words += [flag, {"--epochs": "1", "--steps": "1"}.get(flag, default)]
    assert len(words) > 50
    words += ["--data-dir", str(tmp_path), "--out", str(tmp_path / "out"), "--device", "cpu", "--together", "2"]
    words += ["--workers", "0", "--parallel", "data", "--checkpoint-seconds", "30", "--deterministic", "--debug"]
    words += ["--imbalance", "10", "--warmup", "none", "--tensorboard", "--resume"]
    words += ["--keep-samples"] if command == "train" else ["--threshold", "none"]
    try:
        assert main(words) == 0
    finally:
        torch.use_deterministic_algorithms(False)
    unused = options(command) - set(words) - {"--help", "--fresh", "--image-size"}
    assert unused == set()


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


def test_comma_grids_make_a_run_each_and_equal_ones_once() -> None:
    def made(command: str = "train", **given: str) -> int:
        return len(cli._runs(command, {name: [text] for name, text in given.items()}))

    assert made(weighting="none,aol", seed="0,1,2") == 6
    assert made(weighting="none,cb,aol", rho="0.1,0.9", level="class,sample") == 1 + 1 + 4
    assert made(weighting="none,aol,cb+aol", rho="0.1,0.5", beta="0.9,0.99", level="class, sample") == 1 + 4 + 8
    assert made(loss="softmax,sigmoid,focal", mechanism="reweight,resample", divide_by="weight,count") == 12
    assert made(seed="1,1,1") == 1
    assert made(weighting="none,aol", fuse="ema,mean", rho="0.1,0.5,0.9", level="class,sample") == 2 + 6 + 2
    assert (
        made(weighting="aol,error", fuse="mean", rho="0,0.1,0.5") == 2 + 3
    )  # at 0 weights are equal, and so not there
    assert made(temper="0.5,1", power="0.5,1", weighting="none,frequency") == 1 + 4
    assert made("stream", weighting="aol", fuse="ema,mean", rho="0.1,0.5") == 2


def test_a_run_that_fails_is_named_and_makes_the_exit_status_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--epochs", "3", "--lr", "1e6", "--warmup", "0", "--momentum", "1", "--seed", "7"]
    assert main([*words, "--json", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    (run,) = json.loads(said, parse_constant=pytest.fail)["runs"]
    epoch = run["failed_at_epoch"]
    assert epoch >= 1
    assert main([*words, "--resume", "--out", str(tmp_path)]) == 1
    assert f"Failed: none, seed 7: its loss was not finite in epoch {epoch}." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (RuntimeError("CUDA out of memory.\nTried to allocate"), 1, "CUDA out of memory. Tried to allocate"),
        (KeyError("x"), 1, "KeyError: 'x' (a mistake in aol; --debug shows where)"),
        (ValueError("rho is off"), 2, "rho is off"),
        (OSError(28, "No space left on device"), 1, "the disk is full; the last checkpoint is whole: make room, then "
         "add --resume."),
        (KeyboardInterrupt(), 130, "stopped; add --resume to go on from the last checkpoint."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)  # fmt: skip
def test_whatever_happens_is_one_line_and_a_traceback_only_on_request(
    error: BaseException,
    status: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*given: object) -> None:
        raise error

    monkeypatch.setattr(cli, "train", fail)
    assert main(["train", "--out", str(tmp_path)]) == status
    assert capsys.readouterr().err == f"aol: {line}\n"
    if status != 130:
        assert main(["train", "--debug", "--out", str(tmp_path)]) == status
        assert "Traceback" in capsys.readouterr().err


def test_plain_lines_where_there_is_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--epochs", "2", "--weighting", "none,cb,aol", "--seed", "0,1,2", "--batch-size", "512"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert re.match(r"stack 1 of 3: 3 runs together\nepoch 1/2: test \d+\.\d to \d+\.\d %, [\d,]+ images/s\n", said.err)
    for column in ("method", "seeds", "test %", "spread", "against none", "95 % interval"):
        assert column in said.out
    assert f"Records of every epoch and class: {tmp_path}/runs" in said.out
    assert "Try next: aol stream " in said.out


def test_what_standard_output_cannot_write_is_written_as_a_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aol", "train", *FEW, "--weighting", "none,aol", "--out"]
    env = os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run([*command, os.fsencode(tmp_path) + b"/caf\xe9"], env=env, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert b"aol \\u03c1=0.5 class" in done.stdout
    assert b"/caf\\udce9/runs; one folder a run" in done.stdout


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
    drawn, end = b"", time.monotonic() + 90
    while time.monotonic() < end:
        if select.select([master], [], [], 0.05)[0]:
            drawn += os.read(master, 65536)
        elif process.poll() is not None:
            break
        if when is not None and when.exists():
            os.write(master, keys)
            when = None
    status = process.wait(10)
    restored = termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)
    return status, drawn.decode(), restored


def test_the_live_display_draws_and_gives_the_terminal_back(tmp_path: Path) -> None:
    words = ["train", "--epochs", "3", "--weighting", "none,aol", "--out", str(tmp_path)]
    status, drawn, restored = on_a_terminal(words)
    assert status == 0, drawn
    assert "\x1b[?25l" in drawn  # the cursor is hidden
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")  # and shown again
    assert restored
    for text in ("stack 1/1", "3/3", "oldest class", "aol ρ=0.5 class", "Try next"):
        assert text in drawn
    assert "Traceback" not in drawn


def test_control_c_is_one_line_and_can_be_resumed_from(tmp_path: Path) -> None:
    words = ["train", "--epochs", "3000", "--checkpoint-seconds", "0", "--out", str(tmp_path)]
    status, drawn, restored = on_a_terminal(words, when=tmp_path / "stack-0" / "checkpoint.pt", keys=b"\x03")
    assert status == 130
    assert drawn.rstrip().endswith("aol: stopped; add --resume to go on from the last checkpoint.")
    assert "Traceback" not in drawn
    assert restored
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")
    process = subprocess.Popen(
        [sys.executable, "-m", "aol", *words, "--resume"], stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}, preexec_fn=hears_control_c,
    )  # fmt: skip
    assert process.stderr is not None
    first = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert re.match(r"stack 1 of 1: one run, from epoch \d+\n", first)
    assert process.wait(30) == 130
    assert process.stderr.read().splitlines()[-1].startswith("aol: stopped")
    process.stderr.close()
