"""The kernels of `aol.nets.fused` on this GPU: checked, tuned, timed, and the training steps they make.

Every kernel is checked against fp64 on random inputs and timed beside cuDNN and the floor of the bytes it moves;
then whole training steps of R stacked ResNet-32s are timed three ways. Prints tables and writes JSON.

    python benchmarks/kernels.py [--out FILE] [--budget SECONDS] [--check-only]

Without a GPU, `TRITON_INTERPRET=1 … --check-only` checks the kernels on tiny maps.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from kernel_cases import DEVICE, Case, all_cases, other_cases
from kernel_steps import BATCH, network_errors, network_time, profile

from aol.nets.fused import tiles

START = time.perf_counter()
RUNS = 64
STAGES = {16: 32, 32: 16, 64: 8}  # channels → size of the map
Cut = tuple[int, int, int, int]  # pixels, warps, stages, registers

# What is tried for each kernel: (kernel, channels) → cuts. The quickest is used for the steps below.
SWEEP: dict[tuple[str, int], list[Cut]] = {
    ("forward_rows", 16): [
        (128, 4, 3, 0), (128, 4, 2, 0), (64, 4, 3, 0), (128, 4, 3, 128), (128, 8, 2, 0), (256, 8, 2, 0),
    ],
    ("forward_rows", 32): [(128, 8, 2, 0), (128, 8, 2, 128), (64, 4, 3, 0), (64, 4, 2, 0), (128, 4, 2, 0)],
    ("backward_rows", 16): [
        (64, 4, 2, 0), (64, 4, 1, 0), (64, 4, 2, 168), (64, 4, 2, 128), (128, 8, 2, 128), (64, 8, 2, 0),
    ],
    ("backward_rows", 32): [(64, 8, 2, 0), (64, 8, 2, 128), (64, 4, 2, 0), (128, 8, 2, 0)],
    ("forward", 64): [(128, 4, 3, 0), (128, 8, 3, 0), (64, 4, 3, 0), (128, 4, 4, 0)],
    ("backward_input", 64): [(128, 4, 3, 0), (128, 8, 3, 0), (128, 8, 2, 0), (64, 4, 3, 0)],
    ("backward_weight", 64): [(64, 8, 3, 0), (64, 8, 2, 0), (128, 8, 2, 0), (32, 8, 3, 0)],
}  # fmt: skip


def cases(kernel: str, channels: int) -> dict[str, Case]:
    """Make the full-size cases a kernel is tuned on."""
    made = all_cases(RUNS, BATCH, 32, (channels,))
    kind = kernel.split("_")[0]
    return {name: build() for name, build in made.items() if name.startswith(kind)}


def put(kernel: str, channels: int, cut: Cut) -> None:
    tiles.TILES[kernel, channels] = tiles.Tile(*cut)


def compile_only(job: tuple[str, int, Cut | None]) -> str:
    """Fill Triton's cache from a process of its own, so that compilers run side by side."""
    kind, size, cut = job
    usual = dict(tiles.TILES), tiles.FEWEST
    try:
        if kind == "check":
            for build in list(check_cases(small=False).values())[size::10]:
                build().call()
        elif kind == "errors":
            network_errors()
        elif cut is None:
            network_time(kind, size)
        else:
            put(kind, size, cut)
            for case in cases(kind, size).values():
                case.call()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{job}: {type(error).__name__}: {str(error)[:200]}"
    finally:
        tiles.TILES.clear()
        tiles.TILES.update(usual[0])
        tiles.FEWEST = usual[1]
    return ""


def compile_all(failures: list[str]) -> None:
    jobs: list[tuple[str, int, Cut | None]] = [("errors", 0, None)]
    jobs += [("fused", 64, None), ("fused evaluation", 64, None), ("fused", 1, None)]
    jobs += [("check", part, None) for part in range(10)]
    jobs += [(kernel, channels, cut) for (kernel, channels), cuts in SWEEP.items() for cut in cuts]
    with ProcessPoolExecutor(12, mp_context=get_context("spawn")) as workers:
        failures += filter(None, workers.map(compile_only, jobs))
    print(f"compiled by {elapsed():.0f} s", flush=True)


def bench(call: Callable[[], object], rep: int = 30) -> float:
    """Median milliseconds, the cache flushed in between."""
    return float(triton.testing.do_bench(call, warmup=8, rep=rep, return_mode="median"))


def times_of(made: dict[str, Case]) -> dict[str, float]:
    return {name: bench(case.call) for name, case in made.items()}


def elapsed() -> float:
    return time.perf_counter() - START


def guarded(name: str, work: Callable[[], Any], failures: list[str]) -> Any:
    try:
        return work()
    except Exception:
        failures.append(f"{name}: {traceback.format_exc(limit=-3)[-900:]}")
        print(f"FAILED {name}: {failures[-1]}", flush=True)
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
        return None


def check_cases(small: bool) -> dict[str, Callable[[], Case]]:
    """List the cases to check, each made for the way it is named for: by tiles or by rows."""

    def walking(fewest: int, build: Callable[[], Case]) -> Case:
        tiles.FEWEST = fewest
        return build()

    runs, batch, size = (2, 3, 8) if small else (3, 9, 32)
    made = {f"tiles.{name}": build for name, build in all_cases(runs, batch, size, (16, 32, 64)).items()}
    made |= other_cases(runs, batch, size)
    found = {name: partial(walking, 10**9, build) for name, build in made.items()}
    by_rows = all_cases(runs, batch, size, (16, 32))
    return found | {f"rows.{name}": partial(walking, 0, build) for name, build in by_rows.items()}


def check(failures: list[str], small: bool) -> dict[str, float]:
    """Relative error of every result of every kernel on fresh random inputs, an odd batch among them."""
    found: dict[str, float] = {}

    def one(name: str, build: Callable[[], Case]) -> None:
        case = build()
        results = case.call()
        for key, value in case.reference().items():
            away = results[key].double().reshape(-1) - value.double().reshape(-1)
            found[f"{name}.{key}"] = float(torch.nan_to_num(away.norm() / value.double().norm(), nan=float("inf")))

    for name, build in check_cases(small).items():
        guarded(name, partial(one, name, build), failures)
    return found


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
                "kernel": name if kernel != "backward_weight" else f"{name} again",
                "ms": times[best][name],
                "floor": case.moved / bandwidth * 1e3,
            }
            rows.append({**row, "cut": best, "all": {str(cut): round(t[name], 4) for cut, t in times.items()}})
        del made
        torch.cuda.empty_cache()
    return rows


def others(bandwidth: float, failures: list[str]) -> list[dict[str, object]]:
    """Time what is not tuned: strided convolutions, ends, stem, pooling, evaluation."""
    made = other_cases(RUNS, BATCH, 32)
    within = all_cases(RUNS, BATCH, 32, tuple(STAGES))
    made |= {name: build for name, build in within.items() if name.startswith("finished")}
    rows: list[dict[str, object]] = []

    def one(name: str, build: Callable[[], Case]) -> None:
        case = build()
        rows.append({"kernel": name, "ms": bench(case.call), "floor": case.moved / bandwidth * 1e3})

    for name, build in made.items():
        guarded(name, partial(one, name, build), failures)
        torch.cuda.empty_cache()
    return rows


def ways_back(failures: list[str]) -> dict[str, float]:
    """Time both gradients of thin convolutions in one kernel, in two that walk rows or tiles, and all by tiles."""
    found: dict[str, float] = {}
    usual = tiles.FUSED_CHANNELS, tiles.FEWEST
    for channels in tiles.FUSED_CHANNELS:
        for name, fused, fewest in (("one", usual[0], 0), ("rows and tiles", (), 0), ("tiles", (), 10**9)):
            tiles.FUSED_CHANNELS, tiles.FEWEST = fused, fewest
            measured = guarded(f"back {name}", lambda c=channels: times_of(cases("backward_rows", c)), failures) or {}
            found |= {f"{case} {name}": ms for case, ms in measured.items()}
            torch.cuda.empty_cache()
        tiles.FUSED_CHANNELS, tiles.FEWEST = usual
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
    parser.add_argument("--budget", type=float, default=225, help="seconds after which no further variant is begun")
    parser.add_argument("--check-only", action="store_true")
    chosen = parser.parse_args()
    failures: list[str] = []
    few = tiles.FEWEST
    if DEVICE == "cuda":
        guarded("compiling", partial(compile_all, failures), failures)
    report: dict[str, Any] = {"errors": check(failures, small=DEVICE == "cpu")}
    tiles.FEWEST = few
    if DEVICE == "cuda":
        report["errors"] |= guarded("network", network_errors, failures) or {}
    worst = sorted(report["errors"].items(), key=lambda item: -item[1])
    print(f"checked by {elapsed():.0f} s; worst relative errors: {worst[:6]}", flush=True)
    if chosen.check_only:
        assert not failures and worst[0][1] < 1e-2, (failures, worst[:6])  # noqa: PT018
        return
    torch.backends.cudnn.benchmark = True
    bandwidth = copy_bandwidth()
    device = torch.cuda.get_device_properties(0)
    report |= {"device": device.name, "torch": torch.__version__, "triton": triton.__version__, "bandwidth": bandwidth}
    report["kernels"] = tune(bandwidth, failures) + others(bandwidth, failures)
    report["ways_back"] = ways_back(failures)
    report["cudnn"] = cudnn(failures)
    print(f"kernels timed by {elapsed():.0f} s", flush=True)
    ways = [
        ("fused", 64),
        ("fused", 16),
        ("fused", 1),
        ("fused evaluation", 64),
        ("plain", 64),
        ("plain evaluation", 64),
    ]
    ways += [("compiled", 64), ("plain", 16), ("plain", 1), ("compiled", 16), ("compiled", 1)]
    report["steps"] = []
    for way, runs in ways:
        if elapsed() > chosen.budget - (60 if way == "compiled" else 5):
            failures.append(f"{way} {runs}: no time left")
            continue
        row = guarded(f"{way} {runs}", partial(network_time, way, runs), failures)
        if row:
            report["steps"].append(row)
        torch._dynamo.reset()
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
    for row in report["kernels"]:
        if "all" in row:
            print(f"  {row['kernel']:24s} {row['all']}")
    print(f"back, ms: { {name: round(ms, 3) for name, ms in report['ways_back'].items()} }")
    print(f"cuDNN, ms: { {name: round(ms, 3) for name, ms in report['cudnn'].items()} }")
    print(f"{'kernel':26s} {'ms':>8s} {'floor':>8s} {'× floor':>8s}  cut")
    for row in report["kernels"]:
        ratio = row["ms"] / row["floor"]
        print(f"{row['kernel']:26s} {row['ms']:8.3f} {row['floor']:8.3f} {ratio:8.2f}  {row.get('cut', '')}")
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
