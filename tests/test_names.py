"""The public names of `aol`: there, declared for type checkers, and imported when they are first used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import aol

HEAVY = ("torch", "pandas", "rich", "matplotlib", "scipy", "sklearn")


def test_every_public_name_is_there_and_declared_for_type_checkers() -> None:
    (block,) = [block for block in ast.parse(Path(aol.__file__).read_text()).body if isinstance(block, ast.If)]
    declared = {alias.name for imported in block.body for alias in imported.names}  # type: ignore[attr-defined]
    assert declared == set(aol.__all__) - {"__version__"}
    assert declared <= set(dir(aol))
    for name in dir(aol):
        assert hasattr(aol, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    for name in ("nonsense", "SampleAge", "weights.temper"):
        with pytest.raises(AttributeError, match=name):
            getattr(aol, name)


def test_submodules_of_the_library_are_imported_on_access() -> None:
    assert aol.weights.temper is aol.temper


def test_importing_aol_imports_nothing_heavy() -> None:
    code = f"import sys, aol.lab.settings as s; s.Settings(); print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
