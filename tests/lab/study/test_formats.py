"""Tables in every format: fit for 80 columns, Markdown and LaTeX that hold together, CSV and JSON that read back."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from aol.lab.settings import Settings
from aol.lab.study.comparisons import StudyResults
from aol.lab.study.formats import FORMATS, markdown_text, render, tex_text
from aol.lab.study.spec import Study, load
from tests.support.made_up import luck, records, results, study
from tests.support.running import PATIENCE


def _draw(run: Settings) -> tuple[float, float]:
    gain = {"none": 0.0, "aol": 0.01, "frequency": 0.04}.get(run.weighting, 0.02)
    return 0.7 + gain + 0.01 * luck(run), 0.7 + 0.01 * luck(run, salt=1)


def _table(plan: Study | None = None) -> StudyResults:
    chosen = plan or study(imbalances=(100, 50))
    return results(chosen, records(chosen.all_runs(), _draw))


@pytest.mark.parametrize("name", ["period-10-seeds", "offline-reweighting", "arrival", "limited-access"])
@pytest.mark.parametrize("optimistic", [False, True])
def test_a_terminal_of_80_columns_is_wide_enough(name: str, optimistic: bool) -> None:
    plan = load(name)
    small = replace(plan, seeds=(42, 1, 2), cells={axis: values[:2] for axis, values in plan.cells.items()})
    text = render(_table(small), "table", optimistic=optimistic)
    assert max(map(len, text.splitlines())) <= 80
    assert "imbalance" in text or "fraction" in text


def test_the_text_has_every_method_its_gain_and_the_paper() -> None:
    table = _table()
    text = render(table, "table")
    for line in table.comparisons:
        assert re.search(rf"^{line.method}\b", text, re.M)
    assert "72.20" in text  # the paper's plain training at imbalance 100
    assert "aol against none: " in text


def test_what_is_optimistic_is_shown_only_when_asked_for_and_says_so() -> None:
    for kind in FORMATS:
        assert "ptimistic" not in render(_table(), kind)
        assert "ptimistic" in render(_table(), kind, optimistic=True)


def test_the_best_epoch_is_called_optimistic_in_every_format() -> None:
    plan = study()
    table = results(plan, records(plan.all_runs(), _draw), figure="best")
    for name in ("table", "markdown", "latex", "json"):
        assert "optimistic" in render(table, name)


def test_a_partial_table_says_how_many_runs_there_are_and_gives_no_figure() -> None:
    plan = study()
    known = {run: each for run, each in records(plan.all_runs(), _draw).items() if run.rho != 0.9}
    table = results(plan, known)
    for name in ("table", "markdown", "latex"):
        text = render(table, name)
        assert "6/9 runs" in text
        assert "15/18 runs complete" in text
    (row,) = [row for row in csv.DictReader(io.StringIO(render(table, "csv"))) if row["method"] == "aol"]
    assert (row["runs"], row["runs_planned"], row["gain_points"], row["accuracy_percent"]) == ("6", "9", "", "")


def test_csv_reads_back_the_numbers() -> None:
    table = _table()
    rows = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert len(rows) == len(table.comparisons)
    for row, line in zip(rows, table.comparisons, strict=True):
        assert line.mean is not None
        assert float(row["accuracy_percent"]) == pytest.approx(100 * line.mean)
        assert row["method"] == line.method
        if line.gain is not None:
            assert line.gain.interval is not None
            assert line.p is not None
            assert float(row["gain_points"]) == pytest.approx(100 * line.gain.mean)
            assert float(row["gain_low_points"]) == pytest.approx(100 * line.gain.interval[0])
            assert float(row["p_corrected"]) == pytest.approx(line.p)
            assert row["bootstrap_low_points"]


def test_json_is_strict_and_has_rows_verdicts_and_notes() -> None:
    found = json.loads(render(_table(), "json", optimistic=True), parse_constant=lambda sign: pytest.fail(sign))
    assert found["verdicts"][0]["verdict"] in ("holds", "does not hold", "not enough runs")
    assert len(found["rows"]) == 6
    assert (found["runs"], found["runs_planned"]) == (36, 36)
    assert found["notes"]


def test_markdown_tables_have_the_same_cells_in_every_row() -> None:
    text = render(_table(), "markdown", optimistic=True)
    for block in re.split(r"\n\n", text):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in rows}) <= 1
    assert text.count("| --- |") == 4


def test_signs_of_markdown_are_not_taken_for_markdown() -> None:
    named = replace(study(), title="a|b *c* `d` <e> [f](g) ~h~ $i$")
    assert r"a\|b \*c\* \`d\` &lt;e> \[f](g) \~h\~ \$i\$" in render(_table(named), "markdown")
    assert markdown_text("tail_mean") == "tail_mean"


def test_latex_is_ascii_balanced_and_has_as_many_columns_in_every_row() -> None:
    text = render(_table(), "latex", optimistic=True)
    assert text.isascii()
    bare = re.sub(r"\\[\\{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    for part in text.split(r"\begin{tabular}")[1:]:
        columns = re.match(r"\{(l r*|lr*)\}", part)
        assert columns is not None
        body = part.split(r"\end{tabular}")[0]
        rows = [row for row in body.splitlines() if row.endswith(r"\\") and "multicolumn" not in row]
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(columns[1]) - 1}
        assert body.count(r"\toprule") == body.count(r"\bottomrule") == 1
    assert text.count(r"\begin{table}") == text.count(r"\end{table}")


@pytest.mark.parametrize("sign", list('\\&%$#_{}~^<>|±−–ρβγ"é\n😀'))
def test_every_sign_is_safe_in_latex(sign: str) -> None:
    text = tex_text(f"a{sign}b")
    assert text.isascii()
    assert text != f"a{sign}b"
    assert "\n" not in text


def test_long_tables_become_several_floats() -> None:
    plan = study(imbalances=range(1, 41))
    text = render(_table(plan), "latex")
    floats = text.split(r"\begin{tabular}")[1:]
    assert len(floats) == 5  # the last is that of the methods side by side
    assert all(part.count(r"\\") <= 45 for part in floats)
    assert sum(part.count("imbalance") for part in floats) == 40
    labels = re.findall(r"\\label\{([^}]*)\}", text)
    assert len(set(labels)) == len(labels) == 5


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here")
def test_latex_compiles(tmp_path: Path) -> None:
    head = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    named = replace(study(), title="50 % of $x_1$ & {more} #1 ~ ^ \\ < > |")
    (tmp_path / "page.tex").write_text(head + render(_table(named), "latex", optimistic=True) + r"\end{document}")
    words = ["pdflatex", "-draftmode", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout[-2000:]


def test_an_empty_study_is_still_a_table_in_every_format() -> None:
    table = results(study(), {})
    for kind in FORMATS:
        assert render(table, kind, optimistic=True)
    assert "0/18 runs complete" in render(table, "table")
    assert "72.20" in render(table, "table")
