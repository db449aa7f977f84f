"""The kernels of `aol.lab.nets.fused` on this GPU: checked, tuned, timed, and the training steps they make.

Every kernel is checked against fp64 on random inputs and timed beside cuDNN and the floor of the bytes it moves;
then whole training steps of R stacked ResNet-32s are timed three ways. Prints tables and writes JSON.

    python benchmarks/kernels.py [--out FILE] [--budget SECONDS] [--sweep] [--check-only]

Without a GPU, `TRITON_INTERPRET=1 … --check-only` checks the kernels on tiny maps.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from kernel_cases import DEVICE, Case, all_cases, all_parts, other_cases
from kernel_prepare import RUNS, SWEEP, Cut, cases, check, elapsed, guarded, limited, prepare_all, put
from kernel_steps import BATCH, network_time, profile

from aol.lab.nets.fused import tiles

STAGES = {16: 32, 32: 16, 64: 8}  # channels → size of the map


def bench(call: Callable[[], object], rep: int = 30) -> float:
    """Median milliseconds, the cache flushed in between."""
    return float(triton.testing.do_bench(call, warmup=8, rep=rep, return_mode="median"))


def times_of(made: dict[str, Case]) -> dict[str, float]:
    return {name: bench(case.call) for name, case in made.items()}


def tune(bandwidth: float, failures: list[str]) -> list[dict[str, object]]:
    """Time every cut of every kernel, keep the quickest in the table the network uses."""
    rows: list[dict[str, object]] = []
    for (kernel, channels), cuts in SWEEP.items():
        made = cases(kernel, channels)
        default = tiles.TILES.get((kernel, channels))
        times: dict[Cut, dict[str, float]] = {}
        for cut in cuts:
            put(kernel, channels, cut)
            measured = guarded(f"{kernel}{channels} {cut}", partial(times_of, made), failures)
            if measured:
                times[cut] = measured
        if not times:
            tiles.TILES.pop((kernel, channels), None)
            if default:
                tiles.TILES[kernel, channels] = default
            continue
        best = min(times, key=lambda cut: sum(times[cut].values()))
        put(kernel, channels, best)
        for name, case in made.items():
            row = {
                "kernel": f"{name} ({kernel})",
                "ms": times[best][name],
                "floor": case.moved / bandwidth * 1e3,
            }
            rows.append({**row, "cut": best, "all": {str(cut): round(t[name], 4) for cut, t in times.items()}})
        del made
        torch.cuda.empty_cache()
    return rows


def timed(bandwidth: float, failures: list[str]) -> list[dict[str, object]]:
    """Time every case with the cuts in use."""
    made = all_cases(RUNS, BATCH, 32, tuple(STAGES)) | other_cases(RUNS, BATCH, 32)
    rows: list[dict[str, object]] = []

    def one(name: str, build: Callable[[], Case]) -> None:
        case = build()
        rows.append({"kernel": name, "ms": bench(case.call), "floor": case.moved / bandwidth * 1e3})

    for name, build in made.items():
        guarded(name, partial(one, name, build), failures)
        torch.cuda.empty_cache()
    return rows


def parts(failures: list[str]) -> dict[str, dict[str, float]]:
    """Time the kernels of each backward case alone."""
    found: dict[str, dict[str, float]] = {}
    for name, build in all_parts(RUNS, BATCH, 32).items():
        measured = guarded(name, lambda b=build: {part: bench(call) for part, call in b().items()}, failures)
        found[name] = {part: round(ms, 3) for part, ms in (measured or {}).items()}
        torch.cuda.empty_cache()
    return found


def entries(failures: list[str]) -> dict[str, float]:
    """Time a convolution behind a norm and relu: made inside it, or written first."""
    found: dict[str, float] = {}
    usual = tiles.MADE_CHANNELS
    for c in STAGES:
        for name, made in (("inside", ()), ("written", (c,))):
            tiles.MADE_CHANNELS = made
            build = all_cases(RUNS, BATCH, 32, (c,))[f"forward{c}.norm"]
            found[f"{c} {name}"] = guarded(f"entry {c}", lambda b=build: round(bench(b().call), 3), failures)
            torch.cuda.empty_cache()
    tiles.MADE_CHANNELS = usual
    return found


def cudnn(failures: list[str]) -> dict[str, float]:
    """Time grouped convolutions of the same shapes, and a batch norm with relu, channels last in bf16."""
    found: dict[str, float] = {}
    for c, size in STAGES.items():

        def one(c: int = c, size: int = size) -> None:
            x = torch.randn(BATCH, RUNS * c, size, size, device=DEVICE, dtype=torch.bfloat16).to(
                memory_format=torch.channels_last
            )
            w = torch.randn(RUNS * c, c, 3, 3, device=DEVICE, dtype=torch.bfloat16).to(
                memory_format=torch.channels_last
            )
            s = torch.rand(RUNS * c, device=DEVICE)
            found[f"forward{c}"] = bench(lambda: F.conv2d(x, w, None, 1, 1, 1, RUNS))
            found[f"norm_relu{c}"] = bench(lambda: F.batch_norm(x, s, s, s, s, True).relu_())
            for name, mask in (("input", [True, False, False]), ("weight", [False, True, False])):
                found[f"backward_{name}{c}"] = bench(
                    lambda m=mask: torch.ops.aten.convolution_backward(
                        x, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], RUNS, m
                    )
                )

        guarded(f"cudnn{c}", one, failures)
    return found


def copy_bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    a = torch.randn(2**28, device=DEVICE)
    b = torch.empty_like(a)
    return 2 * a.nbytes / bench(lambda: b.copy_(a)) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "kernels.json")
    parser.add_argument("--budget", type=float, default=200, help="seconds after which no further variant is begun")
    parser.add_argument("--sweep", action="store_true", help="try other cuts of the kernels, and use the quickest")
    parser.add_argument("--check-only", action="store_true")
    chosen = parser.parse_args()
    failures: list[str] = []
    if DEVICE == "cuda":
        report: dict[str, Any] = {
            "errors": guarded("preparing", partial(prepare_all, failures, chosen.sweep), failures)
        }
    else:
        report = {"errors": check(failures, small=True)}
    worst = sorted((report["errors"] or {}).items(), key=lambda item: -item[1])
    print(f"worst relative errors: {worst[:6]}", flush=True)
    if chosen.check_only:
        assert not failures, failures
        assert worst[0][1] < 1e-2, worst[:6]
        return
    torch.backends.cudnn.benchmark = True
    bandwidth = copy_bandwidth()
    device = torch.cuda.get_device_properties(0)
    report |= {"device": device.name, "torch": torch.__version__, "triton": triton.__version__, "bandwidth": bandwidth}
    report["sweep"] = tune(bandwidth, failures) if chosen.sweep else []
    report["kernels"] = timed(bandwidth, failures)
    report["parts"] = parts(failures)
    report["entries"] = entries(failures)
    report["cudnn"] = cudnn(failures)
    print(f"kernels timed by {elapsed():.0f} s", flush=True)
    ways = [("compiled", 64), ("fused", 64), ("fused", 16), ("fused", 8), ("fused", 1), ("fused evaluation", 64)]
    ways += [("plain", 64), ("plain evaluation", 64), ("plain", 16), ("plain", 8), ("plain", 1)]
    report["steps"] = []
    for way, runs in ways:
        left = chosen.budget - elapsed()
        if left < 5:
            failures.append(f"{way} {runs}: no time left")
            continue
        work = partial(network_time, way, runs)
        if way == "compiled":
            work = partial(limited, way, runs, min(90, max(left - 40, 1)))
        row = guarded(f"{way} {runs}", work, failures)
        if row:
            report["steps"].append(row)
        torch.cuda.empty_cache()
        if (way, runs) == ("fused", 64):
            report["profile"] = guarded("profile", partial(profile, 64), failures) or []
            torch.cuda.empty_cache()
    report |= {"failures": failures, "seconds": elapsed()}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(report, indent=1, default=str) + "\n")
    show(report, worst)


def show(report: dict[str, Any], worst: list[tuple[str, float]]) -> None:
    versions = f"torch {report['torch']}, triton {report['triton']}"
    print(f"\n{report['device']}, {versions}, copy {report['bandwidth'] / 1e12:.2f} TB/s")
    for row in report.get("profile", []):
        print(f"  {row['kernel']:60s} {row['ms']:8.3f} ms {row['calls']:4d}×")
    for row in report["sweep"]:
        print(f"  {row['kernel']:40s} {row['all']}")
    for name, measured in report["parts"].items():
        print(f"  {name:24s} {measured}")
    print(f"norm and relu before a convolution, ms: {report['entries']}")
    print(f"cuDNN, ms: { {name: round(ms, 3) for name, ms in report['cudnn'].items()} }")
    print(f"{'kernel':26s} {'ms':>8s} {'floor':>8s} {'× floor':>8s}")
    for row in report["kernels"]:
        ratio = row["ms"] / row["floor"]
        print(f"{row['kernel']:26s} {row['ms']:8.3f} {row['floor']:8.3f} {ratio:8.2f}")
    for failure in report["failures"]:
        print("failed:", failure[:300].replace("\n", " | "))
    print("worst errors:", [(name, f"{value:.1e}") for name, value in worst[:5]])
    print(f"{'way':18s} {'runs':>5s} {'batch':>6s} {'ms':>9s} {'k images/s':>11s}")
    for row in report["steps"]:
        rate = row["thousand_images_a_second"]
        print(f"{row['way']:18s} {row['runs']:5d} {row['batch']:6d} {row['ms']:9.3f} {rate:11.1f}")
    print(f"{report['seconds']:.0f} s in all")


if __name__ == "__main__":
    main()
