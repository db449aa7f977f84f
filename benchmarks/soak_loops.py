"""Loops of users, with aol in them, that `benchmarks/soak.py` kills and resumes, and whose checkpoints it damages.

Each begins in a folder, or continues from the last checkpoint there as its framework documents it, and at its end
writes what must be the same after any number of kills. All are tiny: a second or two.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import pickle
import shutil
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader

import aol
from aol._seal import NAME, sealed

END = "end.json"
EPOCHS = 6
LABELS = torch.tensor([i * i % 7 % 3 for i in range(60)])
IMAGES = torch.randn(60, 5, generator=torch.Generator().manual_seed(3))


class Loaded(Exception):  # noqa: N818 (not an error)
    """Ends a loop that has loaded its checkpoint; says what aol has of it."""


class Loop(NamedTuple):
    """A loop, what must be imported for it, and where its checkpoints are.

    `run(out, look)`: with `look`, nothing is trained; `Loaded` is raised once the last checkpoint is loaded. `saved` is
    the pattern of its checkpoints; "" where the framework saves a pickle, in which nothing of aol could notice damage.
    """

    run: Callable[[Path, bool], None]
    needs: tuple[str, ...] = ()
    saved: str = ""

    def checkpoints(self, out: Path) -> list[Path]:
        """Return all checkpoints in a folder, files or folders, in the order of their numbers."""
        return sorted(out.glob(self.saved), key=lambda path: int("0" + "".join(filter(str.isdigit, path.name))))


def digest(**parts: object) -> str:
    """Return a hash of states and tensors."""
    return str(sealed(parts)[NAME])


def _end(out: Path, **parts: object) -> None:
    _replace(out / END, json.dumps({name: digest(it=part) for name, part in parts.items()}).encode())


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}")
    new.write_bytes(content)
    os.replace(new, path)


def _save(path: Path, state: object) -> None:
    torch.save(state, path.with_name(f".{path.name}"))
    os.replace(path.with_name(f".{path.name}"), path)


def _network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


# Plain PyTorch


def _torch(out: Path, look: bool) -> None:
    """Resume within epochs: docs/how-to/resume.md."""
    ages, margins = aol.SampleAges(LABELS, num_classes=3, level="sample"), aol.Margins(3, gain=0.5, width=0.0)
    sampler, model = aol.AgeSampler(ages, seed=2), _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    parts = {"model": model, "optimizer": optimizer, "ages": ages, "margins": margins, "sampler": sampler}
    if (out / "mine.pt").exists():
        for name, state in torch.load(out / "mine.pt", weights_only=True).items():
            parts[name].load_state_dict(state)
    if look:
        raise Loaded(digest(ages=ages.state_dict(), margins=margins.state_dict(), sampler=sampler.state_dict()))
    while ages.epoch < EPOCHS:
        for used, index in enumerate(DataLoader(range(60), batch_size=8, sampler=sampler), start=1):
            logits, label = model(IMAGES[index]), LABELS[index]
            loss = aol.weighted_mean(aol.softmax_loss(margins.adjust(logits), label), ages.weight(index))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            margins.observe(label, logits.detach().softmax(1))
            place = sampler.state_dict(consumed=8 * used)
            if used % 2 == 0 and place["position"]:  # after the last batch, the ages have not advanced yet
                own = {name: each.state_dict() for name, each in parts.items()}
                _save(out / "mine.pt", {**own, "sampler": place})
        with torch.no_grad():
            ages.observe(range(60), aol.is_correct(model(IMAGES), LABELS))
        ages.advance()
        margins.advance()
        _save(out / "mine.pt", {name: each.state_dict() for name, each in parts.items()})
    _end(out, ages=ages.state_dict(), margins=margins.state_dict(), model=model.state_dict())


def _stream(out: Path, look: bool) -> None:
    """Resume a stream with a memory: docs/how-to/resume.md."""
    stream, memory = aol.ShiftingTail(LABELS, 10, period=3, steps=30, seed=1), aol.Reservoir(20, seed=2)
    ages, model = aol.ClassAges(3), _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    parts = {"model": model, "optimizer": optimizer, "ages": ages, "stream": stream, "memory": memory}
    if (out / "mine.pt").exists():
        for name, state in torch.load(out / "mine.pt", weights_only=True).items():
            parts[name].load_state_dict(state)
    if look:
        raise Loaded(digest(ages=ages.state_dict(), stream=stream.state_dict(), memory=memory.state_dict()))
    for shown in stream:
        label = LABELS[shown]
        optimizer.zero_grad()
        aol.weighted_mean(aol.softmax_loss(model(IMAGES[shown]), label), ages.weight(label)).backward()
        optimizer.step()
        memory.add(shown)
        with torch.no_grad():
            ages.observe(LABELS[memory.indices], aol.is_correct(model(IMAGES[memory.indices]), LABELS[memory.indices]))
        ages.advance()
        _save(out / "mine.pt", {name: each.state_dict() for name, each in parts.items()})
    _end(out, ages=ages.state_dict(), memory=memory.state_dict(), model=model.state_dict())


# Trainers


def _lightning(out: Path, look: bool) -> None:
    """Resume within epochs by the Trainer's checkpoints: docs/how-to/lightning.md."""
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint

    from aol.plugins.lightning import AgeOfLearning
    from tests.support.small_lightning import DATA, Net, made_margins, sample_ages, trainer

    class Within(Callback):
        """Saves within epochs, but not at their last batch.

        Lightning 2.6 counts epochs wrongly, also without aol, in a run resumed from one that was resumed from there.
        """

        def on_train_batch_start(self, trainer: object, module: object, batch: list[torch.Tensor], index: int) -> None:
            if look:
                raise Loaded(digest(states=aging.state_dict(), batch=batch[-1]))

        def on_train_batch_end(self, trainer: object, module: object, _: object, batch: object, index: int) -> None:
            if index in (0, 2):
                trainer.save_checkpoint(out / "checkpoints" / f"step={trainer.global_step}.ckpt")

    aging = AgeOfLearning(sample_ages(), margins=made_margins("probability"))
    model = Net(aging)
    saving = ModelCheckpoint(
        out / "checkpoints", every_n_epochs=1, save_on_train_epoch_end=True, save_top_k=-1, filename="{step}"
    )
    torch.manual_seed(0)
    loader = aging.loader(DATA, batch_size=16, resample=True, seed=4)
    fitting = trainer(aging, saving, Within(), enable_checkpointing=True, max_epochs=EPOCHS)
    fitting.fit(model, loader, ckpt_path=_last("lightning", out), weights_only=True)
    if aging.ages.epoch != EPOCHS:
        raise RuntimeError("stopped")  # Lightning takes SIGTERM itself
    _end(out, ages=aging.ages.state_dict(), margins=aging.margins.state_dict(), model=model.weights())


def _transformers(out: Path, look: bool) -> None:
    """Resume within epochs by the Trainer's checkpoints: docs/how-to/transformers.md."""
    from transformers import TrainerCallback

    from tests.support.small_transformers import made, made_margins, network, sample_ages, weights

    class Look(TrainerCallback):
        def on_step_begin(self, *args: object, **kwargs: object) -> None:
            if look:
                raise Loaded(digest(ages=ages.state_dict(), margins=margins.state_dict()))

    for folder in out.glob("checkpoint-*"):  # the Trainer writes trainer_state.json last, and does not look for it
        try:
            json.loads((folder / "trainer_state.json").read_text())
        except (OSError, ValueError):
            if not look:
                shutil.rmtree(folder)
    ages, margins = sample_ages(), made_margins("probability")
    args = {"output_dir": str(out), "save_strategy": "steps", "save_steps": 2, "num_train_epochs": EPOCHS}
    trainer = made(ages, margins=margins, model=network(dropout=0.2), args=args, callbacks=[Look()])
    last = _last("transformers", out)
    trainer.train(resume_from_checkpoint=None if last is None else str(last))
    _end(out, ages=ages.state_dict(), margins=margins.state_dict(), model=weights(trainer))


# scikit-learn and its neighbours


def _pickled(out: Path, steps: int, begin: Callable[[], object], step: Callable[[object, int], None]) -> object:
    """Take steps of a loop whose whole state is one object, pickled after each."""
    path = out / "mine.pkl"
    done, model = pickle.loads(path.read_bytes()) if path.exists() else (0, begin())
    for number in range(done, steps):
        step(model, number)
        _replace(path, pickle.dumps((number + 1, model)))
    return model


def _sklearn(out: Path, look: bool) -> None:
    from sklearn.linear_model import SGDClassifier

    from aol.plugins.sklearn import AgedClassifier

    def step(model: AgedClassifier, number: int) -> None:
        part = slice(number % 6 * 10, number % 6 * 10 + 10)
        model.partial_fit(IMAGES[part].numpy(), LABELS[part].numpy(), classes=[0, 1, 2])

    begin = AgedClassifier(SGDClassifier(random_state=0), rho=0.5)
    model = _pickled(out, 24, lambda: begin, step)
    _end(out, age=model.class_age_.tolist(), model=model.estimator_.coef_.tolist())


def _river(out: Path, look: bool) -> None:
    from river import linear_model, multiclass

    from aol.plugins.river import AgedClassifier

    def begin() -> AgedClassifier:
        inner = multiclass.OneVsRestClassifier(linear_model.LogisticRegression())
        return AgedClassifier(inner, step=10, memory=8, seed=1)

    def step(model: AgedClassifier, number: int) -> None:
        for i in range(number % 6 * 10, number % 6 * 10 + 10):
            model.learn_one(dict(enumerate(IMAGES[i].tolist())), int(LABELS[i]))

    model = _pickled(out, 30, begin, step)
    answers = [model.predict_proba_one(dict(enumerate(row))) for row in IMAGES.tolist()]
    _end(out, age=sorted(model.class_age.items()), model=[sorted(each.items()) for each in answers])


_TRAINERS = ("lightning", "aol.plugins.lightning", "tests.support.small_lightning")
_TEXT = ("transformers", "aol.plugins.transformers", "tests.support.small_transformers")
LOOPS = {
    "torch": Loop(_torch, saved="mine.pt"),
    "torch stream": Loop(_stream, saved="mine.pt"),
    "lightning": Loop(_lightning, _TRAINERS, "checkpoints/step=*.ckpt"),
    "transformers": Loop(_transformers, _TEXT, "checkpoint-*"),
    "sklearn": Loop(_sklearn, ("sklearn", "sklearn.linear_model", "aol.plugins.sklearn")),
    "river": Loop(_river, ("river", "river.multiclass", "aol.plugins.river")),
}


def _last(name: str, out: Path) -> Path | None:
    found = LOOPS[name].checkpoints(out)
    return found[-1] if found else None


def loops_here() -> dict[str, Loop]:
    """Import the frameworks that this environment has, and return the loops that run in it."""
    found = {name: loop for name, loop in LOOPS.items() if not loop.needs or find_spec(loop.needs[0]) is not None}
    for name in itertools.chain.from_iterable(loop.needs[1:] for loop in found.values()):
        importlib.import_module(name)
    return found


def left(out: Path) -> dict[str, object]:
    """Return what a loop wrote at its end."""
    return dict(json.loads((out / END).read_text()))


def stop_halfway(loop: Loop, out: Path) -> None:
    """Run a loop, and forget the second half of its checkpoints."""
    out.mkdir()
    loop.run(out, False)
    saved = loop.checkpoints(out)
    for path in saved[len(saved) // 2 + 1 :]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def files(loop: Loop, out: Path) -> dict[Path, list[Path]]:
    """Return the files of the last checkpoint, and for each its predecessors, of which a folder could be mixed."""
    *before, last = loop.checkpoints(out)
    if not last.is_dir():
        return {last: []}
    return {path: [each / path.name for each in before] for path in sorted(last.iterdir())}


def look(loop: Loop, out: Path) -> str:
    """Load the last checkpoint, and return a hash of what aol has of it; what a framework says becomes an OSError."""
    try:
        loop.run(out, True)
    except Loaded as found:
        return str(found)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        refused = isinstance(error, TypeError) and (where.line or "").startswith("raise ")  # by a check, not a crash
        if Path(where.filename).is_relative_to(Path(aol.__file__).parent) and not refused:
            raise
        raise OSError(f"{type(error).__name__}: {error}") from error
    raise OSError("The loop had ended.")
