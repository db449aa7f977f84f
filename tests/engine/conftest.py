from __future__ import annotations

import pytest

from aol import nets
from aol.nets.cnn import CNN


@pytest.fixture(autouse=True)
def _small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `cnn` a quarter as wide in this process; processes that tests start have the real one."""
    entry = nets._Entry(lambda classes, channels, size: CNN(classes, channels, width=4), 8, smallest=4)
    monkeypatch.setitem(nets._NETWORKS, "cnn", entry)
