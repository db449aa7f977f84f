"""Record `aol train` in a terminal for the README: docs/train.svg, an animation without a script.

`.venv/bin/python docs/_recording.py`, after `make docs` has set things up; takes about a minute. The command runs in a
real terminal (a pty) of 116 × 20 characters. What it writes is played back faster, with a pause after each table.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import pyte

COMMAND = "aol train --margin none,counts,counts-seen --seed 0-4"
COLUMNS, ROWS = 116, 20
FASTER = 5.0  # times as fast as it was
EVERY, LINE, TABLE, END = 0.4, 0.05, 2.0, 4.0  # seconds of the animation: a frame, a line, the end of a table, the last
WIDTH, HEIGHT, MARGIN = 8.4, 18, 16  # pixels of a character, and around the screen
COLOURS = {"default": "#d6deeb", "green": "#5faf00", "red": "#ef5350", "brown": "#ecc48d", "blue": "#82aaff"}

Line = tuple[tuple[str, str, bool, int], ...]  # text, colour, bold, first column of each part
Frame = tuple[float, tuple[Line, ...]]  # seconds it is shown, and its lines


def record(words: Sequence[str]) -> list[tuple[float, str]]:
    """Run a command in a terminal; return what it wrote, with the second it did."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm-256color", "COLORTERM": "", "OMP_NUM_THREADS": "1"}
        os.execv(sys.executable, [sys.executable, "-m", *words])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    start, written, text = time.monotonic(), [], b""
    while True:
        try:
            text += os.read(terminal, 1 << 16)
        except OSError:  # how Linux says that the other end is closed
            break
        whole = text.decode(errors="ignore")
        written.append((time.monotonic() - start, whole))
        text = text[len(whole.encode()) :]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return written


def frames(written: Sequence[tuple[float, str]]) -> list[Frame]:
    """Return the frames of the animation: regular ones while runs train, then line by line."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    stream.feed(f"$ {COMMAND}\r\n")
    found, shown = [(1.0, _lines(screen))], 0.0
    whole = "".join(text for _, text in written)
    left = whole.index("\n", whole.rindex("\r\x1b[K")) + 1  # the line of progress is written anew until here
    after = whole[left:]
    for second, text in written:
        if left and second / FASTER - shown >= EVERY:
            found.append((second / FASTER - shown, _lines(screen)))
            shown = second / FASTER
        stream.feed(text[:left])
        left -= len(text[:left])
    for line in after.splitlines(keepends=True):
        stream.feed(line)
        found.append((TABLE if line.startswith("└") else LINE, _lines(screen)))
    return [*found[:-1], (END, found[-1][1])]


def _lines(screen: pyte.Screen) -> tuple[Line, ...]:
    return tuple(tuple(_parts(screen, row)) for row in range(ROWS))


def _parts(screen: pyte.Screen, row: int) -> Iterator[tuple[str, str, bool, int]]:
    """Yield the parts of a line that look alike, without blank ones."""
    cells = [(column, screen.buffer[row][column]) for column in range(COLUMNS)]
    for (colour, bold), some in itertools.groupby(cells, lambda cell: (cell[1].fg, cell[1].bold)):
        own = list(some)
        text = "".join(cell.data for _, cell in own)
        if text.strip():
            blank = len(text) - len(text.lstrip())
            yield text.strip(), COLOURS.get(colour, f"#{colour}"), bold, own[0][0] + blank


def svg(film: Sequence[Frame]) -> str:
    """Return an animation: the frames one below the other, of which CSS shows one at a time."""
    seconds, tall = sum(each for each, _ in film), ROWS * HEIGHT
    starts = itertools.accumulate((each for each, _ in film[:-1]), initial=0.0)
    steps = "".join(
        f"{100 * start / seconds:.3f}%{{transform:translateY(-{place * tall}px)}}" for place, start in enumerate(starts)
    )
    last = f"translateY(-{(len(film) - 1) * tall}px)"
    names = {line: f"l{place}" for place, line in enumerate(dict.fromkeys(line for _, all_ in film for line in all_))}
    drawn = "".join(f'<g id="{name}">{"".join(map(_text, line))}</g>' for line, name in names.items() if line)
    used = "".join(
        f'<use href="#{names[line]}" y="{place * tall + row * HEIGHT}"/>'
        for place, (_, lines) in enumerate(film)
        for row, line in enumerate(lines)
        if line
    )
    wide, high = COLUMNS * WIDTH + 2 * MARGIN, tall + 2 * MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high}" width="{wide:g}" height="{high}">'
        f"<title>{escape(COMMAND)}</title>"
        "<style>text{font-size:14px;font-family:'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}"
        f"#film{{animation:film {seconds:.2f}s step-end infinite}}@keyframes film{{{steps}}}"
        f"@media(prefers-reduced-motion:reduce){{#film{{animation:none;transform:{last}}}}}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#17212e" stroke="#44566b"/><defs>{drawn}</defs>'
        f'<svg x="{MARGIN}" y="{MARGIN}" width="{COLUMNS * WIDTH:g}" height="{tall}">'
        f'<g id="film">{used}</g></svg></svg>\n'
    )


def _text(part: tuple[str, str, bool, int]) -> str:
    text, colour, bold, column = part
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{column * WIDTH:.1f}" y="14" textLength="{len(text) * WIDTH:.1f}"'
    return f'<text {place} fill="{colour}"{weight} xml:space="preserve">{escape(text)}</text>'


def main() -> None:
    """Record the command in a folder of its own, and write the animation."""
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        written = record(COMMAND.split())
    (here / "train.svg").write_text(svg(frames(written)), encoding="utf-8")


if __name__ == "__main__":
    main()
