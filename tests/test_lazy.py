from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import aol
import aol.lab.nets

HEAVY = ("torch", "pandas", "rich", "matplotlib", "scipy", "sklearn")


@pytest.mark.parametrize("package", [aol, aol.lab.nets], ids=lambda package: package.__name__)
def test_every_public_name_is_there_and_declared_for_type_checkers(package: object) -> None:
    path = Path(package.__file__)  # type: ignore[attr-defined]
    declared = {
        alias.name
        for block in ast.parse(path.read_text()).body
        if isinstance(block, ast.If)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    names = set(package.__all__) - {"__version__"}  # type: ignore[attr-defined]
    assert declared == names
    assert names <= set(dir(package))
    for name in dir(package):
        assert hasattr(package, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        aol.nonsense  # noqa: B018


def test_submodules_of_the_library_are_imported_on_access() -> None:
    assert aol.weights.temper is aol.temper


def test_importing_aol_imports_nothing_heavy() -> None:
    code = f"import sys, aol.lab.settings as s; s.Settings(); print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
