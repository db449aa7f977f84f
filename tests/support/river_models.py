"""River classifiers that say what happens to them: answers from a script, and a list of all that was learned."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from river import base


class Scripted(base.Classifier):
    """Answers as a function says, and remembers what it was told to learn, with which weight."""

    _multiclass = True

    def __init__(self, answer: Callable[[dict], Hashable] = lambda x: None):
        self.answer = answer
        self.learned: list[tuple[dict, Hashable, float]] = []

    def predict_one(self, x, **kwargs):
        return self.answer(x)

    def predict_proba_one(self, x, **kwargs):
        return {self.answer(x): 1.0}

    def learn_one(self, x, y, *, w=1.0):
        self.learned.append((dict(x), y, w))


class Unweighted(Scripted):
    """The same without a `w`."""

    def learn_one(self, x, y):
        super().learn_one(x, y)


class Swallowing(Scripted):
    """Takes any words and ignores them, as some of River's ensembles do."""

    def learn_one(self, x, y, **kwargs):
        super().learn_one(x, y)
