"""Docstrings of Python's standard library as a text set of ten packages."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

import aol

PACKAGES = (
    "asyncio",
    "email",
    "importlib",
    "logging",
    "multiprocessing",
    "unittest",
    "http",
    "tarfile",
    "inspect",
    "xml",
)
TEST = 20  # texts of each class


def docstrings(package: str) -> list[str]:
    """Return the first paragraphs of the docstrings in a package of the standard library, each once."""
    base = Path(ast.__file__).parent
    files = sorted((base / package).rglob("*.py")) or [base / f"{package}.py"]
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, kinds)]
    texts = [(ast.get_docstring(node) or "").split("\n\n")[0] for node in nodes]
    return sorted({" ".join(text.split()) for text in texts if len(text.split()) >= 4})


@cache
def corpus() -> tuple[list[str], Tensor]:
    """Return all texts and the index of the package of each."""
    found = [docstrings(package) for package in PACKAGES]
    return [text for texts in found for text in texts], torch.cat(
        [torch.full((len(texts),), label) for label, texts in enumerate(found)]
    )


def split(labels: Tensor, imbalance: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return a long-tailed training set and a balanced test set, as indices."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = [order[labels[order] == c] for c in range(len(PACKAGES))]
    test = torch.cat([members[:TEST] for members in by_class])
    pool = torch.cat([members[TEST:] for members in by_class])
    return pool[aol.long_tail(labels[pool], imbalance, seed=seed)], test
