"""One run's samples on disk: `samples.safetensors`, `ids.json` with their names, and the answers to test samples."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, from_numpy

from aol._files import read_json, write_atomically, write_if_changed
from aol.records.history import MEASURED, Answers, SampleHistory
from aol.records.record import DamagedRunError, Ints

Shorts = npt.NDArray[np.int32]
Reals = npt.NDArray[np.float32]
FILE, IDS, TEST = "samples.safetensors", "ids.json", "test.safetensors"


def write_samples(path: Path, tensors: Mapping[str, Tensor], *, run: str, absent: str) -> None:
    """Write what is known of the samples of one run, named by its id; `index` and `label` say which they are."""
    from safetensors.torch import save

    columns = {name: value.cpu().contiguous() for name, value in tensors.items()}
    # A tensor, not metadata: safetensors writes several of those in any order, and equal runs would have other bytes.
    columns["run"] = from_numpy(np.frombuffer(run.encode(), np.uint8).copy())
    arrays = {name: value.numpy() for name, value in columns.items()}
    columns["checksum"] = from_numpy(np.array([_checksum(arrays, absent)]))
    write_atomically(path, save(columns, metadata={"absent": absent}))


def _checksum(tensors: Mapping[str, npt.NDArray[Any]], absent: str | None) -> int:
    """Return the CRC-32 of all columns and their names."""
    value = zlib.crc32(repr(absent).encode())
    for name in sorted(tensors.keys() - {"checksum"}):
        value = zlib.crc32(tensors[name].data, zlib.crc32(name.encode(), value))
    return value


def encoded_names(names: Sequence[str | int]) -> bytes:
    """Return names as JSON, which can be read back; a path that is not UTF-8 is read back as it was."""
    content = json.dumps(names, indent=1, ensure_ascii=False).encode(errors="backslashreplace")
    if len(content) > (room := _room(len(names))):
        size = f"{len(names)} of them take {len(content):,} bytes; at most {room:,}"
        raise ValueError(f"names must be shorter: {size}.")
    return content


def write_names(folder: Path, names: Sequence[str | int] | None) -> None:
    """Write what the samples of one run are called; None: they go by their numbers."""
    if names is None:
        (folder / IDS).unlink(missing_ok=True)  # of a run before
    else:
        write_if_changed(folder / IDS, encoded_names(names))


@dataclass(frozen=True)
class SampleTable:
    """The training samples of a run after its last epoch; every array is `[N]`. NaN, or -1, where unknown."""

    index: Ints  # the position in the data set's training split
    label: Ints
    age: Shorts  # epochs since the last right answer, counted from one; 0 where never seen
    ema: Reals  # the smoothed age; NaN where never seen
    prediction: Shorts  # the class answered when it was last seen
    confidence: Reals  # the probability given to the label then
    top: Reals  # the probability given to the prediction then
    other: Reals  # the largest probability given to another class then
    mean_confidence: Reals  # `confidence`, mean over the epochs that saw it
    mean_other: Reals  # `other`, mean over the same epochs
    mean_margin: Reals  # of `other` against `confidence`, from -1 to 1, weighted mean over the same epochs
    margin_weight: Reals  # the sum of these weights
    times: Shorts  # how many epochs these means are over
    suggested: Shorts  # the class that most wrong answers named, by vote (see `history.VOTES`)
    lead: Shorts  # of that answer, in the vote of all wrong ones
    answers: Answers  # right or wrong, at every epoch

    def __len__(self) -> int:
        return len(self.label)


_KINDS = {"Ints": "i8", "Shorts": "i4", "Reals": "f4"}
COLUMNS = {own.name: _KINDS[own.type] for own in fields(SampleTable) if own.type in _KINDS}  # name → type


def write_tested(path: Path, answers: Tensor, *, run: str) -> None:
    """Write the last answers to test samples, `[N, 4]`: label, prediction, and the probabilities of both."""
    write_samples(path, {"answers": answers}, run=run, absent="keep")


def read_tested(path: Path, run: str) -> Reals | None:
    """Read what `write_tested` wrote of a run; None where there is no such file."""
    tensors, _ = _read(path, run)
    answers = tensors.get("answers")
    if tensors and (answers is None or answers.ndim != 2 or answers.shape[1] != 4 or answers.dtype != np.float32):
        raise DamagedRunError(f"{path}: not a file of answers to test samples.")
    return answers


def surest_mistakes(answers: Reals) -> Ints:
    """Return the rows of test samples that are wrong, by turns of their classes, the surest first.

    >>> surest_mistakes(np.array([[0, 1, 0.1, 0.6], [0, 1, 0.4, 0.9], [1, 0, 0.2, 0.8], [1, 1, 1, 1]], np.float32))
    array([1, 2, 0])
    """
    label, prediction, _, top = answers.T
    order = np.argsort(-top, kind="stable")
    order = order[(label != prediction)[order] & ~np.isnan(top[order])]
    by_class = np.argsort(label[order], kind="stable")
    ordered = label[order][by_class]
    turn = np.empty(len(order), np.int64)  # of its class; without pandas, which a Recorder does not need
    turn[by_class] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return np.asarray(order[np.argsort(turn, kind="stable")])


def _read(path: Path, run: str) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Return the tensors of a run's file, and what it says of them; nothing where there is no such file."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():  # to open a pipe would be to wait
        if os.path.lexists(path):
            raise DamagedRunError(f"{path}: it is not a regular file.")
        return {}, {}
    try:
        with safe_open(path, framework="np") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            about = file.metadata() or {}
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:  # NumPy has no such type
        raise DamagedRunError(f"{path}: not a whole file of samples.") from error
    if "run" not in tensors or tensors["run"].tobytes() != run.encode():
        raise DamagedRunError(f"{path}: it is of another run than {run}, in the folder of which it is.")
    known = tensors.get("checksum")  # files of earlier versions have none
    if known is not None and known.tolist() != [_checksum(tensors, about.get("absent"))]:
        raise DamagedRunError(f"{path}: its checksum does not match its content.")
    return tensors, about


def read_samples(path: Path, run: str) -> SampleTable | None:
    """Read what `write_samples` wrote of a run; None where there is no such file."""
    tensors, about = _read(path, run)
    if not tensors:
        return None
    size, right = tensors.get("label", np.zeros(0)).size, tensors.get("right", np.zeros((0, 0)))
    shapes = dict.fromkeys((*COLUMNS, "start"), (size,))
    shapes |= {"right": (*right.shape[:1], -(-size // 8)), "seen": right.shape}
    wrong = {name for name, shape in shapes.items() if name in tensors and tensors[name].shape != shape}
    wrong |= {*COLUMNS, "right"} - tensors.keys()
    wrong |= {name for name in ("right", "seen") if name in tensors and tensors[name].dtype != np.uint8}
    kinds = {name: "f" if kind == "f4" else "iu" for name, kind in COLUMNS.items()} | {"start": "iu"}
    wrong |= {name for name, kind in kinds.items() if name in tensors and tensors[name].dtype.kind not in kind}
    least = dict.fromkeys(("age", "times", "start", "ema"), 0.0) | {"mean_margin": -1.01}
    wrong |= {name for name, low in least.items() if name in tensors and bool((tensors[name] < low).any())}
    wrong |= {"mean_margin"} if bool((tensors.get("mean_margin", np.zeros(1)) > 1.01).any()) else set()
    if wrong:
        raise DamagedRunError(f"{path}: not a file of samples of this version: see {', '.join(sorted(wrong))}.")
    columns = {name: tensors[name].astype(kind, copy=False) for name, kind in COLUMNS.items()}
    answers = Answers(right, tensors.get("seen"), size, grows=about.get("absent") == "grow", start=tensors.get("start"))
    return SampleTable(**columns, answers=answers)


def restore_history(history: SampleHistory, folder: Path, run: str, labels: Tensor) -> None:
    """Let the history of one run continue from the file in its folder."""
    table = read_samples(folder / FILE, run)
    if table is None:
        raise DamagedRunError(f"{folder} has a record without {FILE}: restore it, or choose another folder.")
    if not np.array_equal(table.label, labels.cpu().numpy()):
        raise DamagedRunError(f"{folder} has a record of other samples: choose another folder.")
    answers = table.answers
    columns = {name: getattr(table, name)[None] for name in MEASURED}
    columns |= {"age": answers.last()[None], "right": answers.right[:, None]}
    columns |= {} if answers.seen is None else {"seen": answers.seen[:, None]}
    columns |= {} if answers.start is None else {"start": answers.start[None]}
    history.load_state_dict({name: from_numpy(value) for name, value in columns.items()})


def _room(size: int) -> int:
    """Return how many bytes the names of so many samples may take: a path has at most 4,096 on Linux."""
    return 2**20 + 2**13 * size


def read_ids(folder: Path, size: int) -> list[str | int] | None:
    """Return the names of a run's samples; None where they have none."""
    path = folder / IDS
    try:
        names = read_json(path, _room(size))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DamagedRunError(f"{path}: it cannot be read: {error}.") from error
    if not isinstance(names, list) or len(names) != size or not all(isinstance(name, str | int) for name in names):
        raise DamagedRunError(f"{path}: not the names of {size} samples.")
    return names
