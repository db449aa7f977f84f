"""A watch: the ages of a naive loop, a training that does not notice it, and what is there after an abrupt end."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import warnings
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import aol
from aol.records.datasets import first_that_differs, labels_of
from aol.records.previews import read_previews
from aol.records.record import read_run
from aol.records.watch import Watch
from aol.report.run_data import load
from tests.support.processes import Processes
from tests.support.scenarios import watched

X = torch.randn(23, 3, generator=torch.Generator().manual_seed(1))
Y = torch.arange(23) % 3
DATA, TEST = TensorDataset(X, Y), TensorDataset(X[:7] + 0.1, Y[:7])


def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))


def train(net: nn.Module, seen: list[Tensor] | None = None) -> None:
    """Train for an epoch, with all the randomness that a training has."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for x, y in DataLoader(DATA, batch_size=5, shuffle=True):
        x = x + random.random() * torch.from_numpy(np.random.rand(3)).float()  # noqa: NPY002
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if seen is not None:
            seen.append(x)


def start(seed: int = 5) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def right(net: nn.Module) -> list[bool]:
    net.eval()
    with torch.no_grad():
        answers = (net(X).argmax(1) == Y).tolist()
    net.train()
    return answers


def test_the_last_answers_to_test_samples_are_kept_with_pictures_of_the_mistakes(tmp_path: Path) -> None:
    images = torch.rand(23, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    train_set, test_set = TensorDataset(images, Y), TensorDataset(images[:7].flip(0), Y[:7])
    for _ in range(2):  # begun, and resumed
        with Watch(tmp_path, train_set, test_set, resume=True) as watch:
            nn.init.normal_(net[1].weight)
            watch.epoch(net)
    with torch.no_grad():
        probability = net(test_set.tensors[0]).softmax(-1)
    top, answer = probability.max(-1)
    (data,) = load(tmp_path)
    assert data.tested is not None
    assert data.tested.label.tolist() == Y[:7].tolist()
    assert data.tested.prediction.tolist() == answer.tolist()
    assert data.tested.top == pytest.approx(top.numpy())
    assert data.tested.confidence == pytest.approx(probability[range(7), Y[:7]].numpy())
    wrong = torch.nonzero(answer != Y[:7]).flatten().tolist()
    assert sorted(data.tested.surest.tolist()) == wrong == sorted(data.tested.previews.images)
    assert data.tested.previews.images[wrong[0]].shape == (1, 8, 8)


def test_ages_are_those_of_a_naive_loop_and_the_record_holds_both_sets(tmp_path: Path) -> None:
    start()
    net, age, smoothed = model(), [1.0] * 23, [float("nan")] * 23
    with Watch(tmp_path / "run", DATA, TEST, seed=3) as watch:
        for epoch in range(4):
            train(net)
            watch.epoch(net, lr=0.5)
            for i, correct in enumerate(right(net)):
                age[i] = 1.0 if correct else age[i] + 1
                smoothed[i] = age[i] if epoch == 0 else 0.5 * smoothed[i] + 0.5 * age[i]
    assert watch.ages.age.tolist() == age
    assert watch.ages.ema.tolist() == smoothed
    run = read_run(tmp_path / "run")
    assert run.finished
    assert run.epochs.tolist() == [1, 2, 3, 4]
    assert run.seed == 3
    assert run.curves["train_accuracy"][-1] == pytest.approx(np.mean(right(net)))
    assert run.curves["lr"].tolist() == [0.5] * 4
    assert np.isfinite(run.curves["test_accuracy"]).all()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_training_is_bit_equal_with_and_without_it(workers: int, tmp_path: Path) -> None:
    class Noisy(Dataset):
        """Draws from every generator when it is read."""

        targets = Y

        def __len__(self) -> int:
            return 23

        def __getitem__(self, place: int) -> tuple[Tensor, int]:
            random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
            return X[place], int(Y[place])

    outcomes = []
    for watched_too in (False, True):
        start()
        net, seen = model(), []
        watch = Watch(tmp_path / "run", DataLoader(Noisy(), 4, num_workers=workers)) if watched_too else None
        for _ in range(2):
            train(net, seen)
            if watch is not None:
                watch.epoch(net)
        if watch is not None:
            watch.close()
        after = (random.random(), np.random.rand(), torch.rand(1).item())  # noqa: NPY002
        outcomes.append(([*seen, *net.state_dict().values()], after))
    (plain, before), (with_watch, after) = outcomes
    assert before == after
    assert all(map(torch.equal, plain, with_watch))


def test_each_module_keeps_its_mode_and_the_network_inside_of_ddp_is_asked(tmp_path: Path) -> None:
    asked = []

    class Asked(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            asked.append(self.training)
            assert not torch.is_grad_enabled()
            return super().forward(x)

    net = nn.Sequential(Asked(3, 3), nn.Dropout().eval())
    modes = [part.training for part in net.modules()]
    with Watch(tmp_path, DATA) as watch:
        watch.epoch(nn.DataParallel(net))
    assert [part.training for part in net.modules()] == modes
    assert set(asked) == {False}


def rows() -> list[dict]:
    return [{"text": f"row {i}", "x": X[i], "label": int(Y[i])} for i in range(23)]


def pairs(batch: list[dict]) -> tuple[Tensor, Tensor]:
    return torch.stack([row["x"] for row in batch]), torch.tensor([row["label"] for row in batch])


@pytest.mark.parametrize(
    "given",
    [
        DATA,
        aol.Indexed(DATA),
        [(X[i], int(Y[i])) for i in range(23)],
        rows(),
        DataLoader(DATA, batch_size=4, shuffle=True, drop_last=True),
        DataLoader(rows(), batch_size=4, collate_fn=pairs),
        Subset(TensorDataset(X.flip(0), Y.flip(0)), range(22, -1, -1)),
    ],
    ids=["pairs", "indexed", "list", "rows", "loader", "collate", "subset"],
)
def test_every_form_of_a_set_gives_the_same_ages(given: object, tmp_path: Path) -> None:
    net = model()
    with Watch(tmp_path, given) as watch:
        watch.epoch(net)
    assert watch.ages.labels.tolist() == Y.tolist()
    assert (watch.ages.age == 1).tolist() == right(net)


def test_texts_vectors_and_pictures_get_previews(tmp_path: Path) -> None:
    def answer(_: nn.Module, batch) -> tuple[Tensor, Tensor]:
        label = batch["label"] if isinstance(batch, dict) else batch[1]
        return torch.zeros(len(label), 3), label

    images = TensorDataset(torch.rand(23, 3, 8, 8), Y)
    for name, data in (("rows", rows()), ("vectors", DATA), ("images", images)):
        with Watch(tmp_path / name, data, answer=answer) as watch:
            watch.epoch(nn.Identity())
    assert read_previews(tmp_path / "rows").texts[4] == "row 4"
    assert read_previews(tmp_path / "vectors").texts[4][0] == ["0", f"{X[4, 0]:.4g}"]
    assert read_previews(tmp_path / "images").images[4].shape == (3, 8, 8)


def test_a_second_run_gets_a_folder_of_its_own_and_every_counts_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("run", "run-2", "run-3"):
        with Watch(tmp_path / "run", DATA, every=2) as watch:
            for _ in range(5):
                watch.epoch(model())
        assert watch.folder == tmp_path / name
        assert watch.ages.epoch == 2
        line = f"aol: {tmp_path / 'run'} has the record of another run; this one goes to {watch.folder}\n"
        assert capsys.readouterr().err == ("" if name == "run" else line)
    begun, beside = Watch(tmp_path / "other", DATA), Watch(tmp_path / "other", DATA)
    assert beside.folder.name == "other-2"
    begun.close()
    beside.close()


@pytest.mark.parametrize("stage", ["after an epoch", "in a pass", "before the ages are written"])
def test_resume_goes_on_after_an_abrupt_end(stage: str, tmp_path: Path) -> None:
    def nets() -> list[nn.Module]:
        start()
        net = model()
        stages = []
        for _ in range(4):
            train(net)
            stages.append(model())
            stages[-1].load_state_dict(net.state_dict())
        return stages

    with Watch(tmp_path / "whole", DATA, TEST) as whole:
        for net in nets():
            whole.epoch(net)

    watch = Watch(tmp_path / "run", DATA, TEST)
    watch.epoch(nets()[0])
    watch.epoch(nets()[1])
    if stage != "after an epoch":
        name = "Recorder.test" if stage == "in a pass" else "write_atomically"
        stopped, third = Mock(side_effect=KeyboardInterrupt), nets()[2]
        with patch(f"aol.records.watch.{name}", stopped), pytest.raises(KeyboardInterrupt):
            watch.epoch(third)
    watch.recorder._held.close()  # what the end of the process does

    with Watch(tmp_path / "run", DATA, TEST, resume=True) as resumed:
        assert resumed.ages.epoch == 2
        for net in nets()[2:]:
            resumed.epoch(net)
    assert torch.equal(resumed.ages.age, whole.ages.age)
    assert torch.equal(resumed.ages.ema, whole.ages.ema)
    one, other = read_run(whole.folder), read_run(resumed.folder)
    assert other.epochs.tolist() == [1, 2, 3, 4]
    assert one.over_time["age"].tolist() == other.over_time["age"].tolist()
    assert one.curves["test_accuracy"].tolist() == other.curves["test_accuracy"].tolist()


def test_augmentation_gets_a_warning_and_a_plain_set_none(tmp_path: Path) -> None:
    class Augmented(TensorDataset):
        def __getitem__(self, place: int) -> tuple[Tensor, ...]:
            x, y = super().__getitem__(place)
            return x + torch.rand(3), y

    with pytest.warns(UserWarning, match="without augmentation"):
        Watch(tmp_path / "augmented", Augmented(X, Y)).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Watch(tmp_path / "plain", DATA).close()


def test_a_flip_of_half_of_the_images_is_seldom_missed() -> None:
    class Flipped(TensorDataset):
        def __getitem__(self, place: int) -> tuple[Tensor, ...]:
            x, y = super().__getitem__(place)
            return (x.flip(-1) if torch.rand(()) < 0.5 else x), y

    torch.manual_seed(0)
    images = Flipped(torch.rand(100, 3), torch.zeros(100))
    assert sum(first_that_differs(images) is None for _ in range(1000)) < 15  # one in 256


REFUSED = {
    "no map-style set": (iter(DATA), {}, TypeError, "map-style"),
    "labels of another size": (DATA, {"ages": aol.SampleAges(Y[:22])}, ValueError, "22"),
    "no label": ([{"x": 1.0}] * 3, {}, ValueError, "label"),
    "bare numbers": ([1, 2, 3], {}, TypeError, "A row must be"),
    "an unknown word": (DATA, {"everi": 2}, TypeError, r"Watch has no argument 'everi'\. Did you mean 'every'\?"),
    "no answers": (DATA, {"answer": "x"}, TypeError, "answer must be a function"),
    "text as classes": (DATA, {"classes": "abc"}, TypeError, "classes must be a list of names, not 'abc'"),
    "no ages": (DATA, {"ages": "ages.pt"}, TypeError, "ages must be SampleAges"),
    "nothing": ([], {}, ValueError, "labels"),
    "x alone": ([X[0]] * 3, {}, TypeError, "A row must be"),
    "a tuple of one": ([(X[0],)] * 3, {}, TypeError, "A row must be"),
    "text": (["text"] * 3, {}, TypeError, "A row must be"),
    **{
        f"{label!r} as label": ([(X[0], label)] * 3, {}, TypeError, "labels must be whole numbers")
        for label in ("cat", None, 1.0, 0.5)
    },
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_data_are_refused_with_a_sentence_before_training(what: str, tmp_path: Path) -> None:
    data, given, kind, message = REFUSED[what]
    with pytest.raises(kind, match=message):
        Watch(tmp_path, data, **given)


def test_other_labels_and_rows_without_are_refused_in_a_pass(tmp_path: Path) -> None:
    with Watch(tmp_path, DATA, ages=aol.SampleAges(Y.flip(0))) as watch, pytest.raises(ValueError, match="order"):
        watch.epoch(model())
    with Watch(tmp_path, DATA, TensorDataset(X)) as watch, pytest.raises(TypeError, match="A row must be"):
        watch.epoch(model())
    rare = TensorDataset(X[Y < 2], Y[Y < 2])  # without the last class
    with Watch(tmp_path, rare, DATA) as watch, pytest.raises(ValueError, match=r"names of all 3, classes="):
        watch.epoch(model())
    with Watch(tmp_path, rare, DATA, classes=np.array(["a", "b", "c"])) as watch:
        watch.epoch(model())


def test_what_is_no_model_or_no_logits_is_refused_and_the_epoch_can_be_given_again(tmp_path: Path) -> None:
    class Silent(nn.Module):
        def forward(self, x: Tensor) -> None: ...

    with Watch(tmp_path, DATA, every=2) as watch:
        watch.epoch(model())
        for wrong in (None, nn.Linear, lambda x: x):
            with pytest.raises(TypeError, match="model must be"):
                watch.epoch(wrong)
        watch.epoch(model())
        assert watch.ages.epoch == 1
        watch.epoch(model())
        with pytest.raises(TypeError, match="answer with logits"):
            watch.epoch(Silent())


@pytest.mark.parametrize("how", ["empty", "cut", "random", "other labels", "missing", "a pipe"])
def test_resume_refuses_damaged_and_missing_ages_and_loses_nothing(how: str, tmp_path: Path) -> None:
    data = TensorDataset(X, Y.flip(0)) if how == "other labels" else DATA
    with Watch(tmp_path, DATA) as watch:
        watch.epoch(model())
        watch.epoch(model())
    path = tmp_path / "ages.pt"
    whole = path.read_bytes()
    damaged = {"empty": b"", "cut": whole[: len(whole) // 2], "random": bytes(range(256)) * 2, "other labels": whole}
    path.unlink()
    if how == "a pipe":
        os.mkfifo(path)
    elif how != "missing":
        path.write_bytes(damaged[how])
    before = {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    with pytest.raises(ValueError, match=r"other labels|not a whole file of ages|without ages\.pt") as refused:
        Watch(tmp_path, data, resume=True)
    assert str(tmp_path) in str(refused.value)
    assert {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before


def test_labels_come_from_the_set_itself_where_it_has_them() -> None:
    class Pictures(Dataset):
        targets = (2, 0, 1)  # and no images

    assert labels_of(Pictures()).tolist() == [2, 0, 1]


def test_two_processes_share_a_pass_and_one_folder(tmp_path: Path) -> None:
    processes = Processes(2)
    try:
        for name in ("run", "run-2"):
            shared = processes.run("watched", folder=str(tmp_path / "run"))
            assert [folder for folder, *_ in shared] == [str(tmp_path / name)] * 2
        alone = watched(0, 1, folder=str(tmp_path / "alone"))
        resumed = processes.run("watched", folder=str(tmp_path / "run"), resume=True, epochs=1)
    finally:
        processes.stop()
    for _, epoch, age, ema in shared:
        assert (epoch, age, ema) == alone[1:]
    assert [epoch for _, epoch, *_ in resumed] == [3, 3]
    one, two = read_run(tmp_path / "alone"), read_run(tmp_path / "run-2")
    assert one.over_time["age"].tolist() == two.over_time["age"].tolist()
    assert one.curves["test_accuracy"].tolist() == two.curves["test_accuracy"].tolist()


def test_a_watch_needs_the_light_install_only(tmp_path: Path) -> None:
    code = f"""if True:
        import sys
        for name in ("pandas", "scipy", "matplotlib", "PIL", "rich", "sklearn"):
            sys.modules[name] = None
        import aol, torch
        data = torch.utils.data.TensorDataset(torch.rand(8, 1, 8, 8), torch.arange(8) % 2)
        with aol.Watch({str(tmp_path / "run")!r}, data, data) as watch:
            watch.epoch(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2)))
    """
    subprocess.run([sys.executable, "-c", code], check=True)
    assert read_run(tmp_path / "run").finished


def test_an_epoch_that_fails_can_be_called_again(tmp_path: Path) -> None:
    net = model()
    with Watch(tmp_path, DATA, every=2) as watch:
        watch.epoch(net)
        with pytest.raises(TypeError, match="lr"):
            watch.epoch(net, lr="fast")
        with patch.object(aol.SampleAges, "advance", side_effect=MemoryError), pytest.raises(MemoryError):
            watch.epoch(net)  # after its pass
        watch.epoch(net, lr=0.1)
        assert watch.ages.epoch == 1
    assert read_run(tmp_path).by_class["train_count"].tolist() == torch.bincount(Y).tolist()


def test_a_training_that_diverged_is_told(tmp_path: Path) -> None:
    net = model()
    nn.init.constant_(net[3].weight, torch.nan)
    with Watch(tmp_path, DATA) as watch, pytest.warns(UserWarning, match="logits of 23 training samples"):
        watch.epoch(net)


def test_ages_without_their_record_are_not_resumed(tmp_path: Path) -> None:
    with Watch(tmp_path, DATA) as watch:
        watch.epoch(model())
    (tmp_path / "run.json").unlink()
    with pytest.raises(ValueError, match=r"has ages\.pt without a record"):
        Watch(tmp_path, DATA, resume=True)


def test_a_second_run_in_the_current_folder_goes_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    for name in ("mine", "mine-2"):
        with Watch(".", DATA) as watch:
            watch.epoch(model())
        assert (tmp_path / name / "run.json").exists()
