"""A checksum within state dicts: `torch.load`, and with it most frameworks, notices no flipped bit in a tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from aol import _check

NAME = "sha256"


def sealed(state: Mapping[str, object]) -> dict[str, object]:
    """Return a state dict with a checksum of its content, in the place of one that it has.

    >>> sealed({"epoch": 3})["sha256"][:8]
    'ac593d1c'
    """
    return {**state, NAME: _digest({key: value for key, value in state.items() if key != NAME}, {})}


def check_seal(what: str, state: Mapping[str, object]) -> None:
    """Raise ValueError if a state dict has a checksum that does not match; one from before 0.2 has none."""
    if NAME not in state:
        return
    try:
        fits = sealed(state)[NAME] == state[NAME]
    except (RecursionError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"This state of {what} is damaged: it holds more than tensors and primitives.") from error
    if not fits:
        raise ValueError(f"This state of {what} is damaged: its checksum does not match its content.")


def _digest(value: object, known: dict[int, str]) -> str:
    """Return a hash of nested dicts and lists of tensors and primitives; a sealed dict stands for its content.

    `known` has the hashes of objects that were met before: a hostile file may hold the same list very many times.
    """
    if id(value) in known:
        return known[id(value)]
    found = hashlib.sha256()
    if isinstance(value, Mapping):
        parts = {NAME: value[NAME]} if NAME in value else value
        for key in sorted(parts):
            found.update(f"{key!r}:{_digest(parts[key], known)}\n".encode())
    elif isinstance(value, list | tuple):
        found.update("".join(_digest(each, known) for each in value).encode())
    elif isinstance(value, Tensor):
        found.update(f"{value.dtype} {list(value.shape)}\n".encode())
        if _check.owns_memory(value) and value.numel() > 1:
            found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        elif value.numel() == 1:  # its stride may be anything, which a view of bytes refuses
            found.update(repr(value.tolist()).encode())
    else:
        found.update(f"{type(value).__name__} {value!r}".encode())
    return known.setdefault(id(value), found.hexdigest())
