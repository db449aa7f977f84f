"""Public names of a package that are imported when they are first used (PEP 562): importing torch takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from aol._need import explaining


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, by its modules and the names of each, divided by spaces.

    The modules themselves are imported on access too, as in `aol.weights.cap`.
    """
    places = {name: home for home, names in homes.items() for name in names.split()}

    def find(name: str) -> object:
        if name in places:
            with explaining(f"{package}.{name}"):
                value: object = getattr(import_module(f"{package}.{places[name]}"), name)
            setattr(sys.modules[package], name, value)
            return value
        if name in homes:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    public = {*places, *(home for home in homes if home.isidentifier())}
    return find, lambda: sorted({*vars(sys.modules[package]), *public})
