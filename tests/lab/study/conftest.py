from __future__ import annotations

import pytest

from aol.cli import main
from tests.support.tiny_runs import small_networks


@pytest.fixture(scope="session")
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Train once here, so that what torch and others load late is there in every fork of this process."""
    out = str(tmp_path_factory.mktemp("warm"))
    words = ["--only", "imbalance=50", "--only", "method=none", "--set", "epochs=2", "--checkpoint-seconds", "0"]
    assert main(["study", "run", "period-10-smoke", *words, "--out", out, "--json"]) == 0


@pytest.fixture(autouse=True)
def _small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make networks small in this process and its forks."""
    small_networks(monkeypatch)
