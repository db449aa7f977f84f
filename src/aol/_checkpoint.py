"""Reading files of `torch.save` that anyone may have written or damaged."""

from __future__ import annotations

import io
import pickletools
import zipfile
from pathlib import Path

import torch

from aol._files import open_regular

# What torch.save writes for tensors and primitives. `weights_only` allows more, such as a bytearray of any size.
_GLOBALS = ("collections OrderedDict", "torch._utils _rebuild_tensor_v2")


class DamagedCheckpointError(ValueError):
    """A checkpoint that cannot be used."""


def load_tensors(path: Path) -> dict[str, object]:
    """Read a dict of tensors and primitives onto the CPU; nothing in the file is ever executed.

    Memory stays within twice the size of the file, and every byte is compared with its checksum.
    """
    try:
        with open_regular(path) as file:
            state = torch.load(_checked(file.read()), map_location="cpu", weights_only=True)
    except DamagedCheckpointError as error:
        raise DamagedCheckpointError(f"{path} is damaged: {error}") from error
    except Exception as error:  # whatever a damaged file makes the readers raise
        raise DamagedCheckpointError(f"{path} is damaged") from error
    if not isinstance(state, dict):
        raise DamagedCheckpointError(f"{path} is damaged: it holds no dict")
    return state


def _checked(content: bytes) -> io.BytesIO:
    """Return an archive for torch, written anew: torch compares no checksums, and trusts other headers than zipfile."""
    checked = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as given, zipfile.ZipFile(checked, "w") as new:
        members = [each for each in given.infolist() if not each.filename.rpartition("/")[2].startswith(".")]
        compressed = any(each.compress_type != zipfile.ZIP_STORED for each in members)
        if compressed or sum(each.file_size for each in members) > len(content):
            raise DamagedCheckpointError("it is compressed")
        for member in members:
            part = given.read(member)  # compares the checksum
            if member.filename.endswith("/data.pkl"):
                _check_pickle(part)
            new.writestr(member.filename, part)
    checked.seek(0)
    return checked


def _check_pickle(content: bytes) -> None:
    for code, value, _ in pickletools.genops(content):
        named = code.name == "GLOBAL" and (value in _GLOBALS or _is_storage(value))
        if code.name in ("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4") and not named:
            raise DamagedCheckpointError("it holds more than tensors")


def _is_storage(name: object) -> bool:
    return isinstance(name, str) and name.startswith("torch ") and name.endswith("Storage") and name.count(" ") == 1
