"""What needs Triton, a GPU or a browser is collected where it can run: see `make test-kernels` and `test-browser`."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import torch

ROOT = Path(__file__).parent
NEED_NO_TRITON = ("__init__.py", "plan.py")
triton = find_spec("triton") is not None

collect_ignore = []
if not triton:
    kernels = (ROOT / "src" / "aol" / "nets" / "fused").glob("*.py")
    collect_ignore += [str(path) for path in kernels if path.name not in NEED_NO_TRITON]
if not triton or os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore.append(str(ROOT / "tests" / "nets" / "fused"))
if not triton or not torch.cuda.is_available():
    collect_ignore.append(str(ROOT / "tests" / "gpu"))
if "AOL_CHROMIUM" not in os.environ:
    collect_ignore.append(str(ROOT / "tests" / "browser"))
