"""Packages that are not always there: what to install when one is missing. Imports nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

_EXTRAS = {  # by module
    "datasets": "hf", "jinja2": "lab", "matplotlib": "report", "pandas": "report", "PIL": "lab", "pooch": "lab",
    "rich": "report", "scipy": "report", "sklearn": "lab", "timm": "timm", "vl_convert": "report",
}  # fmt: skip
_PACKAGES = {"PIL": "pillow", "vl_convert": "vl-convert-python"}  # where the module has another name


def need(name: str, why: str) -> ModuleType:
    """Import an optional module, or say in one sentence what to install.

    >>> need("zlib", "checksums").crc32(b"aol")
    271917598
    """
    with explaining(why):
        return import_module(name)


@contextmanager
def explaining(why: str, extra: str | None = None) -> Iterator[None]:
    """Say in one sentence what to install where a package is missing; `extra` as in the table, if not given."""
    try:
        yield
    except ModuleNotFoundError as missing:
        module = (missing.name or "").split(".")[0]
        extra = extra or _EXTRAS.get(module)
        if extra is None or "pip install" in str(missing):  # said already
            raise
        text = f"{why} needs {_PACKAGES.get(module, module)}, which is not installed: pip install '.[{extra}]'"
        raise ModuleNotFoundError(f"{text} in a checkout of aol", name=missing.name) from missing
