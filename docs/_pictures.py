"""Draw the pictures of the how-to pages: what comes out of each page's program, on long-tailed digits.

`.venv/bin/python docs/_pictures.py` draws those that need no framework, in about two minutes. The others need the
environments of `make test-plugins`: `.venv-trainers/bin/python docs/_pictures.py lightning accelerate`.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import aol
from aol import cli
from aol.report.figures import style
from aol.report.figures.heatmap import AgeMap, draw_ages

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # tests.support reads the programs of the pages
CLASSES, EPOCHS = 10, 40
DIGITS = tuple(str(digit) for digit in range(CLASSES))


class Digits(NamedTuple):
    """A long tail for training, and a balanced test set."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def digits(imbalance: float = 50) -> Digits:
    """Return long-tailed digits; 40 % of all are the test set."""
    found = load_digits()
    x = torch.tensor(found.data / 16, dtype=torch.float32)
    first, test = train_test_split(np.arange(len(x)), test_size=0.4, stratify=found.target, random_state=0)
    y = torch.tensor(found.target)
    tail = torch.tensor(first)[aol.long_tail(y[torch.tensor(first)], imbalance, seed=0)]
    return Digits(x[tail], y[tail], x[torch.tensor(test)], y[torch.tensor(test)])


class Trained(NamedTuple):
    """The test accuracy of each class, and what was watched after each epoch."""

    accuracy: Tensor
    watched: list[Tensor]


def train(
    data: Digits,
    *,
    weight: Callable[[Tensor], Tensor] | None = None,
    adjust: Callable[[Tensor], Tensor] = lambda logits: logits,
    order: Callable[[int], Tensor] | None = None,
    after: Callable[[Tensor], Tensor],
    criterion: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Trained:
    """Train a small network as the pages do; `after` gets the logits of the training set after each epoch."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(data.x.shape[1], 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    watched = []
    for epoch in range(EPOCHS):
        shown = torch.randperm(len(data.y)) if order is None else order(epoch)
        for index in shown.split(32):
            losses = aol.softmax_loss(adjust(net(data.x[index])), data.y[index])
            loss = losses.mean() if weight is None else aol.weighted_mean(losses, weight(index))
            if criterion is not None:
                loss = criterion(net(data.x[index]), data.y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            watched.append(after(net(data.x)).clone())
    with torch.no_grad():
        right = aol.is_correct(net(data.test_x), data.test_y).float()
    return Trained(torch.stack([right[data.test_y == digit].mean() for digit in range(CLASSES)]), watched)


def watching(ages: aol.SampleAges, data: Digits, what: Callable[[], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return what to do after an epoch: observe all samples, advance, and look."""

    def after(logits: Tensor) -> Tensor:
        ages.observe(range(len(data.y)), aol.is_correct(logits, data.y))
        ages.advance()
        return what()

    return after


def class_ages(ages: aol.SampleAges) -> Tensor:
    """Return the mean age of each class, not smoothed."""
    return torch.stack([ages.age[ages.labels == digit].float().mean() for digit in range(CLASSES)])


def age_map(ages: Sequence[Tensor] | np.ndarray, unit: str = "epoch") -> AgeMap:
    """Return ages over time, a row an epoch, for a heatmap."""
    values = np.stack([np.asarray(each, dtype=np.float64) for each in ages])
    return AgeMap(values, np.arange(1, len(values) + 1), None, DIGITS[: values.shape[1]], unit)


def bars(axes: Axes, groups: Mapping[str, Sequence[float] | Tensor], names: Sequence[str], y: str, x: str = "") -> None:
    """Draw bars side by side, a colour for each group."""
    width = 0.8 / len(groups)
    for place, (name, values) in enumerate(groups.items()):
        at = np.arange(len(names)) + (place - (len(groups) - 1) / 2) * width
        axes.bar(at, np.asarray(values, dtype=float), width, label=name, color=style.COLOURS[place])
    axes.set_xticks(range(len(names)), names)
    axes.set(ylabel=y, xlabel=x)
    # Above the bars, which may be of any height.
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(groups), columnspacing=1.0, borderaxespad=0.1)


def lines(axes: Axes, values: Sequence[Tensor], y: str) -> None:
    """Draw a line for each class, from frequent (dark) to rare (light)."""
    shades = style.matplotlib().colormaps["viridis"](np.linspace(0, 0.9, CLASSES))
    for digit, line in enumerate(torch.stack(list(values)).T.tolist()):
        axes.plot(range(1, len(line) + 1), line, color=shades[digit], label=str(digit))
    axes.set(xlabel="epoch", ylabel=y)
    axes.legend(title="class", loc="center left", bbox_to_anchor=(1, 0.5), handlelength=1)


def panels(columns: int = 2, height: float = 2.1) -> tuple[Figure, list[Axes]]:
    """Return a figure as wide as a page."""
    return style.panels(height, 1, columns, width=6.4)


def loop() -> Figure:
    """Draw ages and weights of classes in the page's loop."""
    data = digits()
    ages = aol.SampleAges(data.y, rho=0.5)
    after = watching(ages, data, lambda: torch.stack([class_ages(ages), ages.class_weight]))
    return ages_and_weights(train(data, weight=ages.weight, after=after).watched)


def ages_and_weights(watched: Sequence[Tensor]) -> Figure:
    """Draw ages and weights of classes, `[2, C]` after each epoch."""
    figure, (left, right) = panels()
    draw_ages(figure, [left], [age_map([each[0] for each in watched])])
    lines(right, [each[1] for each in watched], "weight of the class")
    return figure


def losses() -> Figure:
    """Draw the offsets that two losses have learnt, and what they do to the classes."""
    data = digits()
    criteria = {"LogitAdjustedLoss": aol.LogitAdjustedLoss(CLASSES), "MarginLoss": aol.MarginLoss(CLASSES, every=2)}
    plain = train(data, after=lambda _: torch.zeros(CLASSES))
    accuracy = {"cross-entropy": 100 * plain.accuracy}
    for name, criterion in criteria.items():
        accuracy[name] = 100 * train(data, criterion=criterion, after=lambda _: torch.zeros(CLASSES)).accuracy
    figure, (left, right) = panels()
    offsets = {"": torch.zeros(CLASSES)} | {name: criterion.offsets for name, criterion in criteria.items()}
    bars(left, offsets, DIGITS, "offset of the logit", "class, head to tail")
    bars(right, accuracy, DIGITS, "test accuracy, %", "class, head to tail")
    left.get_legend().remove()  # the colours are those on the right
    return figure


def margins() -> Figure:
    """Draw offsets over time, and what they do to the classes."""
    data = digits()
    plain = train(data, after=lambda _: torch.zeros(CLASSES))
    own = aol.Margins(CLASSES)

    def after(logits: Tensor) -> Tensor:
        own.observe(data.y, logits.softmax(1))
        own.advance()
        return own.offsets

    adjusted = train(data, adjust=own.adjust, after=after)
    figure, (left, right) = panels()
    lines(left, adjusted.watched, "offset of the logit")
    groups = {"plain": 100 * plain.accuracy, "with margins": 100 * adjusted.accuracy}
    bars(right, groups, DIGITS, "test accuracy, %", "class, head to tail")
    return figure


def resample() -> Figure:
    """Draw how often each class is drawn."""
    data = digits()
    ages = aol.SampleAges(data.y, rho=0.5)
    counts = torch.bincount(data.y)
    by_age = aol.AgeSampler(ages, seed=0)
    equal = aol.AgeSampler(lambda: aol.combine(ages.class_weight, aol.frequency_weight(counts, 1.0))[data.y], seed=0)
    drawn = {"the set": counts.float()}

    def order(epoch: int) -> Tensor:
        by_age.set_epoch(epoch)
        return torch.tensor(list(by_age))

    train(data, order=order, after=watching(ages, data, lambda: ages.class_weight))
    for name, sampler in (("AgeSampler", by_age), ("age × inverse frequency", equal)):
        sampler.set_epoch(EPOCHS)
        drawn[name] = torch.bincount(data.y[torch.tensor(list(sampler))], minlength=CLASSES).float()
    figure, (axes,) = panels(1)
    bars(axes, drawn, DIGITS, "samples of an epoch", "class, head to tail")
    return figure


def streams() -> Figure:
    """Draw a stream whose head moves: how many samples a step shows, and the ages of the classes."""
    data = digits(1)
    stream = aol.ShiftingTail(data.y, imbalance=20, period=10, steps=60, seed=0)
    ages = aol.ClassAges(CLASSES, rho=0.1, threshold="positive-median")
    memory = aol.Reservoir(200, seed=0)
    torch.manual_seed(0)
    net = nn.Linear(64, CLASSES)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watched = []
    for shown in stream:
        memory.add(shown)
        loss = aol.weighted_mean(aol.softmax_loss(net(data.x[shown]), data.y[shown]), ages.weight(data.y[shown]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept = memory.indices
        with torch.no_grad():
            ages.observe(data.y[kept], aol.is_correct(net(data.x[kept]), data.y[kept]))
        ages.advance()
        watched.append(ages.age.clone())
    figure, (left, right) = panels()
    counts = np.stack([stream.counts(step).numpy() for step in range(len(stream))])
    image = left.imshow(counts.T, aspect="auto", cmap="viridis", extent=(0.5, 60.5, CLASSES - 0.5, -0.5))
    left.set(xlabel="step", ylabel="class", yticks=range(CLASSES))
    figure.colorbar(image, ax=left, label="samples that a step shows", pad=0.02)
    draw_ages(figure, [right], [age_map(watched, "step")])
    return figure


def arrivals() -> Figure:
    """Draw what is known of the samples while a tenth of them arrives in each epoch."""
    data = digits(1)
    ages = aol.SampleAges(data.y, absent="grow")
    torch.manual_seed(0)
    net = nn.Linear(64, CLASSES)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    known = []
    for arrived in aol.Arrivals(data.y, fraction=0.1, steps=EPOCHS, seed=0):
        loss = aol.weighted_mean(aol.softmax_loss(net(data.x[arrived]), data.y[arrived]), ages.weight(arrived))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            ages.observe(arrived, aol.is_correct(net(data.x[arrived]), data.y[arrived]))
        ages.advance()
        known.append([float((ages.age == 0).sum()), float((ages.age == 1).sum()), float((ages.age > 1).sum())])
    figure, (left, right) = panels()
    names = ("never arrived: no age", "right just now: age 1", "wrong, or absent since")
    left.stackplot(range(1, EPOCHS + 1), np.array(known).T, labels=names, colors=(style.GREY, *style.COLOURS[:2]))
    left.set(xlabel="epoch", ylabel="samples", xlim=(1, EPOCHS))
    left.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=5, columnspacing=0.8, handlelength=1)
    right.hist(ages.age[ages.age > 0].numpy(), bins=range(1, int(ages.age.max()) + 2), color=style.COLOURS[0])
    right.set(xlabel="age in the last epoch", ylabel="samples")
    return figure


def hidden_minorities() -> Figure:
    """Draw how samples that contradict a shortcut grow old, and what a factor on them does."""
    data, random = digits(1), torch.Generator().manual_seed(0)
    conflict = torch.rand(len(data.y), generator=random) < 0.05
    other = (data.y + torch.randint(1, CLASSES, (len(data.y),), generator=random)) % CLASSES
    any_class = torch.randint(CLASSES, (len(data.test_y),), generator=random)
    hint = 3 * nn.functional.one_hot(torch.where(conflict, other, data.y), CLASSES)
    test_hint = 3 * nn.functional.one_hot(any_class, CLASSES)
    hinted = Digits(torch.cat([data.x, hint], 1), data.y, torch.cat([data.test_x, test_hint], 1), data.test_y)
    plain, peak = (aol.SampleAges(data.y, level="sample", fuse="peak") for _ in range(2))

    def shares(ages: aol.SampleAges) -> Tensor:
        old = ages.ema > 2
        return torch.stack([old[conflict].float().mean(), old[~conflict].float().mean()])

    without = train(hinted, after=watching(plain, hinted, lambda: shares(plain)))
    weight = lambda index: aol.old_set_weight(peak.ema, after=2)[index]  # noqa: E731
    with_old = train(hinted, weight=weight, after=watching(peak, hinted, lambda: shares(peak)))
    figure, (left, right) = panels()
    for place, name in enumerate(("contradict the shortcut (5 %)", "follow it")):
        share = [100 * float(share[place]) for share in without.watched]
        left.plot(range(1, EPOCHS + 1), share, color=style.COLOURS[place], label=name)
    left.set(xlabel="epoch", ylabel="samples that were old, %", ylim=(0, 100))
    left.legend()
    groups = {"plain": 100 * without.accuracy, "old samples weighted": 100 * with_old.accuracy}
    bars(right, groups, DIGITS, "test accuracy, %", "class; the shortcut is random on test")
    return figure


def of_processes(page: str) -> Figure:
    """Draw class ages of the page's program on one and two processes: they are the same."""
    from tests.support.doc_pages import blocks
    from tests.support.running import as_torchrun, status_of

    (program,) = [block for block in blocks(HERE / "how-to" / page) if block.title == "train.py"]
    groups = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # where the program writes its record
        path, log = Path(folder) / "train.py", Path(folder) / "log"
        path.write_text(program.code)
        for number, name in ((1, "1 process"), (2, "2 processes")):
            children = as_torchrun(number, lambda: runpy.run_path(str(path)), log)
            assert [status_of(child) for child in children] == [0] * number, log.read_text()
            (ages,) = re.findall(r"class ages \[(.*?)\]", log.read_text())
            groups[name] = [float(each) for each in ages.split(",")]
    figure, (axes,) = panels(1)
    bars(axes, groups, [str(place) for place in range(len(groups[name]))], "class age", "class")
    return figure


def resume() -> Figure:
    """Draw a run that was stopped and resumed, beside one that was not."""
    words = ["train", "--epochs", "60", "--margin", "probability", "--json", "--out"]
    with tempfile.TemporaryDirectory() as folder:
        assert cli.main([*words, f"{folder}/whole"]) == 0
        assert cli.main([*words, f"{folder}/stopped", "--minutes", "0.04"]) == 0
        (checkpoint,) = Path(folder).glob("stopped/work/*/checkpoint.pt")
        epoch = int(torch.load(checkpoint, weights_only=False)["epoch"])
        assert cli.main(["resume", f"{folder}/stopped", "--json"]) == 0
        curves = [aol.load_runs(Path(folder) / name).epochs() for name in ("whole", "stopped")]
    figure, (axes,) = panels(1)
    for curve, name, how in zip(curves, ("never stopped", "stopped and resumed"), ("-", ":"), strict=True):
        axes.plot(curve["epoch"], 100 * curve["test_accuracy"], how, label=name, linewidth=1 if how == "-" else 2.5)
    axes.axvline(epoch, color=style.GREY, linewidth=0.8)
    axes.text(epoch + 0.5, axes.get_ylim()[0] + 3, "stopped here", color=style.GREY)
    axes.set(xlabel="epoch", ylabel="test accuracy, %")
    axes.legend()
    return figure


def large() -> Figure:
    """Show what evaluation and the first epochs of training see of one photo."""
    from aol.lab.data import StoredImages, open_data
    from aol.lab.data.encoded_images import draw_crops

    with tempfile.TemporaryDirectory() as folder:
        for name in ("train/a/0.png", "train/b/0.png", "test/a/0.png", "test/b/0.png"):
            (Path(folder) / name).parent.mkdir(parents=True)
            Image.fromarray(load_sample_image("china.jpg")).save(Path(folder) / name)
        train = open_data(folder).train
        assert isinstance(train, StoredImages)
        draws = [draw_crops(2, seed=0, epoch=epoch)[0] for epoch in range(5)]
        views = {"evaluation": train.view(0, None, 224)}
        views |= {f"training, epoch {epoch + 1}": train.view(0, drawn, 224) for epoch, drawn in enumerate(draws)}
    figure, columns = panels(6, height=1.35)
    for axes, (title, pixels) in zip(columns, views.items(), strict=True):
        axes.imshow(pixels.numpy())
        axes.set_title(title)
        axes.axis("off")
    return figure


def runs() -> Figure:
    """Draw weights of the classes for eleven values of ρ, trained at once."""
    data, rho = digits(), torch.linspace(0, 1, 11)
    ages = aol.SampleAges(data.y, rho=rho)
    generator = torch.Generator().manual_seed(0)
    weight = (0.01 * torch.randn(1, 64, CLASSES, generator=generator)).repeat(len(rho), 1, 1).requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.5)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(data.y), generator=generator).split(64):
            logits = torch.einsum("bd,rdc->rbc", data.x[index], weight)
            loss = aol.weighted_mean(aol.softmax_loss(logits, data.y[index]), ages.weight(index))
            optimizer.zero_grad()
            loss.sum().backward()
            optimizer.step()
        with torch.no_grad():
            ages.observe(range(len(data.y)), aol.is_correct(torch.einsum("bd,rdc->rbc", data.x, weight), data.y))
        ages.advance()
    with torch.no_grad():
        right_ = aol.is_correct(torch.einsum("bd,rdc->rbc", data.test_x, weight), data.test_y).float().mean(1)
    figure, (left, right) = panels()
    image = left.imshow(
        ages.class_weight.numpy(), aspect="auto", cmap="viridis", origin="lower", extent=(-0.5, 9.5, -0.05, 1.05)
    )
    left.set(xlabel="class, head to tail", ylabel="ρ", xticks=range(CLASSES))
    figure.colorbar(image, ax=left, label="weight of the class", pad=0.02)
    right.plot(rho, 100 * right_, "o-")
    right.set(xlabel="ρ", ylabel="test accuracy, %")
    return figure


def sklearn() -> Figure:
    """Draw accuracy by class of a logistic regression, plain and with the two classifiers of the page."""
    from sklearn.linear_model import LogisticRegression

    from aol.plugins.sklearn import AgedClassifier, OffsetClassifier

    data = digits(20)
    x, y, test_x, test_y = (each.numpy() for each in data)
    linear = LogisticRegression(max_iter=1000)
    models = {"plain": linear, "AgedClassifier": AgedClassifier(linear), "OffsetClassifier": OffsetClassifier(linear)}
    groups = {}
    for name, model in models.items():
        right = model.fit(x, y).predict(test_x) == test_y
        groups[name] = [100 * right[test_y == digit].mean() for digit in range(CLASSES)]
    figure, (axes,) = panels(1)
    bars(axes, groups, DIGITS, "test accuracy, %", "class, head to tail")
    return figure


def benchmark(file: str, methods: Mapping[str, str], y: str, **figures: Sequence[str]) -> Figure:
    """Draw means of a benchmark: bars for each method; `figures` are named, each with the keys that tell its cases."""
    cases = json.loads((HERE.parent / "benchmarks" / "results" / f"{file}.json").read_text())["cases"]
    groups: dict[str, dict[str, float]] = {shown: {} for shown in methods.values()}
    for figure, keys in figures.items():
        for each in cases:
            if each["method"] in methods:
                name = "\n".join(each[key] for key in keys) or figure.replace("_", " ")
                groups[methods[each["method"]]][name] = 100 * float(np.mean(each[figure]))
    drawn, (axes,) = panels(1)
    names = list(dict.fromkeys(name for own in groups.values() for name in own))
    bars(axes, {shown: [own[name] for name in names] for shown, own in groups.items()}, names, y)
    return drawn


def boosted_trees() -> Figure:
    """Draw balanced accuracy of `benchmarks/tabular.py`."""
    afterwards = {f"{name}, afterwards": f"OffsetClassifier, {name}" for name in ("counts", "errors")}
    shown = {"none": "no weights", "balanced": "balanced", **afterwards}
    return benchmark("tabular", shown, "balanced accuracy, %", balanced_accuracy=("table", "model"))


def river() -> Figure:
    """Draw balanced accuracy of `benchmarks/river_streams.py`."""
    shown = {"bare": "bare model", "AoL ρ 0.5": "AoL, ρ = 0.5", "RandomOverSampler": "RandomOverSampler"}
    return benchmark("river_streams", shown, "balanced accuracy, %", balanced_accuracy=("stream", "model"))


def network() -> nn.Module:
    """Return the network of all pictures of frameworks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def lightning() -> Figure:
    """Draw ages and weights of classes in Lightning."""
    import lightning as host

    from aol.plugins.lightning import WatchCallback

    data = digits()
    labelled, watched = torch.utils.data.TensorDataset(data.x, data.y), []
    folder = tempfile.TemporaryDirectory()
    callback = WatchCallback(folder.name, labelled, ages=aol.SampleAges(data.y, rho=0.5))

    class Classifier(host.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            x, y, index = batch
            return aol.weighted_mean(aol.softmax_loss(self(x), y), callback.ages.weight(index))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

        def on_train_epoch_start(self) -> None:
            watched.append(torch.stack([class_ages(callback.ages), callback.ages.class_weight]))

    trainer = host.Trainer(
        max_epochs=EPOCHS + 1,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    batches = torch.utils.data.BatchSampler(aol.ShuffledSampler(len(labelled), seed=0), 32, drop_last=False)
    trainer.fit(Classifier(), torch.utils.data.DataLoader(aol.Indexed(labelled), batch_sampler=batches))
    return ages_and_weights(watched[1:])


def save(name: str, figure: Figure) -> None:
    """Save a figure beside the pages, 1,000 pixels wide."""
    picture = Image.open(io.BytesIO(style.rendered(figure, "png"))).convert("RGB")
    small = picture.resize((1000, picture.height * 1000 // picture.width), Image.Resampling.LANCZOS)
    small.save(HERE / "how-to" / f"{name}.webp", quality=82, method=6)


PLAIN: dict[str, Callable[[], Figure]] = {
    "loop": loop, "losses": losses, "margins": margins, "resample": resample, "streams": streams, "arrivals": arrivals,
    "hidden-minorities": hidden_minorities, "distributed": lambda: of_processes("distributed.md"), "resume": resume,
    "large": large, "runs": runs, "sklearn": sklearn, "boosted-trees": boosted_trees, "river": river,
}  # fmt: skip
FRAMEWORKS: dict[str, Callable[[], Figure]] = {
    "lightning": lightning, "accelerate": lambda: of_processes("accelerate.md"),
}  # fmt: skip


def main(names: Sequence[str]) -> None:
    """Draw the named pictures, or all that need no framework."""
    for name in names or PLAIN:
        save(name, style.styled()((PLAIN | FRAMEWORKS)[name])())


if __name__ == "__main__":
    main(sys.argv[1:])
