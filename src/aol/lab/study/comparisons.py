"""The results of a study: what each method gains in each cell, from the study and a frame of runs.

A seed counts for a method when every run of its grid, and the baseline's, is complete: a part of a grid is never shown
as the whole. The setting of each seed is chosen by the validation accuracy of the other seeds. The same runs always
give the same results.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from aol._values import did_you_mean
from aol.lab.settings import Settings, Value, WrongSettingsError, word
from aol.lab.study.correlations import Correlation, correlations, judge_correlations
from aol.lab.study.paper import Published, published, published_correlations, published_gain
from aol.lab.study.spec import Cell, Method, Study, Variant, settings_from
from aol.lab.study.stats import (
    BestOfTries,
    Figures,
    best_of_tries,
    chance_of_reaching,
    choose,
    choose_leaving_one_out,
    gain_over_best_of,
    gain_over_noise,
    pooled_gains,
    residual_noise,
)
from aol.lab.study.verdict import LEAST_SEEDS, Claim, claim, judge
from aol.lab.train.validate import problem, read_valid, settings_of
from aol.records.metrics import FIGURES, MEASURES, METRICS, measure_of, measure_text
from aol.records.record import DamagedRunError, Run
from aol.records.store import Store
from aol.records.table import RunFrame, frame_of
from aol.stats import Gain, holm, paired_gain

Column = Mapping[Hashable, float]  # by run id
Group = tuple[tuple[str, Value], ...]
SYMBOLS = {"rho": "ρ", "beta": "β", "power": "p", "gamma": "γ"}
LEAST_METHODS = 3  # for a common spread


@dataclass(frozen=True)
class Optimistic:
    """The best of a grid on test, one a seed, beside the best of as many baseline runs.

    `left` is the difference of the two, `reached` how often as many baseline runs are as good. Baseline runs differ in
    everything that a seed decides, data included, while the runs of a grid share a seed: that is a disadvantage of the
    grid. `within` is the grid's gain above the noise of runs with one seed; None with a single seed.
    """

    tries: int
    mean: float
    gain: float
    baseline: BestOfTries
    left: Gain
    reached: float | None
    within: Gain | None


@dataclass(frozen=True)
class Comparison:
    """One method in one cell. `values` and `differences` are by seed, in the order of `seeds`: the complete ones.

    `gain` is the paired difference to the baseline; None for the baseline itself and where no seed is complete. `p` is
    its p-value, corrected for all comparisons of the study; None where there is no test. `all_gains` are the gains of
    every setting with every complete seed, none chosen; `pool` the figures of all baseline runs in the cell.
    """

    cell: Cell
    method: str
    settings: int
    setting: str
    choices: tuple[str, ...]
    chosen: tuple[str, ...]
    seeds: tuple[int, ...]
    planned: int
    runs: int
    runs_planned: int
    failed: int
    values: tuple[float, ...]
    differences: tuple[float, ...]
    all_gains: tuple[float, ...]
    pool: tuple[float, ...]
    gain: Gain | None
    optimistic: Optimistic | None
    paper: Published | None
    paper_gain: float | None
    problem: str | None
    p: float | None = None

    @property
    def name(self) -> str:
        """The method and its setting."""
        return f"{self.method} {self.setting}".strip()

    @property
    def apart(self) -> bool:
        """Whether seeds use different settings."""
        return len(set(self.choices)) > 1

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class StudyResults:
    """The results of a study, as far as its runs are complete.

    Args:
        study: what was planned.
        figure: the part of the test curve that is shown.
        frame: the complete runs.
        damaged: files that were not used, and why.
        comparisons: one for each cell and method, in the order of the study.
        verdicts: on the study as a whole: for each method of the paper or, without such, for each method.
        groups: on groups of cells that differ in one axis only, corrected for their number; empty if there is one.
        rivals: each method of the paper against each other method, corrected for their number.
        correlations: by cell, where nothing is compared.
    """

    study: Study
    figure: str
    frame: RunFrame
    damaged: Sequence[tuple[str, str]]
    comparisons: Sequence[Comparison]
    verdicts: Sequence[Claim]
    groups: Sequence[tuple[Group, Claim]]
    rivals: Sequence[Claim]
    correlations: Sequence[tuple[Cell, Sequence[Correlation]]]
    _by_figure: dict[str, StudyResults] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def runs(self) -> dict[str, Run]:
        """The records of the complete runs, by id."""
        return self.frame.runs if len(self.frame) else {}

    @property
    def measured(self) -> str:
        """What the figure is of: "accuracy", "worst class" and so on."""
        return measure_text(self.figure)

    @property
    def beside_paper(self) -> bool:
        """Whether the paper has such figures: it has accuracies only."""
        return self.study.paper is not None and self.measured == "accuracy"

    @property
    def runs_planned(self) -> int:
        """How many runs the study has."""
        return len(self.study.all_runs())

    @property
    def runs_failed(self) -> int:
        """How many of the complete runs diverged; a run that several cells share counts once."""
        return int(self.frame["failed_at_epoch"].notna().sum()) if len(self.frame) else 0

    @property
    def tests(self) -> int:
        """How many comparisons the p-values are corrected for."""
        return sum(each.p is not None for each in self.comparisons)

    @property
    def correlation_verdict(self) -> tuple[str, str]:
        """The verdict on the correlations, and its sentence."""
        own = [each for _, found in self.correlations for each in found]
        return judge_correlations(own, len(self.correlations), len(self.study.cells_list()))

    @property
    def has_figures(self) -> bool:
        """Whether there is anything to show: a complete seed of a method that is compared, or a correlation."""
        return bool(self.correlations) or any(each.differences for each in self.comparisons)

    @cached_property
    def pooled(self) -> dict[str, Gain]:
        """The gain of every method over the cells in which all methods are complete, with one spread for all.

        Empty with fewer than three seeds or methods.
        """
        names = [method.name for method in self.study.methods]
        cells = [[each for each in self.comparisons if each.cell == cell] for cell in self.study.cells_list()]
        whole = [cell for cell in cells if all(len(each.seeds) >= LEAST_SEEDS for each in cell)]
        every = [each for cell in whole for each in cell]
        seeds = [seed for seed in whole[0][0].seeds if all(seed in each.seeds for each in every)] if whole else []
        if len(seeds) < LEAST_SEEDS or len(names) < LEAST_METHODS:
            return {}
        by_cell = [[[each.values[each.seeds.index(seed)] for each in cell] for seed in seeds] for cell in whole]
        chosen = [int(any(each.settings > 1 for each in every if each.method == name)) for name in names]
        gains = pooled_gains(np.array(by_cell).mean(0), names.index(self.study.baseline), chosen)
        return {name: gain for name, gain in zip(names, gains, strict=False) if name != self.study.baseline}

    @property
    def side_by_side(self) -> bool:
        """Whether methods can be compared with each other, and not only with the baseline."""
        return any(each.gain for each in self.rivals) or bool(self.pooled)

    def of(self, method: str) -> list[Comparison]:
        """Return a method's comparisons in the cells that a verdict is on; without such, in all with a gain."""
        own = [each for each in self.comparisons if each.method == method and each.differences]
        return [each for each in own if len(each.seeds) >= LEAST_SEEDS] or own

    def with_figure(self, figure: str) -> StudyResults:
        """Return the results of the same runs by another figure."""
        if figure == self.figure:
            return self
        if figure not in self._by_figure:
            self._by_figure[figure] = results_of(self.study, self.frame, figure=figure)
        return self._by_figure[figure]


# Runs


def finished_runs(store: Store) -> RunFrame:
    """Return all complete runs of the engine in a store; damaged and unfinished ones are left out."""
    known = ((run, settings_of(run)) for run in store if run.finished)
    valid = (run for run, settings in known if settings is not None and problem(run, settings) is None)
    return frame_of((store.path(run.id), run) for run in valid)


def study_results(
    study: Study, store: Store, frame: RunFrame | None = None, *, figure: str | None = None, more_seeds: bool = True
) -> StudyResults:
    """Return the results of a study from a store; its runs are read here unless a frame of them is given.

    Seeds that are not in the study, but were trained for it, count as well unless `more_seeds` is false.
    """
    known = finished_runs(store) if frame is None else frame
    whole = with_trained_seeds(study, known) if more_seeds and study.more_seeds else study
    runs = {run.run_id: run for run in whole.all_runs()}
    there = [name for name in runs if name in known.index]
    damaged = []
    for name in runs.keys() - set(there):
        try:
            read_valid(store, runs[name])
        except DamagedRunError as error:
            damaged.append((f"{name}/run.json", str(error)))
    return results_of(whole, known.loc[there], figure=figure, damaged=sorted(damaged))


def with_trained_seeds(study: Study, frame: RunFrame) -> Study:
    """Return the study with every seed that a compared method was trained with, whole grid; its own seeds first."""
    compared = [method for method in study.methods if method.name != study.baseline] or list(study.methods)
    grids = [study.runs(cell, each, (0,)) for cell in study.cells_list() for each in compared]
    trained: dict[Settings, set[int]] = {}
    for run in frame.runs.values():
        seed = run.settings.get("seed", 0)
        assert isinstance(seed, int)  # as in all runs of the engine
        trained.setdefault(settings_from(**{**run.settings, "seed": 0}), set()).add(seed)
    whole = [set.intersection(*(trained.get(run, set()) for run in grid)) for grid in grids]
    seeds = sorted(set().union(*whole) - set(study.seeds))
    return replace(study, seeds=(*study.seeds, *seeds)) if seeds else study


def baseline_run(study: Study, cell: Cell, seed: int) -> Settings:
    """Return the baseline's run in a cell."""
    baseline = study.method(study.baseline)
    return study.run(cell, baseline, baseline.variants()[0], seed)


# Results


def results_of(
    study: Study, frame: RunFrame, *, figure: str | None = None, damaged: Sequence[tuple[str, str]] = ()
) -> StudyResults:
    """Return the results of a study; by default of the figure by which its settings are chosen.

    A measure alone ("worst_class") means that figure of it ("worst_class_tail_mean").
    """
    wanted = study.figure if figure is None else figure
    wanted = f"{wanted}_{study.figure}" if wanted in MEASURES else wanted
    check_figure(study, wanted)
    comparisons = compare(study, frame, wanted)
    methods = [method.name for method in study.methods if method.name != study.baseline]
    claims = study.claimed_methods()
    return StudyResults(
        study=study,
        figure=wanted,
        frame=frame,
        damaged=tuple(damaged),
        comparisons=tuple(comparisons),
        verdicts=judge([claim(comparisons, name, largest_loss=study.largest_loss) for name in claims]),
        groups=_groups(study, comparisons, claims),
        rivals=judge([claim(comparisons, name, rival) for name in claims for rival in methods if rival not in claims]),
        correlations=() if methods else _correlations(study, frame),
    )


def check_figure(study: Study, figure: str) -> None:
    """Raise if a study has no such figure."""
    if figure not in FIGURES:
        parts, measures = ", ".join(METRICS), ", ".join(MEASURES)
        raise WrongSettingsError(
            f"figure must be one of {parts}, the same with averaged_ before it, or one of {measures}, also with _last "
            f"and so on behind it, not {figure!r}.{did_you_mean(figure, (*FIGURES, *MEASURES))}"
        )
    tried = len(study.method(study.baseline).variants())
    if tried > 1:
        raise WrongSettingsError(f"{study.name}: the baseline {study.baseline} must have one setting, not {tried}.")
    run = baseline_run(study, study.cells_list()[0], study.seeds[0])
    if "second_half_mean" in figure and run.scenario != "stream":
        raise WrongSettingsError(f"figure {figure} is for streams; {study.name} has last, tail_mean and best.")
    if figure.startswith("averaged_"):
        raise WrongSettingsError(f"figure {figure} needs an averaged network, and {study.name} has none (average).")


def axis(study: Study) -> str | None:
    """Return the axis of cells over which results are averaged first: the one of numbers with the most values."""
    numbers = {name: values for name, values in study.cells.items() if not any(isinstance(v, str) for v in values)}
    return max(numbers, key=lambda name: len(numbers[name]), default=None)


def _groups(study: Study, comparisons: Sequence[Comparison], claims: Sequence[str]) -> list[tuple[Group, Claim]]:
    along = axis(study)
    parts: dict[Group, list[Comparison]] = {}
    for each in comparisons:
        parts.setdefault(tuple(item for item in each.cell.items() if item[0] != along), []).append(each)
    parts = {name: part for name, part in parts.items() if any(each.seeds for each in part)}
    if len(parts) < 2:
        return []
    asked = [(name, claim(parts[name], method, largest_loss=study.largest_loss)) for method in claims for name in parts]
    return list(zip((name for name, _ in asked), judge([each for _, each in asked]), strict=True))


def _correlations(study: Study, frame: RunFrame) -> list[tuple[Cell, list[Correlation]]]:
    """Return the correlations of every cell that has some, with the paper's, corrected for their number."""
    found: list[tuple[Cell, list[Correlation]]] = []
    for cell in study.cells_list():
        runs = study.runs(cell, study.method(study.baseline))
        paper = published_correlations(study.paper, runs[0])
        own = [replace(each, paper=paper.get(each.signal)) for each in correlations(records(frame, runs))]
        found += [(cell, own)] if own else []
    p = iter(holm([each.p for _, own in found for each in own]))
    return [(cell, [replace(each, p_corrected=next(p)) for each in own]) for cell, own in found]


def records(frame: RunFrame, runs: Iterable[Settings]) -> list[Run]:
    """Return the records of those of some runs that are in the frame."""
    names = [name for run in runs if (name := run.run_id) in frame.index]
    return list(frame.loc[names].runs.values()) if names else []


# Methods in cells


def compare(study: Study, frame: RunFrame, figure: str) -> list[Comparison]:
    """Return a comparison for every cell and method, in the order of the study, with corrected p-values."""
    column = figure if figure.startswith("averaged_") else f"test_{figure}"
    names = (column, f"validation_{study.figure}", "failed_at_epoch")
    columns = [frame[name].to_dict() if len(frame) else {} for name in names]
    found = [_comparison(study, cell, each, figure, *columns) for cell in study.cells_list() for each in study.methods]
    tested = [each.gain for each in found if each.gain and each.gain.seeds > 1]
    adjusted = iter(holm([gain.p for gain in tested]))
    return [replace(each, p=next(adjusted)) if each.gain and each.gain.seeds > 1 else each for each in found]


def chosen_runs(results: StudyResults, cell: Cell, method: str) -> dict[int, Run]:
    """Return the runs of a method in a cell that are shown, by complete seed: those in the chosen setting."""
    comparison = next(each for each in results.comparisons if each.cell == cell and each.method == method)
    return {seed: results.runs[name] for seed, name in zip(comparison.seeds, comparison.chosen, strict=True)}


def _read(column: Column, runs: Sequence[Settings]) -> Figures:
    """Return a column of the frame for some runs, NaN where there is none."""
    return np.array([column.get(run.run_id, np.nan) for run in runs], dtype=np.float64)


def _comparison(
    study: Study, cell: Cell, method: Method, figure: str, on_test: Column, on_validation: Column, failed: Column
) -> Comparison:
    is_base, base = method.name == study.baseline, study.method(study.baseline)
    variants = _distinct(study, cell, method)
    grid = [study.run(cell, method, variant, seed) for seed in study.seeds for variant in variants]
    baseline = [baseline_run(study, cell, seed) for seed in study.seeds]
    more = study.runs(cell, base, study.extra_seeds)
    planned = grid + (more if is_base else [])

    shape = len(study.seeds), len(variants)  # a row a seed, a column a setting
    test, theirs = _read(on_test, grid).reshape(shape), _read(on_test, baseline)
    validation = _read(on_validation, grid).reshape(shape) if shape[1] > 1 else np.zeros(shape)
    whole, problem = np.array(~np.isnan(np.column_stack([test, theirs])).any(1)), None
    measure = measure_of(figure)
    runs = [run.run_id for run in planned if run.run_id in on_test]
    if measure and runs and all(np.isnan(on_test[each]) for each in runs):
        problem = f"no {figure} on record; try {measure}_last, or train again"
    if np.isnan(validation[whole]).any():
        problem = "no validation accuracy to choose a setting by: give the study a validation part"
        whole[:] = False
    pool = [float(value) for value in _read(on_test, baseline + more) if not np.isnan(value)]
    seeds = tuple(seed for seed, complete in zip(study.seeds, whole, strict=True) if complete)
    test, theirs, validation = test[whole], theirs[whole], validation[whole]

    own = choose_leaving_one_out(validation).tolist() if seeds else []
    values = test[np.arange(len(own)), own] if seeds else theirs
    differences = () if is_base else tuple((values - theirs).tolist())
    optimistic = None
    if differences and len(variants) > 1:
        optimistic = _optimistic(_with_zero(study, cell, method, seeds, test, on_test), theirs, pool)
    paper = study.paper if measure is None else None  # it has accuracies only
    return Comparison(
        cell=cell,
        method=method.name,
        settings=len(variants),
        setting=setting_text(variants[choose(validation) if seeds else 0]) if seeds or len(variants) == 1 else "",
        choices=tuple(setting_text(variants[place]) for place in own),
        chosen=tuple(
            study.run(cell, method, variants[place], seed).run_id for seed, place in zip(seeds, own, strict=True)
        ),
        seeds=seeds,
        planned=len(study.seeds),
        runs=len(runs),
        runs_planned=len(planned),
        failed=int((~np.isnan(_read(failed, planned))).sum()),
        values=tuple(values.tolist()),
        differences=differences,
        all_gains=tuple((test - theirs[:, None]).ravel().tolist()),
        pool=tuple(pool),
        gain=paired_gain(differences, chosen=int(len(variants) > 1)) if differences else None,
        optimistic=optimistic,
        paper=published(paper, grid[0]),
        paper_gain=None if is_base else published_gain(paper, grid[0], baseline[0]),
        problem=problem,
    )


def _distinct(study: Study, cell: Cell, method: Method) -> list[Variant]:
    """Return the settings of a grid; of those that are the same run, the first."""
    by_run = {study.run(cell, method, variant, study.seeds[0]): variant for variant in reversed(method.variants())}
    return list(reversed(by_run.values()))


def _with_zero(
    study: Study, cell: Cell, method: Method, seeds: Sequence[int], test: Figures, on_test: Column
) -> Figures:
    """Return the test figures of a grid; for a method of the paper with those at ρ = 0, which is one of its tries.

    ρ = 0 is no weighting with the same mechanism.
    """
    runs = [study.run(cell, method, method.variants()[0], seed) for seed in seeds if study.of_paper(method)]
    zeros = [replace(run, weighting="none") for run in runs]
    values = _read(on_test, zeros)
    return np.column_stack([values, test]) if zeros and not np.isnan(values).any() else test


def _optimistic(tests: Figures, baseline: Figures, pool: Sequence[float]) -> Optimistic:
    """Return the best of a grid on test, of figures `[S, K]`, beside the best of as many runs of the baseline."""
    tries = int(tests.shape[1])
    best = tests.max(1)
    gains, theirs, noise = best - baseline, best_of_tries(pool, tries), residual_noise(tests)
    chances = [chance_of_reaching(pool, tries, float(value)) for value in best] if tries <= len(pool) else []
    return Optimistic(
        tries=tries,
        mean=float(best.mean()),
        gain=float(gains.mean()),
        baseline=theirs,
        left=gain_over_best_of(best, theirs),
        reached=statistics.fmean(chances) if chances else None,
        within=gain_over_noise(gains, tries, noise) if noise and noise[0] else None,
    )


def setting_text(variant: Variant) -> str:
    """Return a setting of a grid in a few characters.

    >>> setting_text({"rho": 0.5, "level": "class"})
    'ρ=0.5 class'
    """
    words = []
    for name, value in variant.items():
        plain = isinstance(value, str) and name in ("level", "mechanism", "loss", "weighting")
        before = "" if plain else f"{SYMBOLS[name]}=" if name in SYMBOLS else f"{name} "
        words.append(before + word(value))
    return " ".join(words)
