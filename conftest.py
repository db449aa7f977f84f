"""What needs Triton, a GPU, a browser or a plug-in's host is collected where it can run.

Kernels: doctests with Triton, tests by interpreter or on a GPU. The page: where AOL_CHROMIUM names a browser. Plug-ins:
in the environment of the host that AOL_HOST names (`make test-plugins`), and nowhere else: elsewhere the host may be
another version, or not there.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import torch

ROOT = Path(__file__).parent
NEED_NO_TRITON = ("__init__.py", "plan.py")
triton = find_spec("triton") is not None

collect_ignore = [str(ROOT / "tests" / "support")]
if not triton:
    kernels = (ROOT / "src" / "aol" / "lab" / "nets" / "fused").glob("*.py")
    collect_ignore += [str(path) for path in kernels if path.name not in NEED_NO_TRITON]
if not triton or os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore.append(str(ROOT / "tests" / "lab" / "nets" / "fused"))
if not triton or not torch.cuda.is_available():
    collect_ignore.append(str(ROOT / "tests" / "gpu"))
if "AOL_CHROMIUM" not in os.environ:
    collect_ignore.append(str(ROOT / "tests" / "browser"))

for host in ("lightning", "river", "transformers"):
    if host not in os.environ.get("AOL_HOST", "").split(","):
        collect_ignore += [str(ROOT / "src" / "aol" / "plugins" / f"{host}.py"), str(ROOT / "tests" / "plugins" / host)]
if "sources" not in os.environ.get("AOL_HOST", "").split(","):  # torchvision, timm, Hugging Face datasets
    collect_ignore.append(str(ROOT / "tests" / "lab" / "data" / "sources"))
if "sklearn" not in os.environ.get("AOL_HOST", "").split(","):  # scikit-learn is always there; not so its neighbours
    collect_ignore.append(str(ROOT / "tests" / "plugins" / "trees"))
    collect_ignore.append(str(ROOT / "tests" / "plugins" / "sklearn" / "test_sklearn_checks.py"))  # long, and once
