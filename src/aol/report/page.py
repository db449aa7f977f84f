"""The page: one HTML file. Its Content-Security-Policy forbids all requests; two scripts are allowed, by hash."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template

from aol._files import write_atomically
from aol._need import need
from aol.records.record import Json
from aol.report.payload import payload
from aol.report.run_data import RunData

# In this order: they may use those before them.
SCRIPTS = (
    "data", "state", "charts", "runs", "methods", "curves", "heatmap", "heatsteer", "classes", "mistakes", "marks",
    "samples", "main",
)  # fmt: skip


def write_page(runs: Sequence[RunData], path: str | os.PathLike[str]) -> None:
    """Write the page of some runs, as a whole or not at all."""
    data = payload(runs)
    write_atomically(Path(path), document(data, f"{data['title']}: Age of Learning").encode())


@cache
def chart_library() -> str:
    """Return Vega and Vega-Embed, which has an interpreter that does not need `eval`, as one script."""
    package = need("vl_convert", "the report page")
    return _script(package.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _script(content: str) -> str:
    """Return a script whose names do not become global ones, and in which no text can end its element."""
    closed = content.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return f'(function () {{\n"use strict";\n{closed}\n}})();'


def document(data: Json, title: str) -> str:
    """Return the whole page."""
    library, own = chart_library(), _script("\n".join(_asset(f"{name}.js") for name in SCRIPTS))
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()) for script in (library, own))
    hashes = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_asset("page.html")).substitute(
        policy=policy, title=html.escape(title.encode(errors="replace").decode()), style=_asset("page.css"),
        licences=html.escape(_asset("licences.txt")), library=library, script=own, data=as_script(data),
    )  # fmt: skip


def as_script(value: Json) -> str:
    r"""Return JSON for a `<script type="application/json">` element: nothing in it can end the element.

    >>> as_script({"name": "</script>"})
    '{"name":"\\u003c/script>"}'
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return (files("aol.report") / "assets" / name).read_text(encoding="utf-8")
