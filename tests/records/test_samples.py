"""What is kept of samples, against lists that keep everything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

import aol
from aol.records.history import SampleHistory, answer
from aol.records.record import DamagedRunError
from aol.records.samples import (
    read_ids,
    read_samples,
    read_tested,
    restore_history,
    write_names,
    write_samples,
    write_tested,
)  # fmt: skip

CPU = torch.device("cpu")


def test_a_network_that_diverged_answers_nothing() -> None:
    found = answer(torch.full((1, 1, 3), torch.nan), torch.tensor([[0]]))
    assert bool(found[1:3].isnan().all())
    assert found[0].item() == -1


def observed(epochs: int, size: int, seed: int, sparse: bool = True):
    """What a loop sees: by epoch, which samples and their logits."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        count = int(torch.randint(1, size, (), generator=generator)) if sparse else size
        yield torch.randperm(size, generator=generator)[:count], torch.randn(count, 3, generator=generator)


@pytest.mark.parametrize("absent", ["keep", "grow"])
def test_a_record_is_what_lists_of_everything_say(absent: str, tmp_path: Path) -> None:
    labels = torch.arange(20) % 3
    ages = aol.SampleAges(labels, absent=absent)
    record = SampleHistory(1, 20, absent=absent, device=CPU)
    confidences: list[list[float]] = [[] for _ in labels]
    others: list[list[float]] = [[] for _ in labels]
    last = [-1] * 20
    margins: list[list[tuple[float, float]]] = [[] for _ in labels]
    votes: list[list[int]] = [[] for _ in labels]
    history = []
    for index, logits in observed(9, 20, seed=4):
        ages.observe(index, logits.argmax(1) == labels[index])
        record.observe(index, answer(logits[None], labels[index][None]))
        for i, row in zip(index.tolist(), logits.softmax(1), strict=True):
            confidences[i].append(float(row[labels[i]]))
            others[i].append(max(float(v) for c, v in enumerate(row) if c != int(labels[i])))
            last[i] = int(row.argmax())
            votes[i] += [last[i]] if last[i] != int(labels[i]) else []
        ages.advance()
        record.advance(ages.age[None])
        history.append(ages.age.tolist())
        accuracy = float((logits.argmax(1) == labels[index]).double().mean())
        for i in index.tolist():
            p, q = confidences[i][-1], others[i][-1]
            margins[i].append(((q - p) / (q + p), accuracy**10 * (1 - accuracy) ** 2 + 1e-6))
    own = {"index": torch.arange(20), "label": labels, "age": ages.age, "ema": ages.ema}
    write_samples(tmp_path / "s", own | record.tensors(0), run="r", absent=absent)
    read = read_samples(tmp_path / "s", "r")
    assert read is not None
    columns = {name: value.tolist() for name, value in vars(read).items() if name != "answers"}
    assert read.answers.ages(np.arange(20)).tolist() == history
    assert columns["age"] == history[-1]
    assert columns["prediction"] == last
    for suggested, cast in zip(columns["suggested"], votes, strict=True):
        if not cast:
            assert suggested == -1
        for answer_ in cast:  # a majority wins, whatever the order
            assert suggested == answer_ or cast.count(answer_) <= len(cast) / 2
    assert columns["times"] == [len(each) for each in confidences]
    for name, lists in (("mean_confidence", confidences), ("mean_other", others)):
        wanted = [np.mean(each) if each else np.nan for each in lists]
        assert columns[name] == pytest.approx(wanted, abs=1e-6, nan_ok=True)
    weighted = [np.average([m for m, _ in v], weights=[w for _, w in v]) if v else np.nan for v in margins]
    assert columns["mean_margin"] == pytest.approx(weighted, abs=1e-5, nan_ok=True)
    assert columns["margin_weight"] == pytest.approx([sum(w for _, w in v) for v in margins], rel=1e-4)
    assert columns["confidence"] == pytest.approx([each[-1] if each else np.nan for each in confidences], nan_ok=True)


@pytest.mark.parametrize("absent", ["keep", "grow"])
def test_a_record_that_begins_late_has_the_true_ages(absent: str) -> None:
    labels = torch.arange(40) % 3
    ages, record, history = aol.SampleAges(labels, absent=absent), SampleHistory(1, 40, absent=absent, device=CPU), []
    for epoch, (index, logits) in enumerate(observed(7, 40, seed=7)):
        ages.observe(index, logits.argmax(1) == labels[index])
        ages.advance()
        if epoch >= 3:
            record.observe(index, answer(logits[None], labels[index][None]))
            record.advance(ages.age[None])
            history.append(ages.age.tolist())
    assert record.answers(0).ages(np.arange(40)).tolist() == history


def test_answers_of_before_do_not_count_again_where_only_ages_are_known() -> None:
    record = SampleHistory(1, 1, absent="keep", device=CPU)
    record.observe(torch.tensor([0]), answer(torch.tensor([[[0.0, 1.0986123]]]), torch.tensor([[0]])))
    record.advance(torch.tensor([[2]]))
    record.advance(torch.tensor([[3]]))
    record.observe(torch.tensor([0]), answer(torch.tensor([[[0.0, 0.0]]]), torch.tensor([[0]])))
    record.advance(torch.tensor([[1]]))
    assert record.tensors(0)["times"].tolist() == [2]
    assert record.tensors(0)["mean_confidence"].tolist() == pytest.approx([0.375])


def filled(epochs: int, runs: int = 2) -> SampleHistory:
    labels = torch.arange(11) % 3
    ages = aol.SampleAges(labels, rho=[0.5] * runs)
    record = SampleHistory(runs, 11, absent="keep", device=CPU)
    for epoch, (index, logits) in enumerate(observed(epochs, 11, seed=1, sparse=False)):
        shown = index[: 11 - epoch % 2]  # every other epoch sees all
        stacked = torch.stack([logits[: len(shown)] + run for run in range(runs)])
        stacked[0] *= -1.0
        label = labels[shown].expand(runs, -1)
        ages.observe(shown, stacked.argmax(2) == label)
        record.observe(shown, answer(stacked, label))
        ages.advance()
        record.advance(ages.age)
    return record


def same(one: SampleHistory, other: SampleHistory) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=0, equal_nan=True, msg=name)


def test_a_record_goes_through_its_state_and_through_files(tmp_path: Path) -> None:
    record = filled(5)
    fresh = SampleHistory(2, 11, absent="keep", device=CPU)
    fresh.load_state_dict(record.state_dict())
    same(fresh, record)
    labels = torch.arange(11) % 3
    record = filled(5, runs=1)
    age = torch.from_numpy(record.answers(0).last())
    own = {"index": labels.clone(), "label": labels, "age": age, "ema": age.float()}
    write_samples(tmp_path / "samples.safetensors", own | record.tensors(0), run="r", absent="keep")
    read = SampleHistory(1, 11, absent="keep", device=CPU)
    restore_history(read, tmp_path, "r", labels)
    same(read, record)
    assert torch.equal(read.state_dict()["age"], record.state_dict()["age"])
    with pytest.raises(DamagedRunError, match="of another run than 2"):
        read_samples(tmp_path / "samples.safetensors", "2")
    with pytest.raises(DamagedRunError, match="has a record of other samples"):
        restore_history(read, tmp_path, "r", labels.flip(0))


def test_a_damaged_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    assert read_samples(tmp_path / "nowhere", "r") is None
    (tmp_path / "s").write_bytes(b"half")
    with pytest.raises(DamagedRunError, match="not a whole file of samples"):
        read_samples(tmp_path / "s", "r")
    for flipped in (b"cat", b"grow", b"seen"):  # a value, what is known of the file, the name of a column
        write_samples(tmp_path / "s", {"seen": torch.tensor([*b"cat"], dtype=torch.uint8)}, run="r", absent="grow")
        content = (tmp_path / "s").read_bytes()
        at = content.index(flipped)
        (tmp_path / "s").write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        with pytest.raises(DamagedRunError, match="checksum does not match"):
            read_samples(tmp_path / "s", "r")
    (tmp_path / "s").write_bytes(save({"label": torch.ones(3).to(torch.float8_e4m3fn)}))  # NumPy has no such type
    with pytest.raises(DamagedRunError, match="not a whole file of samples"):
        read_samples(tmp_path / "s", "r")
    for name in ("label", "right"):
        write_samples(tmp_path / "s", {name: torch.tensor(1)}, run="r", absent="keep")
        with pytest.raises(DamagedRunError, match="not a file of samples of this version"):
            read_samples(tmp_path / "s", "r")


@pytest.mark.parametrize(
    ("name", "values"),
    [("label", torch.ones(11)), ("ema", torch.arange(11)), ("mean_margin", torch.linspace(-3e38, 3e38, 11))],
)
def test_columns_of_another_type_or_size_are_named(name: str, values: torch.Tensor, tmp_path: Path) -> None:
    own = {"index": torch.arange(11), "label": torch.arange(11) % 3, "age": torch.ones(11, dtype=torch.int32)}
    columns = own | {"ema": torch.ones(11), **filled(2).tensors(0), name: values}
    write_samples(tmp_path / "s", columns, run="r", absent="keep")
    with pytest.raises(DamagedRunError, match=f"not a file of samples of this version: see {name}"):
        read_samples(tmp_path / "s", "r")


def test_names_are_read_as_they_were_written(tmp_path: Path) -> None:
    names = ["cat.png", "caf\udce9.png", "dog.png"]
    write_names(tmp_path, names)
    assert read_ids(tmp_path, 3) == names
    with pytest.raises(DamagedRunError, match=r"ids\.json: not the names of 2 samples"):
        read_ids(tmp_path, 2)


def test_forgetting_epochs_leaves_the_ages_of_before() -> None:
    record, shorter = filled(5), filled(3)
    record.cut(3)
    assert len(record) == 3
    for run in range(2):
        assert (record.answers(run).right == shorter.answers(run).right).all()
    assert torch.equal(record.state_dict()["age"], shorter.state_dict()["age"])  # type: ignore[arg-type]
    assert int(record.tensors(0)["times"].max()) <= 3
    record.cut(0)
    assert record.answers(0).last().tolist() == [1] * 11


@pytest.mark.parametrize("answers", [torch.zeros(4), torch.zeros(4, 3), torch.zeros((4, 4), dtype=torch.int32)])
def test_answers_to_test_samples_of_another_shape_are_refused(answers: torch.Tensor, tmp_path: Path) -> None:
    path = tmp_path / "test.safetensors"
    assert read_tested(path, "id0") is None
    write_tested(path, answers, run="id0")
    with pytest.raises(DamagedRunError, match="answers to test samples"):
        read_tested(path, "id0")
