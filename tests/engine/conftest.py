from __future__ import annotations

import pytest

from aol import nets
from aol.cli import main
from aol.nets.cnn import CNN


@pytest.fixture(scope="session")
def _loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Train once here, so that what torch and others load late is there in every fork of this process."""
    out = str(tmp_path_factory.mktemp("loaded"))
    assert main(["train", "--epochs", "2", "--seed", "0,1", "--checkpoint-seconds", "0", "--out", out, "--json"]) == 0


@pytest.fixture(autouse=True)
def _small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `cnn` a quarter as wide in this process; processes that tests start have the real one."""
    entry = nets._Entry(lambda classes, channels, size: CNN(classes, channels, width=4), 8, smallest=4)
    monkeypatch.setitem(nets._NETWORKS, "cnn", entry)
