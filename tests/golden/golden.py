"""Reference runs of version 0.2: curves, readings by class and ids must stay equal to the last bit.

`python tests/golden/golden.py --write` writes `expected.json`; without it, runs are compared and differences printed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SMALL = "--samples 600 --epochs 4 --threads 1"
CASES = {
    "weightings": f"train {SMALL} --weighting none,cb,aol,cb+aol,frequency,error --seed 0-1",
    "one": "train --samples 600 --epochs 3 --weighting aol --rho 0.3",
    "levels": f"train {SMALL} --weighting aol --level class,sample --rho 0.2,0.8 --mechanism reweight,resample",
    "losses": f"train {SMALL} --weighting aol --loss softmax,sigmoid,focal",
    "peak": f"train {SMALL} --weighting aol --level sample --fuse peak",
    "sets": f"train {SMALL} --epochs 6 --weighting old,jtt --after 2 --factor 0,3 --nuisance patch --conflicts 0.1",
    "sample": f"train {SMALL} --weighting sample-error,sample-loss --level sample --validation 0.1 --noise 0.1",
    "margins": f"train {SMALL} --margin none,counts,age,error,probability --gain 0.5",
    "margin-steps": f"train {SMALL} --margin probability --margin-steps 3 --tau 1,1.5 --signal none",
    "keep": f"train {SMALL} --weighting none,aol --keep-samples --imbalance 20",
    "shifting": "stream --samples 900 --steps 6 --period 2 --memory all,reservoir:200,none --weighting none,aol",
    "access": "stream --stream access --steps 6 --memory reservoir:300 --weighting none,aol,cb --rho 0.1,0.8",
    "before": "stream --steps 5 --signal before --memory none --weighting aol --margin none,probability",
    "arrival": "train --fraction 0.2 --epochs 5 --weighting none,aol --level class,sample",
}


def readings(folder: Path) -> dict[str, object]:
    """Return hashes of what was measured, by run."""
    from aol import load_runs  # noqa: F401 (the installation must be complete)

    values: dict[str, object] = {}
    for path in sorted((folder / "runs").glob("*/run.json")):
        run = json.loads(path.read_text())
        curves = {k: v for k, v in run["curves"].items() if "second" not in k and "prequential" not in k}
        parts = {
            "curves": curves,
            "by_class": run["by_class"],
            "over_time": run.get("over_time"),
            "method": run["method"],
        }
        values[run["id"]] = {
            name: hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:16]
            for name, part in parts.items()
        } | {"accuracy": run["curves"]["test_accuracy"][-1]}
    return values


def run(words: str) -> dict[str, object]:
    """Run one case in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "aol", *words.replace(" --threads 1", "").split(), "--out", f"{name}/out"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:
            return {"error": done.stderr[-500:]}
        return readings(Path(name) / "out")


def main() -> int:
    names = [word for word in sys.argv[1:] if not word.startswith("-")] or list(CASES)
    values = {name: run(CASES[name]) for name in names}
    file = HERE / "expected.json"
    if "--write" in sys.argv:
        file.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")
        for name, value in values.items():
            print(name, len(value), value.get("error", ""))
        return 0
    expected = json.loads(file.read_text())
    different = 0
    for name in names:
        if values[name] != expected[name]:
            different += 1
            print(f"{name}: differs")
            for key in sorted(expected[name].keys() | values[name].keys()):
                old, new = expected[name].get(key), values[name].get(key)
                if old != new:
                    print(f"  {key}\n    expected {old}\n    now      {new}")
    print(f"{len(names) - different} of {len(names)} equal")
    return different > 0


if __name__ == "__main__":
    sys.exit(main())
