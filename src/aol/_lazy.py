"""Public names of a package that are imported when they are first used (PEP 562): importing torch takes seconds."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence

from aol._need import explained


def lazy(
    package: str, homes: Mapping[str, Sequence[str]], modules: Sequence[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose names are defined in the modules `homes`.

    `modules` are submodules that are imported on access too, as in `aol.weights.cap`.
    """
    places = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> object:
        if name in places:
            try:
                value: object = getattr(importlib.import_module(places[name]), name)
            except ModuleNotFoundError as error:
                raise explained(error, f"{package}.{name}") from error
            setattr(sys.modules[package], name, value)
            return value
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places, *modules})

    return find, names
