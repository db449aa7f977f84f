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


def need(module: str, why: str) -> ModuleType:
    """Import an optional module, or say in one sentence what to install.

    >>> need("zlib", "checksums").crc32(b"aol")
    271917598
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is not None and missing.name.split(".")[0] != module.split(".")[0]:
            raise  # the package is there but one of its own requirements is not: say that instead
        raise explained(missing, why) from None


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
        raise explained(missing, f"aol.plugins.{plugin}", plugin) from missing


def explained(error: ModuleNotFoundError, why: str, extra: str | None = None) -> ModuleNotFoundError:
    """Return the error, or one that names the extra with the missing package.

    >>> explained(ModuleNotFoundError(name="pandas"), "aol.load_runs")
    ModuleNotFoundError("aol.load_runs needs pandas, which is not installed: pip install '.[report]' in a checkout of
    aol")
    """
    module = (error.name or "").split(".")[0]
    extra = extra or _EXTRAS.get(module)
    if extra is None or "pip install" in str(error):  # said already
        return error
    text = f"{why} needs {_PACKAGES.get(module, module)}, which is not installed: pip install '.[{extra}]'"
    return ModuleNotFoundError(f"{text} in a checkout of aol", name=error.name)
