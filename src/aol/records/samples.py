"""One run's samples on disk: `samples.safetensors`, and `ids.json` with the names of the samples."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor, from_numpy

from aol._files import NotRegularError, read_json, write_atomically, write_if_changed
from aol.records.history import Answers, SampleHistory, pack
from aol.records.record import DamagedRunError, Ints

Shorts = npt.NDArray[np.int32]
Reals = npt.NDArray[np.float32]
FILE, IDS = "samples.safetensors", "ids.json"


def write_samples(
    path: Path,
    tensors: dict[str, Tensor],
    *,
    run: str,
    index: Tensor,
    label: Tensor,
    age: Tensor,
    ema: Tensor,
    absent: str,
) -> None:
    """Write what is known of the samples of one run, named by its id; `index` and `label` say which they are."""
    from safetensors.torch import save

    more = {"index": index, "label": label, "age": age, "ema": ema}
    found = tensors | {name: value.cpu().contiguous() for name, value in more.items()}
    # Tensors, not metadata: safetensors writes several of those in any order, and equal runs would have other bytes.
    found["run"] = from_numpy(np.frombuffer(run.encode(), np.uint8).copy())
    found["sha256"] = from_numpy(_digest({name: value.numpy() for name, value in found.items()}, absent))
    write_atomically(path, save(found, metadata={"absent": absent}))


def _digest(arrays: Mapping[str, npt.NDArray[np.generic]], absent: str) -> npt.NDArray[np.uint8]:
    """Return a hash of arrays and their names, types and shapes, `uint8 [32]`."""
    found = hashlib.sha256(absent.encode())
    for name, value in sorted(arrays.items()):
        found.update(f"{name} {value.dtype} {value.shape}\n".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    return np.frombuffer(found.digest(), np.uint8).copy()


def as_json(names: Sequence[str | int]) -> bytes:
    """Return the content of the file of names, with a checksum; a path that is not UTF-8 is read back as it was."""
    body = json.dumps(names, indent=1, ensure_ascii=False).encode(errors="backslashreplace")
    return b'{"ids": %s, "sha256": "%s"}\n' % (body, hashlib.sha256(body).hexdigest().encode())


def write_names(folder: Path, names: bytes | None) -> None:
    """Write what the samples of one run are called, as `as_json` gives it; None: they go by their numbers."""
    if names is None:
        (folder / IDS).unlink(missing_ok=True)  # of a run before
    else:
        write_if_changed(folder / IDS, names)


@dataclass(frozen=True)
class SampleTable:
    """The training samples of a run after its last epoch; every array is `[N]`.

    Args:
        index: the sample's position in the data set's training split.
        label: its class.
        age: epochs since the last right answer, counted from one; 0 where never seen.
        ema: the smoothed age; NaN where never seen.
        prediction: the class answered when it was last seen; -1 where unknown.
        confidence: the probability given to the label then; NaN where unknown.
        top: the probability given to the prediction then; NaN where unknown.
        other: the largest probability given to another class then; NaN where unknown.
        mean_confidence: the probability given to the label, mean over the epochs that saw it; NaN where unknown.
        mean_other: the largest probability given to another class, mean over the same epochs; NaN where unknown.
        times: how many epochs these means are over.
        answers: right or wrong, at every epoch.
    """

    index: Ints
    label: Ints
    age: Shorts
    ema: Reals
    prediction: Shorts
    confidence: Reals
    top: Reals
    other: Reals
    mean_confidence: Reals
    mean_other: Reals
    times: Shorts
    answers: Answers

    def __len__(self) -> int:
        return len(self.label)


_COLUMNS = {
    "index": "i8", "label": "i8", "age": "i4", "ema": "f4", "prediction": "i4", "confidence": "f4", "top": "f4",
    "other": "f4", "mean_confidence": "f4", "mean_other": "f4", "times": "i4",
}  # fmt: skip


def read_samples(path: Path, run: str) -> SampleTable | None:
    """Read what `write_samples` wrote of a run; None where there is no such file."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        if os.path.lexists(path):
            raise DamagedRunError(f"{path}: it is not a regular file.")
        return None
    try:
        with safe_open(path, framework="np") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            about = file.metadata() or {}
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise DamagedRunError(f"{path}: not a whole file of samples.") from error
    written = found.pop("sha256", None)
    if written is not None and not np.array_equal(written, _digest(found, about.get("absent", ""))):
        raise DamagedRunError(f"{path}: its checksum does not match its content.")
    if "run" in found and found["run"].tobytes() != run.encode():  # files of before 0.2 do not say it
        raise DamagedRunError(f"{path}: it is of another run than {run}, in the folder of which it is.")
    size = len(found.get("label", ()))
    wrong = [name for name, kind in _COLUMNS.items() if name not in found or found[name].shape != (size,)]
    wrong += [name for name in ("right", "seen") if name in found and not _is_bits(found[name], size)]
    if "seen" in found and "right" in found and found["seen"].shape != found["right"].shape:
        wrong.append("seen")
    wrong += [name for name in ("age", "times", "start", "ema") if name in found and bool((found[name] < 0).any())]
    if "start" in found and found["start"].shape != (size,):
        wrong.append("start")
    if wrong or "right" not in found:
        raise DamagedRunError(f"{path}: not a file of samples of this version: see {', '.join(wrong or ['right'])}.")
    columns = {name: found[name].astype(kind, copy=False) for name, kind in _COLUMNS.items()}
    answers = Answers(
        found["right"], found.get("seen"), size, grows=about.get("absent") == "grow", start=found.get("start")
    )
    return SampleTable(**columns, answers=answers)


def _is_bits(value: npt.NDArray[np.generic], size: int) -> bool:
    return value.dtype == np.uint8 and value.ndim == 2 and value.shape[1] == -(-size // 8)


def restore_history(history: SampleHistory, folders: Mapping[str, Path], labels: Tensor) -> None:
    """Let a history continue from the files in the folders of its runs, by their ids."""
    tables = [table for run, folder in folders.items() if (table := read_samples(folder / FILE, run)) is not None]
    if len(tables) < len(folders) or any(not np.array_equal(table.label, labels.cpu().numpy()) for table in tables):
        raise DamagedRunError(f"{next(iter(folders.values()))} has records of other samples: choose another folder.")
    epochs = min(len(table.answers) for table in tables)  # a crash may leave some files an epoch ahead of the others
    answers = [table.answers.first(epochs) for table in tables]
    columns = {name: np.stack([getattr(table, name) for table in tables]) for name in _COLUMNS}
    columns["times"] = np.minimum(columns["times"], epochs)
    columns["age"] = np.stack([own.last() for own in answers])
    columns["right"] = np.stack([own.right for own in answers], axis=1)
    full = pack(np.ones(len(labels), bool))
    seen = [np.tile(full, (epochs, 1)) if own.seen is None else own.seen for own in answers]
    columns["seen"] = np.stack(seen, axis=1)
    if answers[0].start is not None:
        columns["start"] = np.stack([own.start for own in answers if own.start is not None])
    history.load_state_dict({name: from_numpy(value) for name, value in columns.items()})


def read_ids(folder: Path, size: int) -> list[str | int] | None:
    """Return the names of a run's samples; None where they have none."""
    path = folder / IDS
    try:
        found = read_json(path, 2**20 + 2**13 * size)  # a path has at most 4,096 bytes on Linux
    except FileNotFoundError:
        return None
    except NotRegularError as error:
        raise DamagedRunError(f"{path}: {error.strerror}.") from error
    except ValueError as error:
        raise DamagedRunError(f"{path}: not a complete JSON file.") from error
    names: list[str | int] = found.get("ids", []) if isinstance(found, dict) else found
    if not isinstance(names, list) or len(names) != size or not all(isinstance(name, str | int) for name in names):
        raise DamagedRunError(f"{path}: not the names of {size} samples.")
    if isinstance(found, dict) and json.loads(as_json(names)) != found:  # a list is of before 0.2, without a checksum
        raise DamagedRunError(f"{path}: its checksum does not match its content.")
    return names
