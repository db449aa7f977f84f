"""What each extra of `pip install` adds: packages and megabytes on the disk, beyond PyTorch and what it needs.

Measures the packages of the environment it runs in; an extra that is not installed there is left out. Run it in an
environment with all of them, such as those of `make test-plugins` together:

    python benchmarks/install_sizes.py
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOR_DEVELOPERS = ("browser", "dev", "docs", "test")


def extra_needs(extra: str) -> list[str]:
    """Return the requirements of an extra, with those of the extras that it names."""
    found = []
    for text in PROJECT["optional-dependencies"][extra]:
        named = re.fullmatch(r"aol\[(.*)\]", text)
        found += [each for name in named[1].split(",") for each in extra_needs(name)] if named else [text]
    return found


def closure(requirements: list[str]) -> set[str]:
    """Return the names of all packages that these requirements lead to in this environment."""
    found: set[str] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        need, extra = waiting.pop()
        name = re.sub(r"[-_.]+", "-", need.name).lower()
        if (need.marker is not None and not need.marker.evaluate({"extra": extra})) or name in found:
            continue
        found.add(name)
        inner = [Requirement(text) for text in metadata.requires(name) or []]
        waiting += [(each, extra) for each in inner for extra in ("", *need.extras)]
    return found


def megabytes(name: str) -> float:
    """Return the size of a package's files on the disk, without compiled Python."""
    files = metadata.files(name) or []
    paths = [Path(str(each.locate())) for each in files if not each.name.endswith(".pyc")]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def main() -> None:
    """Print a table in Markdown."""
    torch = closure(["torch"])
    core = closure(PROJECT["dependencies"])
    versions = f"Python {sys.version.split()[0]}, {sys.platform}; PyTorch {metadata.version('torch')}"
    print(f"{versions} and what it needs: {sum(map(megabytes, torch)):,.0f} MB in {len(torch)} packages.\n")
    print("| extra | adds packages | MB | the largest |\n| --- | ---: | ---: | --- |")
    for extra in ("", *PROJECT["optional-dependencies"]):
        if extra in FOR_DEVELOPERS:
            continue
        try:
            more = closure(extra_needs(extra)) - core if extra else core - torch
        except metadata.PackageNotFoundError as missing:
            print(f"{extra}: {missing.name} is not installed here", file=sys.stderr)
            continue
        sizes = sorted(((megabytes(name), name) for name in more), reverse=True)
        largest = ", ".join(f"{name} {size:,.0f}" for size, name in sizes[:3] if size >= 1)
        shown = f"`{extra}`" if extra else "none"
        print(f"| {shown} | {len(more)} | {sum(size for size, _ in sizes):,.0f} | {largest} |")


if __name__ == "__main__":
    main()
