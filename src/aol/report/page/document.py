"""One HTML file that holds everything: template, style, scripts, the chart library and the data.

Assumes the files in `assets/`. Nothing in the page reaches out: its Content-Security-Policy forbids every request, and
runs only the two scripts whose hashes it names.
"""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache
from importlib.resources import files
from string import Template

from aol.data.errors import need
from aol.engine.results import Json
from aol.report.page.codec import as_script

# In this order: each may use what stands before it.
SCRIPTS = ("data", "state", "charts", "runs", "curves", "heatmap", "heatsteer", "classes", "samples", "main")


@cache
def chart_library() -> str:
    """Return Vega with Vega-Embed, which brings the interpreter that does without `eval`, as one script."""
    bundle: str = need(
        "vl_convert", package="vl-convert-python", extra="report", why="the report page"
    ).javascript_bundle("window.vegaEmbed = vegaEmbed;")
    # It is a module: its names must not become global ones.
    return _closed(f'(function () {{ "use strict";\n{bundle}\n}})();')


@cache
def _own_script() -> str:
    parts = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    return _closed(f'(function () {{\n"use strict";\n{parts}\n}})();')


def document(data: Json, title: str) -> str:
    """Return the whole page."""
    library, own = chart_library(), _own_script()
    hashes = " ".join(_hash(script) for script in (library, own))
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_asset("page.html")).substitute(
        policy=policy,
        title=html.escape(title.encode(errors="replace").decode()),
        style=_asset("page.css"),
        licences=html.escape(_asset("licences.txt")),
        library=library,
        script=own,
        data=as_script(data),
    )


def _asset(name: str) -> str:
    return (files("aol.report.page") / "assets" / name).read_text(encoding="utf-8")


def _closed(script: str) -> str:
    """Return a script in which no text can be taken for the end of its element."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
