"""Small pictures of samples as PNG or JPEG bytes, from the run's folder or from its data set.

A data set that is missing, or is not the one of the run, gives no picture.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from torch import Tensor

from aol._need import need
from aol._used import is_remembered
from aol.lab.data import ImageSet, Pair, StoredImages, open_data
from aol.lab.data.decode import open_image
from aol.lab.data.named import NAMES, find
from aol.lab.data.nuisance import change
from aol.lab.data.sources import is_source
from aol.records.previews import read_thumbnails
from aol.records.record import Run
from aol.records.samples import SampleTable

SIDE = 96  # the most pixels a side
_QUALITY = 85


@dataclass(frozen=True)
class Pictures:
    """The pictures of a run's samples.

    Args:
        of: returns the picture of a row as PNG or JPEG bytes; None where there is none.
        problem: why no picture can be found, in one sentence; empty where they can, or the run names no data set.
        place: the folder outside the run that they come from; empty if none do.
    """

    of: Callable[[int], bytes | None] = lambda _: None
    problem: str = ""
    place: str = ""


def find_pictures(folder: Path, run: Run, table: SampleTable, data_dir: Path | None = None) -> Pictures:
    """Return the pictures of a run: the thumbnails in its folder, else from its data set, first in `data_dir`."""
    kept = read_thumbnails(folder)
    if not kept and run.data is None:
        return Pictures()
    try:
        _pillow()
        if kept:
            return Pictures(lambda row: png(kept[row]) if row in kept else None)
        pair, place = _opened(run, data_dir)
        return Pictures(_from_data(_changed(pair, run).train, table), place=place)
    except (ModuleNotFoundError, _UnknownFolderError) as error:
        return Pictures(problem=f"No pictures: {error}")
    except (ImportError, OSError, TypeError, ValueError) as error:  # TypeError: settings of a damaged record
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        return Pictures(problem=f"No pictures: the data set {run.data} was not found ({reason}). {_ADVICE}")


_ADVICE = "Give its folder: aol report RUN --data-dir FOLDER."


class _UnknownFolderError(ValueError):
    """A folder that the run names, and on which this user has not trained."""


def _opened(run: Run, data_dir: Path | None) -> tuple[Pair[ImageSet] | Pair[StoredImages], str]:
    """Open the data set of a run and return it with its folder: the one given, else where this user's run found it.

    A run may come from anybody: a folder that only the run names is not opened, or the page would show its pictures.
    """
    root, word = Path(), str(run.data)
    if word in NAMES:
        return open_data(word, data_dir), str(find(word, data_dir=data_dir) or "")
    if is_source(word):
        if not is_remembered(Path("/", word)):
            raise _UnknownFolderError(f"this user has not trained on {word}, which the run names, on this machine.")
        return open_data(word, data_dir), word
    own = root / Path(word).expanduser()
    places = [] if data_dir is None else [data_dir]
    if data_dir is not None and own.name not in ("", ".."):
        places.insert(0, data_dir / own.name)
    if is_remembered(own):
        places.append(own)
    elif not places and own.is_dir():
        raise _UnknownFolderError(
            f"they are in {own.absolute()}, which the run names, but nobody has trained on it here as this user. "
            f"To show them: aol report RUN --data-dir {shlex.quote(str(own.absolute()))}"
        )
    place = next((place for place in places if place.is_dir()), own)
    return open_data(str(place.absolute())), str(place.absolute())


def _from_data(train: ImageSet | StoredImages, table: SampleTable) -> Callable[[int], bytes | None]:
    index = table.index
    if len(index) and (index.max() >= len(train.labels) or (train.labels.numpy()[index] != table.label).any()):
        raise ValueError("another set by the same name is there")
    if isinstance(train, ImageSet):
        images = train.images
        return lambda row: png(images[int(index[row])])
    records = train.records

    def stored(row: int) -> bytes | None:
        place = int(index[row])
        try:
            return _small(records.encoded(place), records.source(place))
        except (ImportError, OSError, ValueError):
            return None

    return stored


def _changed(pair: Pair[ImageSet] | Pair[StoredImages], run: Run) -> Pair[ImageSet] | Pair[StoredImages]:
    """Return a data set as the run saw it, with its nuisance and noisy labels."""
    names = ("nuisance", "conflicts", "noise", "validation")
    settings = {name: run.settings[name] for name in names if name in run.settings}
    changed = settings.get("nuisance", "none") != "none" or settings.get("noise", 0.0) != 0.0
    if not changed or not isinstance(pair.train, ImageSet):
        return pair
    return change(pair, **settings)  # type: ignore[arg-type]


def _pillow() -> ModuleType:
    return need("PIL.Image", package="pillow", extra="images", why="drawing them")


def _small(encoded: bytes, source: str) -> bytes:
    image = open_image(encoded, source)
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()


def png(pixels: Tensor) -> bytes:
    r"""Return `uint8 [1 or 3, H, W]` as a PNG.

    >>> import torch
    >>> png(torch.zeros(1, 8, 8, dtype=torch.uint8))[:8]
    b'\x89PNG\r\n\x1a\n'
    """
    buffer = io.BytesIO()
    _pillow().fromarray(pixels.permute(1, 2, 0).squeeze(2).contiguous().numpy()).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
