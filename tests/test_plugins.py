"""A plug-in whose host is not there says how to install it, and the library itself asks for none."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running import PATIENCE

HOSTS = ("river", "lightning", "transformers")


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize("plugin", HOSTS)
def test_a_plug_in_without_its_host_says_how_to_install_it(plugin: str) -> None:
    done = run(f"import sys; sys.modules[{plugin!r}] = None; import aol.plugins.{plugin}")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ")
    assert f"pip install '.[{plugin}]' in a checkout of aol" in last


def test_the_library_imports_no_host() -> None:
    hosts = [f"aol.plugins.{plugin}" for plugin in HOSTS] + list(HOSTS)
    done = run(f"import sys, aol, aol.plugins; print([host for host in {hosts} if host in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_every_sentence_about_an_extra_has_the_form_of_the_pages() -> None:
    """The package is on no index: a name there would be another's."""
    root = Path(__file__).resolve().parents[1]
    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("src/**/*.py")]
    said = [found for page in pages for found in re.findall(r"pip install[^\n]*?'([^']*)\[", page.read_text())]
    assert len(said) > 12
    assert set(said) == {"."}
