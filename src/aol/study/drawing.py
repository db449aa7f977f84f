"""The words `aol study draw`: records to a figure in a file.

Assumes it is mounted on `aol study`, which says what a study's own words are. What draws is imported when it is asked
for: tables take a second to make, and matplotlib is an extra.
"""

from __future__ import annotations

import argparse
import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path

from aol._words import Parser
from aol.engine.settings import WrongSettingsError
from aol.plots import style
from aol.records.files import write_atomically
from aol.study.figures import ACCURACY, AGES, GAIN, SHIFTS
from aol.study.showing import check_place, store_in
from aol.study.spec import Study


def add_command(
    commands: argparse._SubParsersAction[Parser],
    add_study: Callable[[argparse.ArgumentParser], None],
    chosen: Callable[[argparse.Namespace], Study],
) -> None:
    """Add `draw`; `add_study` adds the words that mean a study, `chosen` reads them."""
    text = "A figure: class ages, accuracy or gains over epochs."
    draw = commands.add_parser("draw", help=text, description=f"{text} A panel a cell.", allow_abbrev=False)
    add_study(draw)
    draw.add_argument("--write", metavar="FILE", required=True, help="the figure: .png, .pdf or .svg")
    draw.add_argument(
        "--of",
        choices=(AGES, ACCURACY, GAIN, SHIFTS),
        help='default: ages where the study keeps them (keep = ["age"]), else accuracy',
    )
    draw.set_defaults(act=lambda words: _draw(chosen(words), words))


def _draw(study: Study, words: argparse.Namespace) -> int:
    path = Path(words.write).expanduser()
    kind = path.suffix.lower().removeprefix(".")
    if kind not in style.FORMATS:
        endings = ", ".join(f".{each}" for each in style.FORMATS)
        raise WrongSettingsError(f"--write must end in one of {endings}, not {words.write!r}.")
    check_place(str(path))
    style.matplotlib()
    store = store_in(words.out, words.study)

    from aol.study.picture_ages import age_picture
    from aol.study.picture_curves import curve_picture
    from aol.study.table import recorded_table

    table = recorded_table(study, store, more_seeds=words.seeds is None)
    if not table.records:
        raise WrongSettingsError(
            f"There are no records of {study.name} in {store.folder}: aol study run {words.study} --out {words.out} "
            "makes them. With --only, --seeds or --set, draw takes the same words as run."
        )
    what = words.of or (AGES if "age" in study.keep else ACCURACY)
    picture = age_picture(table) if what == AGES else curve_picture(table, what)
    _write(path, style.rendered(picture.figure, kind))
    if words.json:
        panels = [{"title": title, "seeds": list(seeds)} for title, seeds in picture.panels]
        print(json.dumps({"figure": str(path), "of": what, "panels": panels, "notes": picture.notes}))
        return 0
    for note in picture.notes:
        print(note, file=sys.stderr)
    print(f"Written: {path}", file=sys.stderr)
    return 0


def _write(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all; where that is not allowed, say so by its own name, not by that of a part."""
    try:
        write_atomically(path, content)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise WrongSettingsError(f"--write: {path} cannot be written: {error.strerror}.") from error
