"""Records from elsewhere: folders, single files and tar archives, each record verified before it is taken."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aol.study.records import DamagedRecordError, Store, decoded


@dataclass
class Gathered:
    """How many records were new, how many were there already, and which files are no records, each with the reason."""

    new: int = 0
    known: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


def gather(sources: Sequence[Path], store: Store) -> Gathered:
    """Copy records into a store. One that is there and whole stays as it is."""
    found = Gathered()
    for source in sources:
        for name, content in _files(source):
            try:
                record = decoded(content, Path(name).stem)
            except DamagedRecordError as error:
                found.refused.append((name, str(error)))
                continue
            if store.get(record.run_id) is not None:
                found.known += 1
            else:
                store.put(record)
                found.new += 1
    return found


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every JSON file of a folder (or of `records` in it), an archive, or of one file."""
    if source.is_dir():
        inside = source / "records"
        for path in sorted((inside if inside.is_dir() else source).glob("*.json")):
            yield str(path), path.read_bytes()
    elif not source.exists():
        raise FileNotFoundError(f"{source}: no such folder or file")
    elif tarfile.is_tarfile(source):
        with tarfile.open(source) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.name.endswith(".json") else None
                if file is not None:
                    yield f"{source}: {member.name}", file.read()
    else:
        yield str(source), source.read_bytes()
