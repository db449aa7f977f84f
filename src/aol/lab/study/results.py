"""The results of a study: one long frame of its planned runs, and from it what each method gains in each cell.

A seed counts for a method when every run of its grid, and the baseline's, is complete: a part of a grid is never shown
as the whole. The setting of each seed is chosen by the validation accuracy of the other seeds. The same runs always
give the same results.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from aol._values import did_you_mean
from aol.lab.settings import SYMBOLS, Settings, Value, WrongSettingsError, word
from aol.lab.study import paper, stats
from aol.lab.study.spec import Cell, Study, cell_name
from aol.lab.train.folder import begun_groups, is_complete, problem, read_valid, settings_of
from aol.records.metrics import ALL_MEASURES, FIGURES, METRICS, column_of
from aol.records.record import DamagedRunError, Run
from aol.records.store import Store
from aol.records.table import RunFrame, frame_of
from aol.stats import Gain, holm, paired_gain

_OF_CLAIMS = ("settings", "paper_gain")  # columns of gains


class StudyResults:
    """The results of a study, as far as its runs are complete: `long_frame` as `values`, and `gains_of` as `gains`.

    Args:
        study: what was planned.
        runs: the complete runs, a frame of `load_runs`.
        figure: the part of the test curve that is shown; by default that by which settings are chosen. A measure alone
            ("worst_class") means that part of it ("worst_class_tail_mean").
        damaged: runs that were not used, and why.
    """

    def __init__(
        self, study: Study, runs: RunFrame, figure: str | None = None, damaged: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.study, self.runs, self.damaged = study, runs, damaged
        wanted = study.figure if figure is None else figure
        self.figure = f"{wanted}_{study.figure}" if wanted in ALL_MEASURES else wanted
        _check_figure(study, self.figure)
        self.values = long_frame(study, runs, self.figure)
        self.gains = gains_of(study, self.values, self.figure)
        self._by_figure = {self.figure: self}

    def by_figure(self, figure: str) -> StudyResults:
        """Return the results of the same runs by another figure."""
        if figure not in self._by_figure:
            self._by_figure[figure] = StudyResults(self.study, self.runs, figure)
        return self._by_figure[figure]

    def best_on_test(self, method: str) -> dict[str, float] | None:
        """Return what a method gains at the best epoch and setting on test, in the cells that the paper has.

        `baseline`, if known: the best of as many baseline runs, read in the same way, minus the mean of all of them.
        """
        rows = self.by_figure("best").of(method)
        rows = rows[rows["best"].notna() & rows["paper"].notna() & rows["paper_gain"].notna()]
        if not len(rows):
            return None
        gains = {"gain": statistics.fmean(rows["best_gain"])}
        if rows["best_of_k"].notna().all():
            gains["baseline"] = statistics.fmean(rows["best_of_k"]) - statistics.fmean(rows["baseline_mean"])
        return gains

    def of(self, method: str) -> pd.DataFrame:
        """Return a method's gains in the cells that a verdict is on; without such, in all with a gain."""
        own = self.gains[(self.gains["method"] == method) & self.gains["gain"].notna()]
        judged = own[own["seeds"].map(len) >= stats.LEAST_SEEDS]
        return judged if len(judged) else own

    def mixed(self, method: str) -> str:
        """Return in how many cells a method gains and loses, by corrected p-values; nothing unless it does both."""
        rows = self.of(method)
        gains = [gain.mean > 0 for gain, p in zip(rows["gain"], rows["p"], strict=True) if p < stats.ALPHA]
        return f" (cells: {sum(gains)} gain, {gains.count(False)} loss)" if len(set(gains)) > 1 else ""

    def chosen_runs(self, place: int, method: str) -> list[Run]:
        """Return the runs of a method in a cell (its place), one a complete seed: those in the chosen setting."""
        own = self.values[(self.values["cell"] == place) & (self.values["method"] == method) & self.values["chosen"]]
        return list(self.runs.loc[own["run"]].runs.values()) if len(own) else []

    @cached_property
    def by_seed(self) -> pd.DataFrame:
        """The values in the chosen setting: a row a seed, a column a method and cell (its place)."""
        chosen = self.values[self.values["chosen"]].pivot(index="seed", columns=["method", "cell"], values="value")
        names = [method.name for method in self.study.methods]
        columns = pd.MultiIndex.from_product([names, range(len(self.study.cells_list()))])
        return chosen.reindex(index=self.study.seeds, columns=columns)

    def claims(self, asked: Sequence[tuple[str, str | None, Sequence[int] | None]]) -> list[stats.Claim]:
        """Return claims, judged together: a method, what it is compared with (None: the baseline), in some cells."""
        tables = {name: self.gains.pivot(index="cell", columns="method", values=name) for name in _OF_CLAIMS}
        made = []
        for method, over, cells in asked:
            places = list(range(len(self.study.cells_list())) if cells is None else cells)
            pairs = (self.by_seed[method] - self.by_seed[over or self.study.baseline])[places]
            complete: Any = pairs.count()
            begun, whole = (complete.index[complete >= least] for least in (1, stats.LEAST_SEEDS))
            shared, gain = pairs[whole].dropna(), None
            if len(whole) and len(shared) >= stats.LEAST_SEEDS:
                grids = tables["settings"].loc[whole, [name for name in (method, over) if name]] > 1
                means = [statistics.fmean(row) for row in shared.to_numpy().tolist()]
                gain = paired_gain(means, chosen=int(grids.any().sum()))
            papers = tables["paper_gain"][method][whole if len(whole) else begun if len(begun) else places]
            paper_gain = statistics.fmean(papers) if over is None and papers.notna().all() else None
            loss = None if over or self.study.largest_loss is None else self.study.largest_loss / 100.0
            seeds = tuple(shared.index) if gain else ()
            made.append(stats.Claim(method, over, tuple(whole), len(places), seeds, gain, paper_gain, loss))
        return stats.judge(made)

    @cached_property
    def verdicts(self) -> list[stats.Claim]:
        """On the study as a whole: for each method that a verdict is on."""
        return self.claims([(name, None, None) for name in self.study.claimed_methods()])

    @cached_property
    def rivals(self) -> list[stats.Claim]:
        """Each method that a verdict is on against each other method, corrected for their number."""
        claims = self.study.claimed_methods()
        others = [m.name for m in self.study.methods if m.name not in (self.study.baseline, *claims)]
        return self.claims([(name, rival, None) for name in claims for rival in others])

    @cached_property
    def means(self) -> dict[str, Gain]:
        """The gain of every method over the cells with three or more seeds, as `verdicts` have it."""
        names = [method.name for method in self.study.methods if method.name != self.study.baseline]
        return {own.method: own.gain for own in self.claims([(name, None, None) for name in names]) if own.gain}

    @cached_property
    def correlations(self) -> list[tuple[Cell, list[stats.Correlation]]]:
        """By cell, where nothing is compared: corrected for their number, with the paper's."""
        rows = []
        for place, cell in enumerate(self.study.cells_list() if len(self.study.methods) == 1 else ()):
            first = self.study.runs(cell, self.study.methods[0])[0]
            known = paper.published_correlations(self.study.paper, first)
            names = self.values["run"][(self.values["cell"] == place) & self.values["there"]]
            own = stats.correlations(list(self.runs.loc[names].runs.values()) if len(names) else [])
            rows += [(cell, [replace(r, paper=known.get(r.signal)) for r in own])] if own else []
        p = iter(holm([r.p for _, own in rows for r in own]))
        return [(cell, [replace(r, p_corrected=next(p)) for r in own]) for cell, own in rows]

    @property
    def correlation_verdict(self) -> str:
        """The statements on all correlations."""
        return stats.judge_correlations([r for _, own in self.correlations for r in own])


def rows_of(frame: pd.DataFrame) -> Any:
    """Return the rows of a frame, with the columns as attributes of types that pandas does not know."""
    return frame.itertuples()


# Runs


def finished_runs(store: Store) -> RunFrame:
    """Return all complete runs of the engine in a store; damaged and unfinished ones are left out."""
    known = ((run, settings_of(run)) for run in store if run.finished)
    return frame_of((None, run) for run, own in known if own is not None and problem(run, own) is None)


def study_results(
    study: Study, store: Store, frame: RunFrame | None = None, *, figure: str | None = None
) -> StudyResults:
    """Return the results of a study from a store; its runs are read here unless a frame of them is given."""
    known = finished_runs(store) if frame is None else frame
    damaged, there = [], []
    for run in study.all_runs():
        if run.run_id in known.index:
            there.append(run.run_id)
            continue
        try:
            read_valid(store, run)
        except DamagedRunError as error:
            damaged.append((run.run_id, str(error)))
    return StudyResults(study, known.loc[there], figure, sorted(damaged))


def _check_figure(study: Study, figure: str) -> None:
    if figure not in FIGURES:
        parts, measures = ", ".join(METRICS), ", ".join(ALL_MEASURES)
        hint = did_you_mean(figure, (*FIGURES, *ALL_MEASURES))
        raise WrongSettingsError(
            f"figure must be one of {parts}, or one of {measures}, also with _last and so on, not {figure!r}.{hint}"
        )
    base = study.method(study.baseline)
    if (tried := len(base.variants())) > 1:
        raise WrongSettingsError(f"{study.name}: the baseline {study.baseline} must have one setting, not {tried}.")
    run = study.run(study.cells_list()[0], base, base.variants()[0], study.seeds[0])
    if ("second_half_mean" in figure or "prequential" in figure) and run.scenario != "stream":
        raise WrongSettingsError(f"figure {figure} is for streams; {study.name} has last, tail_mean and best.")


def status_frame(study: Study, store: Store) -> pd.DataFrame:
    """Return a row for each planned run, by id: `cell`, `method`, `seed`, `state`, `why` (damaged), `failed`.

    `state` is "complete", "in_progress", "missing" or "damaged"; `failed` the epoch in which a run diverged, or 0.
    A run that several cells share is in the first of them.
    """
    begun = {run.run_id for group in begun_groups(store) for run in group.runs}
    rows = []
    for cell, settings in [(place, run) for place in study.cells_list() for run in study.cell_runs(place)]:
        row = {"id": settings.run_id, "cell": cell_name(cell), "method": settings.method, "seed": settings.seed}
        row |= {"state": "in_progress" if settings.run_id in begun else "missing", "why": "", "failed": 0}
        try:
            if (run := read_valid(store, settings)) is not None:
                row |= {"state": "complete"} if is_complete(run, study.keep) else {}
                row["failed"] = run.failed_at_epoch or 0
        except DamagedRunError as error:
            row |= {"state": "damaged", "why": str(error)}
        rows.append(row)
    return pd.DataFrame(rows).drop_duplicates("id").set_index("id")


# The long frame, and from it a row a cell and method


def long_frame(study: Study, runs: RunFrame, figure: str) -> pd.DataFrame:
    """Return the planned runs, a row each: `cell` (its place), `method`, `setting`, `seed`, `run` (its id), `value`.

    `value` and `validation` are NaN where a run is not complete (`there`), `gain` is the value minus that of the
    baseline with the same seed (`base`). `extra` marks further seeds of the baseline. Ordered by seed.
    """
    rows = []
    for place, cell in enumerate(study.cells_list()):
        for method in study.methods:
            # Of settings that are the same run, the first.
            by_run = {study.run(cell, method, own, study.seeds[0]): own for own in reversed(method.variants())}
            grid = [(own, seed, False) for seed in study.seeds for own in reversed(by_run.values())]
            grid += [({}, seed, True) for seed in study.extra_seeds if method.name == study.baseline]
            rows += [
                (place, method.name, setting_text(own), seed, study.run(cell, method, own, seed).run_id, extra)
                for own, seed, extra in grid
            ]
    frame = pd.DataFrame(rows, columns=["cell", "method", "setting", "seed", "run", "extra"])
    columns = {"value": column_of(figure), "validation": f"validation_{study.figure}", "failed": "failed_at_epoch"}
    for name, column in columns.items():
        frame[name] = frame["run"].map(runs[column]).astype(float) if len(runs) else np.nan
    base = frame[(frame["method"] == study.baseline) & ~frame["extra"]].set_index(["cell", "seed"])["value"]
    frame["base"] = base.reindex(pd.MultiIndex.from_frame(frame[["cell", "seed"]])).to_numpy()
    return frame.assign(gain=frame["value"] - frame["base"], there=frame["run"].isin(runs.index), chosen=False)


def gains_of(study: Study, values: pd.DataFrame, figure: str) -> pd.DataFrame:
    """Return a row for every cell and method, in the order of the study, and mark the chosen settings in `values`.

    `seeds` are complete, `choices` their settings; `setting` is the choice of all seeds. `gain` is a `Gain`,
    None for the baseline and where no seed is complete; `p` is corrected for all comparisons of the study. Of a grid of
    `k` settings, `best` is the mean of the best one on test, and `best_of_k` that of as many baseline runs.
    """
    cells, base, measure, rows = study.cells_list(), study.method(study.baseline), FIGURES[figure][0], []
    parts: Any = values.groupby(["cell", "method"], sort=False)
    for (place, name), own in parts:
        grid, method, is_base = own[~own["extra"]], study.method(name), name == study.baseline
        k, trouble = len(grid) // len(study.seeds), None  # a row a seed, a column a setting
        gain, validation = (grid[column].to_numpy().reshape(-1, k) for column in ("gain", "validation"))
        whole = ~np.isnan(gain).any(1)
        if measure and own["there"].any() and own["value"].isna().all():
            trouble = f"no {figure} on record; try {measure}_last, or train again"
        if k > 1 and np.isnan(validation[whole]).any():
            trouble = "no validation accuracy to choose a setting by: give the study a validation part"
            whole[:] = False
        validation = validation[whole] if k > 1 else np.zeros((whole.sum(), 1))
        picks = stats.choose_leaving_one_out(validation) if whole.any() else np.zeros(0, dtype=np.intp)
        chosen = grid.iloc[np.flatnonzero(whole) * k + picks]
        values.loc[chosen.index, "chosen"] = True
        shown = grid["setting"].iloc[stats.choose(validation) if whole.any() else 0] if whole.any() or k == 1 else ""
        row = {"cell": place, "method": name, "setting": shown, "settings": k, "problem": trouble}
        row |= {"choices": tuple(chosen["setting"]), "seeds": tuple(chosen["seed"]), "planned": len(study.seeds)}
        row |= {"runs": int(own["there"].sum()), "runs_planned": len(own), "failed": int(own["failed"].count())}
        row |= {
            "mean": statistics.fmean(chosen["value"]) if whole.any() else np.nan,
            "spread": statistics.stdev(chosen["value"]) if whole.sum() > 1 else np.nan,
            "gain": paired_gain(chosen["gain"].tolist(), chosen=int(k > 1)) if whole.any() and not is_base else None,
        }
        run, plain = (study.run(cells[place], side, side.variants()[0], study.seeds[0]) for side in (method, base))
        theirs = paper.published(None if measure else study.paper, run, None if is_base else plain)  # accuracies only
        row |= {"paper": theirs, "paper_gain": np.nan if theirs is None or theirs.gain is None else theirs.gain}
        if row["gain"] and k > 1:
            pool = values["value"][(values["cell"] == place) & (values["method"] == study.baseline)].dropna()
            row |= _best(run, grid, chosen, values, pool.tolist())
        rows.append(row)
    optional = dict.fromkeys(("k", "best", "best_gain", "best_of_k", "baseline_mean", "p"), np.nan)
    gains = pd.DataFrame([{**optional, **row} for row in rows])
    gains = gains.astype(dict.fromkeys(("gain", "paper", "problem"), object))
    tested = [place for place, own in enumerate(gains["gain"]) if own is not None and own.seeds > 1]
    gains.loc[tested, "p"] = holm([gains["gain"][place].p for place in tested])
    return gains


def _best(
    run: Settings, grid: pd.DataFrame, chosen: pd.DataFrame, values: pd.DataFrame, pool: list[float]
) -> dict[str, Any]:
    """Return the best of a grid on test, one a seed, beside the best of as many runs of the baseline.

    For a method of the paper, ρ = 0 is one of the tries: no weighting with the same mechanism.
    """
    whole = grid[grid["seed"].isin(chosen["seed"])]
    tests: stats.Figures = whole["value"].to_numpy().reshape(len(chosen), -1)
    if run.weighting == "aol":
        known = values.drop_duplicates("run").set_index("run")["value"]
        zeros = known.reindex([replace(run, weighting="none", seed=seed).run_id for seed in chosen["seed"]]).to_numpy()
        tests = tests if np.isnan(zeros).any() else np.column_stack([zeros, tests])
    best, k = tests.max(1), tests.shape[1]
    return {
        "k": k,
        "best": float(best.mean()),
        "best_gain": float((best - chosen["base"].to_numpy()).mean()),
        "best_of_k": stats.best_of_k(pool, k),
        "baseline_mean": statistics.fmean(pool),
    }


def setting_text(variant: Mapping[str, Value]) -> str:
    """Return a setting of a grid in a few characters."""
    words = []
    for name, value in variant.items():
        plain = isinstance(value, str) and name in ("level", "mechanism", "loss", "weighting")
        before = "" if plain else f"{SYMBOLS[name]}=" if name in SYMBOLS else f"{name} "
        words.append(before + word(value))
    return " ".join(words)
