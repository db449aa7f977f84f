"""Packages that are not always there: what to install when one is missing. Imports nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

_EXTRAS = {  # by package: what to install for the command line
    "jinja2": "lab", "pandas": "report", "rich": "report", "scipy": "report", "sklearn": "lab",
}  # fmt: skip


def need(module: str, *, package: str, extra: str, why: str) -> ModuleType:
    """Import an optional module, or say in one sentence what to install.

    >>> need("zlib", package="zlib", extra="images", why="checksums").crc32(b"aol")
    271917598
    >>> need("no_such_module", package="nosuch", extra="images", why="decoding")
    Traceback (most recent call last):
    ...
    ModuleNotFoundError: decoding needs nosuch, which is not installed: pip install '.[images]' in a checkout of aol
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is not None and missing.name.split(".")[0] != module.split(".")[0]:
            raise  # the package is there but one of its own requirements is not: say that instead
        raise _missing(why, package, extra, missing) from None


@contextmanager
def framework(plugin: str) -> Iterator[None]:
    """Say in one sentence what to install where the framework that a plug-in imports is missing.

    >>> with framework("river"):
    ...     import no_such_module
    Traceback (most recent call last):
    ...
    ModuleNotFoundError: aol.plugins.river needs no_such_module, which is not installed: pip install '.[river]' in a
    checkout of aol
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        package = str(missing.name).split(".")[0]
        raise _missing(f"aol.plugins.{plugin}", package, plugin, missing) from missing


def explained(error: ModuleNotFoundError, why: str) -> ModuleNotFoundError:
    """Return the error, or one that names the extra where a package of the command line is missing.

    >>> explained(ModuleNotFoundError(name="pandas"), "aol.load_runs")
    ModuleNotFoundError("aol.load_runs needs pandas, which is not installed: pip install '.[report]' in a checkout of
    aol")
    """
    name = (error.name or "").split(".")[0]
    return _missing(why, name, _EXTRAS[name], error) if name in _EXTRAS else error


def _missing(why: str, package: str, extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    text = f"{why} needs {package}, which is not installed: pip install '.[{extra}]' in a checkout of aol"
    return ModuleNotFoundError(text, name=error.name)
