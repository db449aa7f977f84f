"""A study: cells of a table, methods with their grids, and seeds; read from TOML, checked, and turned into runs.

A run is named by its settings only, so two studies that need the same run share it.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from aol._values import did_you_mean
from aol.lab.settings import Settings, Value, WrongSettingsError, word
from aol.lab.study.paper import TABLES
from aol.records.metrics import FIGURES, METRICS

Cell: TypeAlias = dict[str, Value]  # settings that make one cell of the table: {"data": "cifar10", ...}

_BUILTIN = Path(__file__).with_name("builtin")
_MORE = Path("results", "studies")  # in a checkout: studies that are done
_SMOKE = "-smoke"
_KNOWN = {setting.name for setting in fields(Settings)}
_OPTIONAL = {setting.name for setting in fields(Settings) if "None" in str(setting.type)}  # "none" in TOML


@dataclass(frozen=True)
class Method:
    """One row of a table: fixed settings, and a grid whose best setting is chosen on validation.

    >>> Method("aol", {"weighting": "aol"}, {"rho": (0.1, 0.5), "level": ("class", "sample")}).variants()[1]
    {'rho': 0.1, 'level': 'sample'}
    """

    name: str
    fixed: Mapping[str, Value] = field(default_factory=dict)
    grid: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    def variants(self) -> list[Cell]:
        """Return the settings of the grid, a dictionary each; a method without a grid has one empty setting."""
        return _combinations(self.grid)


@dataclass(frozen=True)
class Study:
    """A table to be filled: every cell, by every method, in every setting, with every seed.

    Args:
        name, title: its name on the command line, and one line about it.
        common: settings of all runs.
        cells: settings that make the cells of the table; every combination is a cell.
        seeds, methods: of every cell; methods are the rows of the table.
        baseline: the method that the others are compared with.
        tries_seeds: how many additional seeds the baseline gets, so that the best of a grid can be compared with the
            best of as many baseline runs; by default the number of settings of the largest grid that weights by age.
        claims: the methods that get a verdict, each compared with the other methods too; by default those that weight
            by age, as the paper does, or all.
        largest_loss: in points. The claim is then that a method loses less than this, where there is nothing to gain.
        paper: the paper's table that it reproduces, a name in `aol/lab/study/paper`, or None.
        figure: the figure, of validation accuracy, by which a method's setting is chosen; `figures` are reported.
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

    def _of_paper(self, method: Method) -> bool:
        return method.fixed.get("weighting", self.common.get("weighting")) == "aol"

    def claimed_methods(self) -> list[str]:
        """Return the names of the methods that get a verdict."""
        methods = [method for method in self.methods if method.name != self.baseline]
        named = [method.name for method in methods if method.name in self.claims]
        return named or [m.name for m in methods if self._of_paper(m)] or [m.name for m in methods]

    @property
    def extra_seeds(self) -> tuple[int, ...]:
        """The additional seeds of the baseline: the smallest numbers from one on that are not seeds of the study."""
        free = (seed for seed in itertools.count(1) if seed not in self.seeds)
        return tuple(itertools.islice(free, self._tries(self.methods)))

    def _tries(self, methods: Iterable[Method]) -> int:
        grids = [len(method.variants()) for method in methods if self._of_paper(method)]
        return max((size for size in grids if size > 1), default=0) if self.tries_seeds is None else self.tries_seeds

    def run(self, cell: Cell, method: Method, variant: Cell, seed: int) -> Settings:
        """Return one run. A method's own settings override those of the cell, which override the common ones."""
        try:
            return settings_from(**{**self.common, **cell, **method.fixed, **variant, "seed": seed})
        except WrongSettingsError as error:
            place = " ".join(f"{name}={word(value)}" for name, value in {**cell, **variant}.items())
            raise WrongSettingsError(f"{self.name}, method {method.name}, {place}: {error}") from error

    def runs(self, cell: Cell, method: Method, seeds: Sequence[int] = ()) -> list[Settings]:
        """Return a method's runs in a cell: setting after setting, each with all seeds (by default the study's)."""
        return [self.run(cell, method, own, seed) for own in method.variants() for seed in seeds or self.seeds]

    def cell_runs(self, cell: Cell) -> list[Settings]:
        """Return every run of a cell, seed after seed, so that a method and its baseline are trained in one group."""
        seeds = (*self.seeds, *self.extra_seeds)
        by_method = [(m, seeds if m.name == self.baseline else self.seeds) for m in self.methods]
        runs = [run for method, own in by_method for run in self.runs(cell, method, own)]
        return sorted(runs, key=lambda run: seeds.index(run.seed))

    def all_runs(self) -> list[Settings]:
        """Return every run of the study once, cell after cell."""
        return list(dict.fromkeys(run for cell in self.cells_list() for run in self.cell_runs(cell)))

    def grids_without_validation(self) -> list[str]:
        """Return the methods with a grid but no validation part to choose a setting by."""
        cell = self.cells_list()[0]
        grids = [method for method in self.methods if len(method.variants()) > 1]
        return [m.name for m in grids if any(run.validation == 0.0 for run in self.runs(cell, m, (0,)))]

    def only(self, **chosen: Sequence[Value]) -> Study:
        """Return the part of the study with these cells, methods (`method=...`) or settings of grids.

        The baseline is always a part of it, with as many tries as the grids that are left have settings.

        >>> load("period-10").only(data=["cifar10"], imbalance=[200], method=["aol"], rho=[0.5]).cells_list()
        [{'data': 'cifar10', 'imbalance': 200}]
        """
        wanted = [self.method(str(name)).name for name in chosen.pop("method", ())]

        def part(axes: Mapping[str, tuple[Value, ...]]) -> dict[str, tuple[Value, ...]]:
            return {name: tuple(v for v in values if v in chosen.get(name, values)) for name, values in axes.items()}

        axes = (self.cells, *(method.grid for method in self.methods))
        for name, values in chosen.items():
            known = dict.fromkeys(value for table in axes for value in table.get(name, ()))
            if not known:
                names = ", ".join(dict.fromkeys([*itertools.chain(*axes), "method"]))
                raise WrongSettingsError(f"{self.name} can be restricted by {names}; there is no {name!r}.")
            if strange := [value for value in values if value not in known]:
                has = ", ".join(map(word, known))
                raise WrongSettingsError(f"{self.name} has {name} {has}; there is no {word(strange[0])}.")
        every = [replace(method, grid=part(method.grid)) for method in self.methods]
        methods = [method for method in every if all(method.grid.values())]
        if lost := [method.name for method in every if method not in methods and method.name in wanted]:
            raise WrongSettingsError(f"{self.name}: the grid of {lost[0]} has none of these settings.")
        kept = [method for method in methods if not wanted or method.name in (*wanted, self.baseline)]
        claims = tuple(name for name in self.claims if name in {method.name for method in kept})
        own = {"methods": tuple(kept), "claims": claims, "tries_seeds": self._tries(methods)}
        return replace(self, cells=part(self.cells), **own)  # type: ignore[arg-type]

    def with_settings(self, **changed: Value) -> Study:
        """Return the study with other common settings: other runs, under other ids."""
        for name in changed:
            if name in self.cells or any(name in method.grid for method in self.methods):
                raise WrongSettingsError(f"{name} varies in {self.name}: restrict it, instead of setting it.")
        return replace(self, common={**self.common, **changed})


@lru_cache(maxsize=2**16, typed=True)  # 1 is not True
def settings_from(**values: Value) -> Settings:
    """Return the settings with these values; checked once, as tables ask for the same runs many times."""
    if strange := sorted(values.keys() - _KNOWN):
        raise WrongSettingsError(f"there is no setting {strange[0]!r}.{did_you_mean(strange[0], _KNOWN)}")
    return Settings(**values)  # type: ignore[arg-type]


def cell_name(cell: Mapping[str, Value]) -> str:
    """Return the name of a cell.

    >>> cell_name({"data": "cifar10", "imbalance": 200, "fraction": 0.05})
    'cifar10, imbalance 200, fraction 0.05'
    """
    plain = ("data", "loss", "mechanism", "stream", "weighting")  # the value says which setting it is
    return ", ".join(
        word(value) if name in plain and isinstance(value, str) else f"{name.replace('_', ' ')} {word(value)}"
        for name, value in cell.items()
    )


def _combinations(axes: Mapping[str, tuple[Value, ...]]) -> list[Cell]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _check_study(study: Study) -> None:
    """Raise what is wrong with a study, before anything is trained."""

    def need(fits: object, text: str) -> None:
        if not fits:
            raise WrongSettingsError(f"{study.name}: {text}")

    name, names, seeds = study.name, [method.name for method in study.methods], study.seeds
    axes = {"cells": study.cells, **{f"the grid of {method.name}": method.grid for method in study.methods}}
    need(name.strip() and not set("/\\\n") & set(name), "name must be able to name a file, without / and \\.")
    whole = all(type(seed) is int and seed >= 0 for seed in seeds)
    need(whole and _differ(seeds), f"seeds must be different whole numbers of 0 or more, not {list(seeds)}.")
    need(_differ(names), f"methods must have different names, not {', '.join(names)}.")
    need(study.baseline in names, f"baseline must be one of the methods {', '.join(names)}, not {study.baseline!r}.")
    wrong = [own for own in study.claims if own not in names or own == study.baseline]
    need(not wrong, f"claims must name methods other than the baseline, not {wrong}.")
    loss = study.largest_loss or 0.0
    need(0.0 <= loss <= 100.0, f"largest_loss must be from 0 to 100, not {loss}.")
    twice = sorted(set(study.common) & set(study.cells))
    need(not twice, f"{', '.join(twice)} is both common and an axis of the cells.")
    tables = (study.common, *(method.fixed for method in study.methods), *axes.values())
    need(not any("seed" in own for own in tables), "a table of settings has a seed: seeds are a list of their own.")
    for where, table in axes.items():
        for axis, values in table.items():
            need(_differ(values), f"{where}: {axis} must be a list of different values, not {list(values)}.")
    words: dict[str, tuple[Sequence[str | None], Collection[str | None]]] = {
        "figure": ((study.figure,), METRICS), "figures": (study.figures, FIGURES), "keep": (study.keep, ("age",)),
        "paper": ((study.paper,), (*TABLES, None)),
    }  # fmt: skip
    for where, (own, known) in words.items():
        strange = [one for one in own if one not in known]
        need(not strange, f"{where} must be one of {', '.join(filter(None, known))}, not {strange}.")
    study.all_runs()


def _differ(values: Sequence[object]) -> bool:
    return 0 < len(values) == len(set(values))


def builtin_names() -> list[str]:
    """Return the names of the built-in studies."""
    return sorted(path.stem for path in _BUILTIN.glob("*.toml"))


def load(name_or_path: str | Path) -> Study:
    """Return a built-in study by its name, or one from a TOML file; in a checkout also one of `results/studies`.

    "NAME-smoke" is a study cut down to seconds: the same methods, cells at the ends of its axes, on `digits`.

    >>> len(load("period-10").all_runs())
    348
    """
    name, known = str(name_or_path), builtin_names()
    if path := path_of(name):
        try:
            return _study(tomllib.loads(path.read_text(encoding="utf-8")))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise WrongSettingsError(f"{path} is not TOML: {error}.") from error
        except (TypeError, ValueError) as error:
            raise WrongSettingsError(f"{path}: {error}") from error
    large = name.removesuffix(_SMOKE)
    if large != name and path_of(large):
        return smoke(load(large))
    hint = did_you_mean(name, [*known, *(known + _SMOKE for known in known)])
    raise WrongSettingsError(
        f"There is no study {name!r}: no such file, and the built-in ones are {', '.join(known)}.{hint}"
    )


def path_of(name: str) -> Path | None:
    """Return the file of a study: a built-in one, any TOML file, or in a checkout one of `results/studies`."""
    places = (_BUILTIN / f"{name}.toml", Path(name).expanduser(), _MORE / f"{name}.toml")
    return next((path for path in places if path.is_file()), None)


_TEXT, _LIST, _TABLE = (str, "text"), (list, "a list"), (dict, "a table of names and values")
_KEYS: Mapping[str, tuple[Any, str]] = {
    "name": _TEXT, "title": _TEXT, "seeds": _LIST, "common": _TABLE, "cells": _TABLE, "baseline": _TEXT,
    "methods": (list, "written as [[methods]], one for each"), "tries_seeds": (int, "a whole number"),
    "claims": _LIST, "largest_loss": (int | float, "a number"), "paper": _TEXT, "keep": _LIST,
    "figure": _TEXT, "figures": _LIST,  # in [selection] and [report]
}  # fmt: skip


def _need(name: str, value: Any, kind: Any, text: str) -> Any:
    if not isinstance(value, kind):
        raise WrongSettingsError(f"{name} must be {text}, not {value!r}.")
    return tuple(value) if kind is list else value


def _study(table: dict[str, Any]) -> Study:
    for section in ("selection", "report"):
        table |= _need(section, table.pop(section, {}), *_TABLE)
    if strange := [name for name in table if name not in _KEYS]:
        hint = did_you_mean(strange[0], _KEYS)
        raise WrongSettingsError(f"there is no key {strange[0]!r}; a study has {', '.join(_KEYS)}.{hint}")
    if missing := {"name", "seeds", "methods"} - set(table):
        raise WrongSettingsError(f"{min(missing)} is missing.")
    own = {name: _need(name, value, *_KEYS[name]) for name, value in table.items()}
    own |= {"common": _settings(own.get("common", {})), "cells": _axes(own.get("cells", {}))}
    return Study(**{"title": own["name"]} | own | {"methods": tuple(map(_method, own["methods"]))})


def _method(table: Any) -> Method:
    fixed = dict(_need("a method", table, dict, "a table with a name"))
    name = _need("the name of a method", fixed.pop("name", None), *_TEXT)
    return Method(name, grid=_axes(_need("grid", fixed.pop("grid", {}), *_TABLE)), fixed=_settings(fixed))


def _settings(table: Mapping[str, Any]) -> Cell:
    return {name: _setting(name, _need(name, value, str | int | float, "one value")) for name, value in table.items()}


def _axes(table: Mapping[str, Any]) -> dict[str, tuple[Value, ...]]:
    return {name: tuple(_setting(name, v) for v in _need(name, values, *_LIST)) for name, values in table.items()}


def _setting(name: str, value: Value) -> Value:
    return None if name in _OPTIONAL and value == "none" else value


# Small variants: the values for 1,347 images of 8 x 8 pixels

_SEEDS = 2
_MOST = {"imbalance": 50.0, "samples": 600, "period": 2, "epochs": 3, "retrain": 1}
_ALL: Cell = {"data": "digits", "conflicts": 0.05, "noise": 0.05}
_SMALL: Cell = {
    "data": "digits", "net": "auto", "epochs": 3, "batch_size": 64, "precision": "fp32", "image_size": None,
}  # fmt: skip


def smoke(study: Study) -> Study:
    """Return a study reduced to seconds on a CPU: the same methods on `digits`, the ends of each axis, a few epochs.

    It shows that a study works from end to end; its results mean nothing.

    >>> small = smoke(load("period-10"))
    >>> small.cells_list(), small.seeds, len(small.all_runs())
    ([{'data': 'digits', 'imbalance': 50.0}, {'data': 'digits', 'imbalance': 10}], (42, 1024), 32)
    """

    def one(name: str, value: Any) -> Value:
        if name in _MOST and value is not None:
            return min(value, _MOST[name])  # type: ignore[no-any-return]
        if name == "memory" and value.startswith("reservoir"):
            return "reservoir:300"
        return max(value, 0.1) if name == "fraction" else _ALL.get(name, value)

    def small(table: Mapping[str, Value]) -> Cell:
        return {name: one(name, value) for name, value in table.items()}

    def ends(axes: Mapping[str, tuple[Value, ...]]) -> dict[str, tuple[Value, ...]]:
        return {name: tuple(dict.fromkeys((values[0], values[-1]))) for name, values in axes.items()}

    common = small(study.common) | _SMALL | {"warmup": 0 if study.common.get("schedule") == "fixed" else 1}
    first, last = (small({name: values[place] for name, values in study.cells.items()}) for place in (0, -1))
    return replace(
        study,
        name=study.name + _SMOKE,
        title=f"{study.name} in seconds, on digits",
        common={name: value for name, value in common.items() if name not in study.cells},
        cells=ends({name: (first[name], last[name]) for name in study.cells}),
        seeds=tuple(dict.fromkeys((*study.seeds, *range(1, _SEEDS + 1))))[:_SEEDS],
        methods=tuple(replace(m, fixed=small(m.fixed), grid=ends(m.grid)) for m in study.methods),
        tries_seeds=None if study.tries_seeds is None else min(study.tries_seeds, _SEEDS),
        paper=None,
    )
