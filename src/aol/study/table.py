"""A study and its records become a table: lines, corrected p-values, verdicts, and what it all was run on.

Assumes records that were checked when they were read. Everything here follows from study and records alone, so that the
same records always make the same table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aol.engine.intervals import holm
from aol.engine.settings import Value, WrongSettingsError
from aol.study import figures
from aol.study.correlations import Correlation, correlations, judge_correlations
from aol.study.lines import Line, Records, baseline_run, lines
from aol.study.published import published_correlations
from aol.study.records import Store
from aol.study.spec import Cell, Study
from aol.study.verdict import Claim, Verdict, claim, judge

Group = tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class Table:
    """A study as far as its records go.

    Args:
        study: what was planned.
        figure: what of the test curve is shown.
        records: the runs that are there.
        damaged: files that were not used, and why.
        lines: a method in a cell each, in the order of the study.
        p_values: of the lines' gains, corrected over all lines of the table; None where there is no test.
        verdicts: on the table as a whole, one for each method of the paper, or where it has none, for each method.
        groups: on groups of cells, which differ in one axis only, corrected over all of them; empty if there is one.
        rivals: each method of the paper against each other method, corrected over all of them.
        correlations: by cell, where nothing is compared.
    """

    study: Study
    figure: str
    records: Records
    damaged: Sequence[tuple[str, str]]
    lines: Sequence[Line]
    p_values: Sequence[float | None]
    verdicts: Sequence[Verdict]
    groups: Sequence[tuple[Group, Verdict]]
    rivals: Sequence[Verdict]
    correlations: Sequence[tuple[Cell, Sequence[Correlation]]]

    @property
    def runs_planned(self) -> int:
        """How many runs the study has."""
        return len(self.study.all_runs())

    @property
    def runs_failed(self) -> int:
        """How many of the runs that are there diverged; one that several cells share is one."""
        return sum(record.failed_at_epoch is not None for record in self.records.values())

    @property
    def tests(self) -> int:
        """How many comparisons the p-values of the lines are corrected for."""
        return sum(p is not None for p in self.p_values)

    @property
    def correlation_list(self) -> list[Correlation]:
        """The correlations of all cells."""
        return [each for _, own in self.correlations for each in own]

    @property
    def correlation_verdict(self) -> tuple[str, str]:
        """The verdict on the correlations, and its sentence."""
        return judge_correlations(self.correlation_list, len(self.correlations), len(self.study.cells_list()))


def recorded_table(
    study: Study, store: Store, records: Records | None = None, *, figure: str | None = None, more_seeds: bool = True
) -> Table:
    """Return the table of a study from the records of a folder, which are read here unless they are given.

    Seeds that are not in the study, but were run for it, count as well unless `more_seeds` is false: no run that is
    there is left out.
    """
    known = {record.settings: record for record in store} if records is None else records
    whole = with_recorded_seeds(study, known) if more_seeds else study
    runs = whole.all_runs()
    missing = [run.run_id for run in runs if run not in known]
    damaged = [(path.name, reason) for path, reason in store.damaged(missing)]
    return make_table(whole, {run: known[run] for run in runs if run in known}, figure=figure, damaged=damaged)


def with_recorded_seeds(study: Study, records: Records) -> Study:
    """Return the study with every seed that any of its compared methods was run with; its own seeds first."""
    compared = [method for method in study.methods if method.name != study.baseline] or list(study.methods)
    cells = study.cells_list()
    wanted = {replace(run, seed=0) for cell in cells for each in compared for run in study.runs(cell, each, (0,))}
    found = sorted({run.seed for run in records if run.seed not in study.seeds and replace(run, seed=0) in wanted})
    return replace(study, seeds=(*study.seeds, *found)) if found else study


def make_table(
    study: Study, records: Records, *, figure: str | None = None, damaged: Sequence[tuple[str, str]] = ()
) -> Table:
    """Return the table of a study; by default of the figure that its settings are chosen by."""
    wanted = study.figure if figure is None else figure
    _check(study, wanted)
    found = lines(study, records, wanted)
    gains = [line.gain if line.gain is not None and line.gain.seeds > 1 else None for line in found]
    adjusted = iter(holm([gain.p for gain in gains if gain is not None]))
    methods = [method.name for method in study.methods if method.name != study.baseline]
    claims = [name for name in methods if study.of_paper(study.method(name))] or methods
    return Table(
        study=study,
        figure=wanted,
        records=records,
        damaged=tuple(damaged),
        lines=tuple(found),
        p_values=tuple(None if gain is None else next(adjusted) for gain in gains),
        verdicts=judge([claim(found, name) for name in claims]),
        groups=_groups(study, found, claims),
        rivals=judge([claim(found, name, rival) for name in claims for rival in methods if rival not in claims]),
        correlations=() if methods else _correlations(study, records),
    )


def _check(study: Study, figure: str) -> None:
    allowed = (*figures.PLAIN, *figures.AVERAGED)
    if figure not in allowed:
        raise WrongSettingsError(f"figure must be one of {', '.join(allowed)}, not {figure!r}.")
    tried = len(study.method(study.baseline).variants())
    if tried > 1:
        raise WrongSettingsError(f"{study.name}: the baseline {study.baseline} must have one setting, not {tried}.")
    run = baseline_run(study, study.cells_list()[0], study.seeds[0])
    if "second_half_mean" in figure and run.scenario != "stream":
        raise WrongSettingsError(f"figure {figure} is for streams; {study.name} has last, tail_mean and best.")
    if figure.startswith("averaged_") and run.average == 0.0:
        raise WrongSettingsError(f"figure {figure} needs an averaged network, and {study.name} has none (average).")


def axis(study: Study) -> str | None:
    """Return the axis of cells along which a table is averaged first: the one of numbers with the most values."""
    numbers = {name: values for name, values in study.cells.items() if not any(isinstance(v, str) for v in values)}
    return max(numbers, key=lambda name: len(numbers[name]), default=None)


def group_of(study: Study, cell: Cell) -> Group:
    """Return what cells of one group have in common: all but the axis of numbers."""
    along = axis(study)
    return tuple((name, value) for name, value in cell.items() if name != along)


def _groups(study: Study, found: Sequence[Line], claims: Sequence[str]) -> list[tuple[Group, Verdict]]:
    names = list(dict.fromkeys(group_of(study, line.cell) for line in found))
    if len(names) < 2:
        return []
    parts: Mapping[Group, list[Line]] = {
        name: [line for line in found if group_of(study, line.cell) == name] for name in names
    }
    asked: list[tuple[Group, Claim]] = [(name, claim(parts[name], method)) for method in claims for name in names]
    verdicts = judge([each for _, each in asked])
    return [(name, verdict) for (name, _), verdict in zip(asked, verdicts, strict=True)]


def _correlations(study: Study, records: Records) -> list[tuple[Cell, list[Correlation]]]:
    """Return the correlations of every cell that has some, with the paper's, corrected over all of them."""
    found: list[tuple[Cell, Correlation]] = []
    for cell in study.cells_list():
        runs = study.runs(cell, study.method(study.baseline))
        paper = published_correlations(runs[0].imbalance) if study.paper else {}
        own = correlations([records[run] for run in runs if run in records])
        found += [(cell, replace(each, paper=paper.get(each.signal))) for each in own]
    corrected = zip(found, holm([each.p for _, each in found]), strict=True)
    done = [(cell, replace(each, p_corrected=p)) for (cell, each), p in corrected]
    return [(cell, own) for cell in study.cells_list() if (own := [each for other, each in done if other == cell])]
