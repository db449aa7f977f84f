"""Reads a study from TOML; an unknown key or a wrong value is an error of one sentence."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import TypeVar

from aol import _check
from aol.engine.settings import Value, WrongSettingsError
from aol.study.paper import TABLES
from aol.study.spec import Method, Study

_KEYS = {
    "name", "title", "paper", "seeds", "baseline", "claims", "largest_loss", "tries_seeds", "more_seeds", "keep",
    "common", "cells", "methods",
}  # fmt: skip
T = TypeVar("T")
_OPTIONAL = ("imbalance", "samples", "threshold", "image_size", "warmup")  # "none" in TOML, which has no null


def study_from(text: str, where: str) -> Study:
    """Return the study that a TOML text describes; `where` is its name in messages."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise WrongSettingsError(f"{where} is not TOML: {error}.") from error
    try:
        return _study(table)
    except (TypeError, ValueError) as error:
        raise WrongSettingsError(f"{where}: {error}") from error


def _study(table: dict[str, object]) -> Study:
    known = _KEYS | {"selection", "report"}
    if strange := set(table) - known:
        raise WrongSettingsError(f"there is no key {sorted(strange)[0]!r}; a study has {', '.join(sorted(known))}.")
    if missing := {"name", "seeds", "methods"} - set(table):
        raise WrongSettingsError(f"{sorted(missing)[0]} is missing.")
    selection, report = _section(table, "selection", {"figure"}), _section(table, "report", {"figures"})
    methods = table["methods"]
    if not isinstance(methods, list) or not methods:
        raise WrongSettingsError("methods must be written as [[methods]], one for each.")
    plain = ("baseline", "largest_loss", "tries_seeds", "more_seeds", "paper")
    optional: dict[str, object] = {name: table[name] for name in plain if name in table}
    if "paper" in table:
        optional["paper"] = _check.choice("paper", table["paper"], TABLES)
    if "claims" in table:
        optional["claims"] = tuple(_text("claims", each) for each in _of("claims", table["claims"], list, "a list"))
    if "figures" in report:
        optional["figures"] = tuple(_of("report.figures", report["figures"], list, "a list"))
    return Study(
        name=_text("name", table["name"]),
        title=_text("title", table.get("title", table["name"])),
        common={name: _one(name, value) for name, value in _section(table, "common").items()},
        cells={name: _several(name, value) for name, value in _section(table, "cells").items()},
        seeds=tuple(_of("seeds", table["seeds"], list, "a list")),
        methods=tuple(_method(each) for each in methods),
        keep=tuple(_of("keep", table.get("keep", []), list, "a list")),
        **selection,  # type: ignore[arg-type]
        **optional,  # type: ignore[arg-type]
    )


def _method(table: object) -> Method:
    if not isinstance(table, dict) or "name" not in table:
        raise WrongSettingsError("each of [[methods]] must have a name.")
    return Method(
        name=_text("name of a method", table["name"]),
        fixed={name: _one(name, value) for name, value in table.items() if name not in ("name", "grid")},
        grid={name: _several(name, values) for name, values in _section(table, "grid").items()},
    )


def _of(name: str, value: object, kind: type[T], what: str) -> T:
    """Return a value of this kind; an error of one sentence for any other."""
    if not isinstance(value, kind):
        raise WrongSettingsError(f"{name} must be {what}, not {_check.shown(value)}.")
    return value


def _section(table: Mapping[str, object], name: str, known: set[str] | None = None) -> dict[str, object]:
    found = _of(name, table.get(name, {}), dict, "a table of names and values")
    if known is not None and (strange := set(found) - known):
        raise WrongSettingsError(f"{name} has {sorted(strange)[0]!r}; it may have {', '.join(sorted(known))}.")
    return found


def _text(name: str, value: object) -> str:
    if isinstance(value, str) and not value.strip():
        raise WrongSettingsError(f"{name} must be text, not {_check.shown(value)}.")
    return _of(name, value, str, "text")


def _one(name: str, value: object) -> Value:
    if not isinstance(value, str | int | float | bool):
        raise WrongSettingsError(f"{name} must be one value, not {_check.shown(value)}.")
    return None if name in _OPTIONAL and value == "none" else value


def _several(name: str, value: object) -> tuple[Value, ...]:
    return tuple(_one(name, each) for each in _of(name, value, list, "a list"))
