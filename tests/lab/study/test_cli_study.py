"""The words of `aol study`: what they print, and wrong ones refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aol.cli import main
from aol.lab.study import builtin_names
from aol.records.store import Store
from tests.support.tiny_sets import image_folder
from tests.support.tiny_studies import written


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    status = main(["study", *map(str, words)])
    heard = capsys.readouterr()
    return status, heard.out, heard.err


def test_list_names_every_built_in_study(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = said(capsys, "list")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[:-1]] == builtin_names()
    columns = {line.index(" runs  ") for line in out.splitlines() if " runs  " in line}
    assert len(columns) == 1  # names of any length
    _, out, _ = said(capsys, "list", "--json")
    assert {each["name"]: each["runs"] for each in json.loads(out)["studies"]}["period-10"] == 348


def test_a_study_not_yet_begun_is_all_missing_and_makes_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = said(capsys, "status", written(tmp_path), "--out", tmp_path / "none")
    assert status == 0
    assert "0/14 runs complete, 0 in progress, 14 missing, 0 damaged" in out
    assert not (tmp_path / "none").exists()


def test_restrictions_and_other_settings_are_read_from_the_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def runs(*words: str) -> int:
        return json.loads(said(capsys, "status", written(tmp_path), "--json", "--out", tmp_path / "o", *words)[1])[
            "runs"
        ]

    assert runs() == 14
    assert runs("--only", "imbalance=20") == 7
    assert runs("--only", "imbalance=20,5", "--only", "rho=0.2") == 10
    assert runs("--only", "method=none") == 6
    assert runs("--seeds", "1,2,3") == 2 * (3 + 1 + 6)
    assert runs("--set", "epochs=9", "--set", "precision=bf16") == 14


@pytest.mark.parametrize(("words", "refused"), [((), True), (("--only", "rho=0.2"), False)])
def test_a_grid_that_nothing_can_be_chosen_from_is_refused_before_it_is_trained(
    words: tuple[str, ...], refused: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("--set", "validation=0", "--set", "epochs=1", "--minutes", "0", "--out", tmp_path / "o")
    status, _, err = said(capsys, "run", written(tmp_path), *common, *words)
    assert (status == 2) is refused
    sentence = "without a validation part: --set validation=0.05, or"
    assert (sentence in err) is refused
    assert (tmp_path / "o" / "runs").exists() is not refused


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "nothing"], "There is no study 'nothing': no such file, and the built-in ones are arrival,"),
        (["run", "STUDY", "--only", "imbalance"], "--only must be NAME=VALUE, not 'imbalance'."),
        (["run", "STUDY", "--only", "imbalance=x"], "--only imbalance must be a number, not 'x'."),
        (["run", "STUDY", "--only", "colour=red"], "--only: 'colour' is not a setting of a run."),
        (
            ["run", "STUDY", "--only", "data=digits"],
            "short can be restricted by imbalance, rho, method; there is no 'data'.",
        ),
        (["run", "STUDY", "--only", "imbalance=7"], "short has imbalance 20, 5; there is no 7."),
        (["run", "STUDY", "--only", "method=cb"], "short has no method called 'cb', only none, aol."),
        (["run", "STUDY", "--set", "epochs=0"], "epochs must be"),
        (["run", "STUDY", "--set", "imbalance=3"], "imbalance varies in short: restrict it, instead of setting it."),
        (["run", "STUDY", "--seeds", "1,x"], "--seeds must be whole numbers"),
        (["run", "STUDY", "--seeds", "1,1"], "seeds must be different whole numbers of 0 or more, not [1, 1]."),
        (["run", "STUDY", "--set", "data=nowhere"], "The data set nowhere must be given: --data nowhere=FOLDER;"),
        (["run", "STUDY", "--set", "data=x", "--data", "x=/nowhere"], "'/nowhere': no such folder"),
        (["run", "STUDY", "--data", "digts=/photos"], "--data: the study names no data set 'digts'; it has digits."),
        (["run", "STUDY", "--set", "net=resnet34"], "net='resnet34' does not fit the images of digits"),
        (["run", "STUDY", "--out", "FILE"], "is, or is inside, a file and not a folder."),
        (
            ["run", "large-scale"],
            "The data set imagenet1k must be given: --data imagenet1k=FOLDER; or leave it out with",
        ),
        (["fly"], "invalid choice: 'fly'"),
    ],
)
def test_wrong_words_are_one_line(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    names = {"STUDY": written(tmp_path), "FILE": str(tmp_path / "file")}
    given = [names.get(word, word) for word in words]
    if words and words[0] != "fly" and "--out" not in words:
        given += ["--out", str(tmp_path / "out")]
    status, out, err = said(capsys, *given)
    assert status == 2, err
    assert sentence in err
    assert err.count("\n") == 1
    assert out == ""
    assert not list(tmp_path.glob("out/runs/*"))


@pytest.mark.parametrize("content", ['{"seconds":NaN}', "[" * 100_000])
def test_a_damaged_record_stops_no_command_and_is_named_and_done_again(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short, out = written(tmp_path), tmp_path / "out"
    part = ["--only", "imbalance=5", "--only", "method=none", "--set", "epochs=1", "--out", out]
    assert said(capsys, "run", short, *part)[0] == 0
    name = Store(out).ids()[0]
    (Store(out).path(name) / "run.json").write_text(content)
    for words in (["status", short, *part], ["show", short, *part], ["page", short, "--out", out]):
        status, text, err = said(capsys, *words)
        assert (status, err) == (0, ""), words
        assert name in text or words[0] == "page"  # the page has runs of the whole study
    status, _, err = said(capsys, "run", short, *part)
    assert status == 0
    assert f"{name}/run.json is damaged and its run is trained again: it " in err
    assert Store(out).read(name) is not None


def test_a_folder_with_other_classes_than_the_set_it_is_given_for_is_refused_before_it_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = image_folder(tmp_path / "photos")
    status, _, err = said(capsys, "run", written(tmp_path), "--out", tmp_path / "out", "--data", f"digits={photos}")
    assert status == 2
    assert f"--data digits={photos} has 3 classes, but digits has 10" in err


def test_ranges_of_seeds_and_close_names_are_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["status", written(tmp_path), "--out", tmp_path / "out", "--json", "--seeds"]
    assert said(capsys, *words, "1-3") == said(capsys, *words, "1,2,3")
    assert "Did you mean 'period-10'?" in said(capsys, "status", "period10")[2]
    assert "Did you mean 'imbalance'?" in said(capsys, "status", "period-10", "--only", "imbalanc=3")[2]
