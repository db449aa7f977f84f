"""What is installed: the library without the packages of the command line, and a source archive that can be tested."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from hatchling import build

import aol
from hatch_build import addresses
from tests.support.running import PATIENCE

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jinja2", "pandas", "rich", "scipy", "sklearn"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def run(program: str, *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, cwd=cwd, timeout=PATIENCE
    )


def test_the_library_and_the_recorder_need_no_package_of_the_command_line(tmp_path):
    program = f"""{WITHOUT}
import aol, torch
for name in aol.__all__:
    if name not in ("find_label_errors", "load_runs"):  # frames
        getattr(aol, name)
ages = aol.SampleAges([0, 1])
recorder = aol.Recorder({str(tmp_path)!r}, ages)
ages.observe([0, 1], [True, False])
recorder.observe([0, 1], torch.zeros(2, 2))
ages.advance()
recorder.advance(test_accuracy=0.5)
"""
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert len(aol.load_runs(tmp_path)) == 1


@pytest.mark.parametrize("call", ["aol.load_runs", "aol.SampleAges([0, 1]).to_frame()"])
def test_what_needs_them_says_what_to_install(call):
    done = run(f"{WITHOUT}\nimport aol\n{call}")
    assert done.returncode == 1
    assert "needs pandas, which is not installed: pip install '.[report]'" in done.stderr


@pytest.mark.parametrize("words", [["train", "--epochs", "1"], ["show", "."]])
def test_a_command_says_what_to_install(words, tmp_path):
    done = run(f"{WITHOUT}\nfrom aol.__main__ import run; run()", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(r"aol: .* needs \w+, which is not installed: pip install '.\[(lab|report)\]' .*\n", done.stderr)


def test_help_needs_none_of_them():
    assert run(f"{WITHOUT}\nfrom aol.__main__ import run; run()", "train", "--help").returncode == 0


def test_the_installed_wheel_runs_the_command_of_the_demo(tmp_path, monkeypatch):
    demo = re.search(r"^demo:.*\n\t\$\(BIN\)/aol (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert demo is not None
    words = demo[1].replace("--seed 0-4", "--seed 0 --epochs 2").split()
    monkeypatch.chdir(ROOT)
    wheel = tmp_path / build.build_wheel(str(tmp_path))
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True)
    program = "import aol, sys; print(aol.__file__); from aol.__main__ import run; run()"
    options = {"capture_output": True, "text": True, "cwd": tmp_path, "timeout": PATIENCE}
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-P", "-c", program, *words], env=environment, **options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site))
    assert len(list((tmp_path / "runs" / "demo" / "runs").glob("*/run.json"))) == 4


def test_the_tests_of_the_source_archive_are_collected(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    with tarfile.open(tmp_path / build.build_sdist(str(tmp_path))) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.glob("aol-*/")
    inside = {str(path.relative_to(root)) for path in root.rglob("*.py") if "__pycache__" not in path.parts}
    listed = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, cwd=ROOT, check=False)
    if listed.returncode == 0:  # not in an archive itself
        assert inside >= {name for name in listed.stdout.split() if (ROOT / name).exists()}
    paths = {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    words = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/docs", "tests/lab/data"]
    options = {"capture_output": True, "text": True, "cwd": root, "timeout": PATIENCE}
    done = subprocess.run([sys.executable, *words], env={**os.environ, **paths}, **options)
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_addresses_are_those_of_the_repository_that_builds():
    here = {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "me/aol"}
    assert addresses(here)["Repository"] == "https://example.org/me/aol"
    assert addresses({}) == addresses({"GITHUB_SERVER_URL": "https://example.org"}) == {}


def test_the_version_is_the_same_everywhere():
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert cited is not None
    assert aol.__version__.split(".dev")[0] == cited[1]
    assert f"## {cited[1]}" in (ROOT / "CHANGELOG.md").read_text()


def test_extras_that_use_others_name_some_that_are_there():
    extras = PROJECT["optional-dependencies"]
    for needs in extras.values():
        for named in re.findall(r"aol\[(.*)\]", " ".join(needs)):
            assert set(named.split(",")) <= set(extras)


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_what_a_workflow_runs_is_there(path):
    text = path.read_text()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    made = {word for line in re.findall(r"\bmake ([a-z][\w -]*)", text) for word in line.split()}
    made |= set(re.findall(r"^ +- (test-[\w-]+)$", text, re.M))
    assert made <= targets, made - targets
    for name in re.findall(r"\b(?:tests|src)/[\w/.]+", text):
        assert (ROOT / name).exists(), name
