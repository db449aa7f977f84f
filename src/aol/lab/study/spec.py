"""A study: cells of a table, methods with their grids, and seeds; read from TOML, checked, and turned into runs.

A run is named by its settings only, so two studies that need the same run share it.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TypeAlias

from aol import _values as _check
from aol._files import NotRegularError, read_regular
from aol._values import did_you_mean
from aol.lab.settings import REMOVED, Settings, Value, WrongSettingsError, word
from aol.lab.study.paper import TABLES
from aol.records.metrics import FIGURES, METRICS

Cell: TypeAlias = dict[str, Value]  # settings that make one cell of the table: {"data": "cifar10", ...}
Variant: TypeAlias = dict[str, Value]  # one setting of a method's grid: {"rho": 0.3, "level": "class"}

KEPT = ("age",)
_SMOKE = "-smoke"
_MOST_BYTES = 2**24  # of the file of a study
_KNOWN = {setting.name for setting in fields(Settings)} | REMOVED.keys()


@dataclass(frozen=True)
class Method:
    """One row of a table: fixed settings, and a grid whose best setting is chosen on validation.

    >>> Method("aol", {"weighting": "aol"}, {"rho": (0.1, 0.5), "level": ("class", "sample")}).variants()[1]
    {'rho': 0.1, 'level': 'sample'}
    """

    name: str
    fixed: Mapping[str, Value] = field(default_factory=dict)
    grid: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    def variants(self) -> list[Variant]:
        """Return the settings of the grid, one dictionary for each; a method without a grid has one empty setting."""
        return _combinations(self.grid)


@dataclass(frozen=True)
class Study:
    """A table to be filled: every cell, by every method, in every setting, with every seed.

    Args:
        name: its name on the command line.
        title: one line about it.
        common: settings of all runs.
        cells: settings that make the cells of the table; every combination is a cell.
        seeds: of every run.
        methods: rows of the table.
        baseline: the method that the others are compared with.
        tries_seeds: how many additional seeds the baseline gets, so that the best of a grid can be compared with the
            best of as many baseline runs; by default the number of settings of the largest grid that weights by age.
        claims: the methods that get a verdict, each compared with the other methods too; by default those that weight
            by age, as the paper does, or all.
        largest_loss: in points. The claim is then that a method loses less than this, where there is nothing to gain.
        more_seeds: whether seeds that are not in the study, but were trained for it, count as well.
        paper: the paper's table that it reproduces, a name in `aol/study/paper`, or None.
        figure: the figure, of validation accuracy, by which a method's setting is chosen.
        figures: the figures, on test, that are reported.
        keep: readings by class and epoch without which a run is not complete: "age", for heatmaps.
    """

    name: str
    title: str
    common: Mapping[str, Value]
    cells: Mapping[str, tuple[Value, ...]]
    seeds: tuple[int, ...]
    methods: tuple[Method, ...]
    baseline: str = "none"
    tries_seeds: int | None = None
    claims: tuple[str, ...] = ()
    largest_loss: float | None = None
    more_seeds: bool = True
    paper: str | None = None
    figure: str = "tail_mean"
    figures: tuple[str, ...] = ("last", "tail_mean", "best")
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_study(self)

    def cells_list(self) -> list[Cell]:
        """Return the cells of the table, in the order of the study."""
        return _combinations(self.cells)

    def method(self, name: str) -> Method:
        """Return a method by its name."""
        known = {method.name: method for method in self.methods}
        if name not in known:
            raise WrongSettingsError(f"{self.name} has no method called {name!r}, only {', '.join(known)}.")
        return known[name]

    def of_paper(self, method: Method) -> bool:
        """Return whether a method weights by age, as the paper does: its gain is the claim, the others are rivals."""
        return method.fixed.get("weighting", self.common.get("weighting")) == "aol"

    def claimed_methods(self) -> list[str]:
        """Return the names of the methods that get a verdict."""
        methods = [method for method in self.methods if method.name != self.baseline]
        named = [method.name for method in methods if method.name in self.claims]
        return named or [each.name for each in methods if self.of_paper(each)] or [each.name for each in methods]

    @property
    def extra_seeds(self) -> tuple[int, ...]:
        """The additional seeds of the baseline: the smallest numbers from one on that are not seeds of the study."""
        free = (seed for seed in itertools.count(1) if seed not in self.seeds)
        return tuple(itertools.islice(free, self._tries(self.methods)))

    def _tries(self, methods: Iterable[Method]) -> int:
        """Return how many additional seeds the baseline gets, beside these methods."""
        grids = [len(each.variants()) for each in methods if self.of_paper(each)]
        return max((each for each in grids if each > 1), default=0) if self.tries_seeds is None else self.tries_seeds

    def run(self, cell: Cell, method: Method, variant: Variant, seed: int) -> Settings:
        """Return one run. A method's own settings override those of the cell, which override the common ones."""
        chosen: dict[str, Value] = {**self.common, **cell, **method.fixed, **variant, "seed": seed}
        try:
            return settings_from(**chosen)
        except WrongSettingsError as error:
            place = " ".join(f"{name}={word(value)}" for name, value in {**cell, **variant}.items())
            raise WrongSettingsError(f"{self.name}, method {method.name}, {place}: {error}") from error

    def runs(self, cell: Cell, method: Method, seeds: Sequence[int] | None = None) -> list[Settings]:
        """Return a method's runs in a cell: setting after setting, each with all seeds (by default the study's)."""
        wanted = self.seeds if seeds is None else seeds
        return [self.run(cell, method, variant, seed) for variant in method.variants() for seed in wanted]

    def cell_runs(self, cell: Cell) -> list[Settings]:
        """Return every run of a cell, those with the baseline's additional seeds included."""
        found: list[Settings] = []
        for method in self.methods:
            more = self.extra_seeds if method.name == self.baseline else ()
            found += [*self.runs(cell, method), *self.runs(cell, method, more)]
        return found

    def all_runs(self) -> list[Settings]:
        """Return every run of the study once, cell after cell."""
        return list(dict.fromkeys(run for cell in self.cells_list() for run in self.cell_runs(cell)))

    def fewest_missing_first(self, complete: Collection[str]) -> list[Settings]:
        """Return the runs of the cells that lack the fewest runs first; `complete` has the ids of complete runs.

        A cell tells nothing until its seeds are complete: these cells tell most for their time.
        """
        cells = [self.cell_runs(cell) for cell in self.cells_list()]
        cells.sort(key=lambda runs: sum(run.run_id not in complete for run in runs))
        return list(dict.fromkeys(run for runs in cells for run in runs))

    def grids_without_validation(self) -> list[str]:
        """Return the methods with a grid but no validation part to choose a setting by."""
        cell = self.cells_list()[0]
        grids = [method for method in self.methods if len(method.variants()) > 1]
        return [each.name for each in grids if any(run.validation == 0.0 for run in self.runs(cell, each, (0,)))]

    def only(self, **chosen: Sequence[Value]) -> Study:
        """Return the part of the study with these cells, methods (`method=...`) or settings of grids.

        The baseline is always a part of it, with as many tries as the grids that are left have settings.

        >>> load("period-10").only(imbalance=[200], method=["none", "aol"], rho=[0.5]).cells_list()
        [{'data': 'cifar10', 'imbalance': 200}]
        """
        named = chosen.pop("method", None)
        wanted = None if named is None else {self.method(str(name)).name for name in named} | {self.baseline}
        cells, methods = dict(self.cells), list(self.methods)
        for name, values in chosen.items():
            self._check_part(name, values)
            if name in cells:
                cells[name] = tuple(value for value in cells[name] if value in values)
            for place, each in enumerate(methods):
                if name in each.grid:
                    kept = tuple(value for value in each.grid[name] if value in values)
                    methods[place] = replace(each, grid={**each.grid, name: kept})
        if lost := [each.name for each in methods if not all(each.grid.values()) and each.name in (wanted or ())]:
            raise WrongSettingsError(f"{self.name}: the grid of {lost[0]} has none of these settings.")
        methods = [each for each in methods if all(each.grid.values())]
        tries = self._tries(methods)
        methods = [each for each in methods if wanted is None or each.name in wanted]
        claims = tuple(name for name in self.claims if name in {each.name for each in methods})
        return replace(self, cells=cells, methods=tuple(methods), claims=claims, tries_seeds=tries)

    def _check_part(self, name: str, values: Sequence[Value]) -> None:
        """Raise if there are no such cells or settings."""
        grids = [method.grid[name] for method in self.methods if name in method.grid]
        if name not in self.cells and not grids:
            axes = [*self.cells, *(axis for method in self.methods for axis in method.grid), "method"]
            names = ", ".join(dict.fromkeys(axes))
            raise WrongSettingsError(f"{self.name} can be restricted by {names}; there is no {name!r}.")
        known = [*self.cells.get(name, ()), *itertools.chain(*grids)]
        for value in values:
            if value not in known:
                has = ", ".join(word(each) for each in dict.fromkeys(known))
                raise WrongSettingsError(f"{self.name} has {name} {has}; there is no {word(value)}.")

    def with_settings(self, **changed: Value) -> Study:
        """Return the study with other common settings: other runs, under other ids."""
        for name in changed:
            if name in self.cells or any(name in method.grid for method in self.methods):
                raise WrongSettingsError(f"{name} varies in {self.name}: restrict it, instead of setting it.")
        return replace(self, common={**self.common, **changed})


@lru_cache(maxsize=2**16, typed=True)  # 1 is not True
def settings_from(**values: Value) -> Settings:
    """Return the settings with these values; checked once, as tables ask for the same runs many times."""
    return Settings.of(values)


def cell_name(cell: Cell | Sequence[tuple[str, Value]]) -> str:
    """Return the name of a cell, or of a group of cells.

    >>> cell_name({"data": "cifar10", "imbalance": 200, "fraction": 0.05})
    'cifar10, imbalance 200, fraction 0.05'
    """
    plain = ("data", "loss", "mechanism", "stream", "weighting")  # the value says which setting it is
    return ", ".join(
        word(value) if name in plain and isinstance(value, str) else f"{name.replace('_', ' ')} {word(value)}"
        for name, value in dict(cell).items()
    )


def plural(number: int, noun: str) -> str:
    """Return a number of things in words.

    >>> plural(1, "run"), plural(3, "run")
    ('1 run', '3 runs')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def _combinations(axes: Mapping[str, tuple[Value, ...]]) -> list[dict[str, Value]]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _check_study(study: Study) -> None:
    """Raise what is wrong with a study, before anything is trained."""

    def refuse(text: str) -> None:
        raise WrongSettingsError(f"{study.name}: {text}")

    if not study.name.strip() or not study.name.isprintable() or set("/\\") & set(study.name):
        raise WrongSettingsError(f"name must be able to name a file, without / and \\, not {study.name!r}.")
    for seed in study.seeds:
        _check.whole("seeds", seed, 0)
    if not study.seeds or len(set(study.seeds)) != len(study.seeds):
        refuse(f"seeds must be different whole numbers, not {list(study.seeds)}.")
    names = [method.name for method in study.methods]
    if len(set(names)) != len(names):
        refuse(f"methods must have different names, not {', '.join(names)}.")
    if study.baseline not in names:
        refuse(f"baseline must be one of the methods {', '.join(names)}, not {study.baseline!r}.")
    if strange := [name for name in study.claims if name not in names or name == study.baseline]:
        refuse(f"claims must name methods other than the baseline, not {strange[0]!r}.")
    if study.largest_loss is not None:
        _check.number("largest_loss", study.largest_loss, 0.0, 100.0)
    if study.tries_seeds is not None:
        _check.whole("tries_seeds", study.tries_seeds, 0)
    _check.choice("figure", study.figure, tuple(METRICS))
    for figure in study.figures:
        _check.choice("figures", figure, FIGURES)
    for reading in study.keep:
        _check.choice("keep", reading, KEPT)
    if study.paper is not None:
        _check.choice("paper", study.paper, tuple(TABLES))
    axes = {"cells": study.cells, **{f"the grid of {method.name}": method.grid for method in study.methods}}
    fixed = {"common": study.common, **{f"method {method.name}": method.fixed for method in study.methods}}
    for where, name in ((where, name) for where, table in {**fixed, **axes}.items() for name in table):
        if name not in _KNOWN:
            refuse(f"{where} has {name!r}, which is no setting of a run.{did_you_mean(name, _KNOWN)}")
        if name == "seed":
            refuse(f"{where} has a seed: seeds are a list of their own.")
    if twice := set(study.common) & set(study.cells):
        refuse(f"{sorted(twice)[0]} is both common and an axis of the cells.")
    for where, name, values in ((where, *item) for where, table in axes.items() for item in table.items()):
        if not values or len(set(values)) != len(values):
            refuse(f"{where}: {name} must be a list of different values, not {list(values)}.")
    study.all_runs()


def builtin_names(*, smoke: bool = True) -> list[str]:
    """Return the names of the built-in studies, and of their small variants on digits.

    >>> builtin_names(smoke=False)[:3]
    ['arrival', 'correlations', 'fixed-rho-arrival']
    """
    folder = resources.files("aol.lab.study") / "builtin"
    names = sorted(path.name.removesuffix(".toml") for path in folder.iterdir() if path.name.endswith(".toml"))
    return names + [name + _SMOKE for name in names if smoke]


def load(name_or_path: str | Path) -> Study:
    """Return a built-in study by its name, or one from a TOML file.

    "NAME-smoke" is a study cut down to seconds: the same methods, cells at the ends of its axes, on `digits`.

    >>> len(load("period-10-seeds").all_runs())
    348
    """
    word = str(name_or_path)
    if word in builtin_names(smoke=False):
        text = (resources.files("aol.lab.study") / "builtin" / f"{word}.toml").read_text(encoding="utf-8")
        return study_from(text, f"{word}.toml")
    if word in builtin_names():
        return smoke(load(word.removesuffix(_SMOKE)))
    path = Path(word).expanduser()
    if not path.is_file():
        names = ", ".join(builtin_names(smoke=False))
        hint = did_you_mean(word, builtin_names())
        raise WrongSettingsError(f"There is no study {word!r}: no such file, and the built-in ones are {names}.{hint}")
    try:
        return study_from(read_regular(path, _MOST_BYTES).decode(), str(path))
    except NotRegularError as error:
        raise WrongSettingsError(f"{path} is not the file of a study: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise WrongSettingsError(f"{path} is not text in UTF-8.") from error


# TOML: an unknown key or a wrong value is an error of one sentence

_OPTIONAL = {each.name for each in fields(Settings) if "None" in str(each.type)}  # "none" in TOML, which has no null


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
    known = {each.name for each in fields(Study)} - {"figure", "figures"} | {"selection", "report"}
    if strange := set(table) - known:
        name, keys = min(strange), sorted(known)
        hint = did_you_mean(name, keys)
        raise WrongSettingsError(f"there is no key {name!r}; a study has {', '.join(keys)}.{hint}")
    if missing := {"name", "seeds", "methods"} - set(table):
        raise WrongSettingsError(f"{sorted(missing)[0]} is missing.")
    if not isinstance(more := table.get("more_seeds", True), bool):
        raise WrongSettingsError(f"more_seeds must be true or false, not {_check.shown(more)}.")
    selection, report = _section(table, "selection", {"figure"}), _section(table, "report", {"figures"})
    methods = table["methods"]
    if not isinstance(methods, list) or not methods:
        raise WrongSettingsError("methods must be written as [[methods]], one for each.")
    plain = ("baseline", "largest_loss", "tries_seeds", "more_seeds", "paper")
    given = {name: table[name] for name in plain if name in table}
    given |= {name: _list(name, table[name]) for name in ("seeds", "claims", "keep") if name in table}
    given |= {name: _list(f"report.{name}", values) for name, values in report.items()}
    return Study(
        name=_text("name", table["name"]),
        title=_text("title", table.get("title", table["name"])),
        common={name: _one(name, value) for name, value in _section(table, "common").items()},
        cells={name: _several(name, value) for name, value in _section(table, "cells").items()},
        methods=tuple(_method(each) for each in methods),
        **selection,  # type: ignore[arg-type]
        **given,  # type: ignore[arg-type]
    )


def _method(table: object) -> Method:
    if not isinstance(table, dict) or "name" not in table:
        raise WrongSettingsError("each of [[methods]] must have a name.")
    return Method(
        name=_text("name of a method", table["name"]),
        fixed={name: _one(name, value) for name, value in table.items() if name not in ("name", "grid")},
        grid={name: _several(name, values) for name, values in _section(table, "grid").items()},
    )


def _section(table: Mapping[str, object], name: str, known: set[str] | None = None) -> dict[str, object]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise WrongSettingsError(f"{name} must be a table of names and values, not {_check.shown(found)}.")
    if known is not None and (strange := set(found) - known):
        raise WrongSettingsError(f"{name} has {sorted(strange)[0]!r}; it may have {', '.join(sorted(known))}.")
    return found


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise WrongSettingsError(f"{name} must be text, not {_check.shown(value)}.")
    return value


def _list(name: str, value: object) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise WrongSettingsError(f"{name} must be a list, not {_check.shown(value)}.")
    return tuple(value)


def _one(name: str, value: object) -> Value:
    if not isinstance(value, str | int | float | bool):
        raise WrongSettingsError(f"{name} must be one value, not {_check.shown(value)}.")
    return None if name in _OPTIONAL and value == "none" else value


def _several(name: str, value: object) -> tuple[Value, ...]:
    return tuple(_one(name, each) for each in _list(name, value))


# Small variants

_EPOCHS = 3
_SEEDS = 2
_LARGEST = 50.0  # imbalance, of some 140 images a class
# Other values for 1,347 images of 8 x 8 pixels.
_INSTEAD: Mapping[str, Callable[[Value], Value]] = {
    "data": lambda _: "digits",
    "imbalance": lambda value: min(value, _LARGEST) if isinstance(value, int | float) else value,
    "samples": lambda value: min(value, 600) if isinstance(value, int) else value,
    "conflicts": lambda _: 0.05,
    "noise": lambda _: 0.05,
    "memory": lambda value: "reservoir:300" if str(value).startswith("reservoir") else value,
    "fraction": lambda value: max(value, 0.1) if isinstance(value, int | float) else value,
    "period": lambda value: min(value, 2) if isinstance(value, int) else value,
    "epochs": lambda value: min(value, _EPOCHS) if isinstance(value, int) else value,
}
_SMALL: Mapping[str, Value] = {
    "net": "auto", "epochs": _EPOCHS, "batch_size": 64, "warmup": 1, "precision": "fp32", "image_size": None,
}  # fmt: skip


def smoke(study: Study) -> Study:
    """Return a study reduced to seconds on a CPU: the same methods on `digits`, the ends of each axis, a few epochs.

    It shows that a study works from end to end; its results mean nothing.

    >>> small = smoke(load("period-10-seeds"))
    >>> small.cells_list(), small.seeds, len(small.all_runs())
    ([{'data': 'digits', 'imbalance': 50.0}, {'data': 'digits', 'imbalance': 10}], (42, 1024), 32)
    """
    common = {name: _instead(name, value) for name, value in {"data": "digits", **study.common}.items()}
    common = {name: value for name, value in {**common, **_SMALL}.items() if name not in study.cells}
    if study.common.get("schedule") == "fixed":
        common["warmup"] = 0
    more = [seed for seed in range(1, _SEEDS + 1) if seed not in study.seeds]
    return replace(
        study,
        name=study.name + _SMOKE,
        title=f"{study.name} in seconds, on digits",
        common=common,
        cells={name: _ends(name, values) for name, values in study.cells.items()},
        seeds=(*study.seeds, *more)[:_SEEDS],
        methods=tuple(_cut(method) for method in study.methods),
        tries_seeds=None if study.tries_seeds is None else min(study.tries_seeds, _SEEDS),
        paper=None,
    )


def _instead(name: str, value: Value) -> Value:
    return _INSTEAD[name](value) if name in _INSTEAD else value


def _ends(name: str, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the first and the last of the values that are different on digits."""
    different = list(dict.fromkeys(_instead(name, value) for value in values))
    return tuple(dict.fromkeys((different[0], different[-1])))


def _cut(method: Method) -> Method:
    return replace(
        method,
        fixed={name: _instead(name, value) for name, value in method.fixed.items()},
        grid={name: tuple(dict.fromkeys((values[0], values[-1]))) for name, values in method.grid.items()},
    )
