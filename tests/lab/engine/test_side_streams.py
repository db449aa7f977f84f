"""What streams beside the training step still read is given back when it was read, and not sooner."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import pytest
import torch

from aol.lab.data.workers import Asked
from aol.lab.engine import side_streams
from aol.lab.engine.side_streams import SideStreams

CPU = torch.device("cpu")


class Noted(Asked):
    """An answer that notes when its slot is given back."""

    def __init__(self, name: str, log: list[str]) -> None:
        super().__init__(lambda: None)
        self._name, self._log = name, log

    def release(self) -> None:
        self._log.append(f"released {self._name}")


class Stream:
    """A stream that notes what it waits for."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log

    def wait_stream(self, other: Stream) -> None:
        self._log.append(f"{self.name} after {other.name}")


class Event:
    def __init__(self, number: int, log: list[str]) -> None:
        self._number, self._log = number, log

    def synchronize(self) -> None:
        self._log.append(f"waited for {self._number}")


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def pretended(log: list[str], monkeypatch: pytest.MonkeyPatch) -> SideStreams:
    """Streams that are not there, and events with numbers."""
    made = SideStreams(CPU)
    made._streams = [Stream("decoding", log), Stream("making", log)]  # type: ignore[list-item]
    numbers = iter(range(100))

    def event() -> Event:
        number = next(numbers)
        log.append(f"event {number}")
        return Event(number, log)

    monkeypatch.setattr(side_streams, "_event", event)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    return made


def test_slots_are_given_back_when_the_host_has_waited_for_their_event(pretended: SideStreams, log: list[str]) -> None:
    with pretended:
        for name in ("a", "b"):
            pretended.reads([Noted(name, log)])
            pretended.made()
    assert [line for line in log if "after" not in line] == [
        "event 0",
        "event 1",
        "waited for 0",
        "released a",
        "event 2",
        "waited for 1",
        "released b",
        "waited for 2",
    ]


def test_decoded_images_stay_in_memory_as_long_as_they_are_read(pretended: SideStreams) -> None:
    """The decoder writes at once to memory that it is given, whatever its stream waits for."""
    first = torch.zeros(3)
    before = sys.getrefcount(first)
    pretended.reads([first])
    pretended.made()
    assert sys.getrefcount(first) > before
    pretended.made()
    assert sys.getrefcount(first) == before


def test_batches_are_made_after_what_was_decoded(pretended: SideStreams, log: list[str]) -> None:
    with pretended.decoding():
        pass
    with pretended.making():
        pass
    assert log == ["making after decoding"]


def test_what_a_failed_batch_has_read_is_given_back(pretended: SideStreams, log: list[str]) -> None:
    def fail() -> None:
        with pretended:
            pretended.reads([Noted("a", log)])
            raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        fail()
    assert log[-2:] == ["waited for 0", "released a"]


def test_without_streams_all_is_given_back_at_once(log: list[str]) -> None:
    plain = SideStreams(CPU)
    plain.reads([Noted("a", log)])
    assert plain.made() is None
    assert log == ["released a"]
