"""Compiling and checking the kernels before benchmarks/kernels.py times them, in many processes at once."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from kernel_cases import DEVICE, Case, all_cases, other_cases
from kernel_steps import BATCH, network_errors, network_time

from aol.lab.nets.fused import tiles

START = time.perf_counter()
RUNS = 64
PARTS = 10  # processes the checks are shared among
Cut = tuple[int, int, int, int, int]  # pixels, warps, stages, registers, programs a multiprocessor

# What is tried for each kernel: (kernel, channels) → cuts, the usual one first. The quickest is used for the steps.
SWEEP: dict[tuple[str, int], list[Cut]] = {
    ("forward_rows", 16): [(64, 4, 3, 0, 0), (64, 4, 4, 0, 0), (128, 4, 3, 0, 0)],
    ("forward_rows", 32): [(64, 4, 3, 0, 0), (64, 8, 3, 0, 0), (128, 8, 2, 0, 0)],
    ("forward", 64): [(128, 4, 3, 0, 0), (256, 8, 2, 0, 0)],
    ("backward_rows", 16): [(64, 4, 3, 0, 0), (64, 4, 4, 0, 0), (128, 8, 3, 0, 0)],
    ("backward_rows", 32): [(64, 4, 3, 0, 0), (64, 8, 3, 0, 0), (128, 8, 2, 0, 0)],
    ("backward_input", 64): [(64, 4, 3, 0, 0), (128, 4, 3, 0, 0), (128, 8, 3, 0, 0), (256, 8, 2, 0, 0)],
    ("backward_weight", 16): [(64, 4, 3, 0, 5), (64, 4, 4, 0, 4), (128, 4, 2, 0, 4)],
    ("backward_weight", 32): [(64, 4, 2, 0, 3), (64, 8, 2, 0, 2), (32, 4, 4, 0, 3)],
    ("backward_weight", 64): [(64, 4, 2, 0, 3), (64, 8, 2, 0, 2), (32, 4, 3, 0, 3)],
    ("halving_input", 32): [(64, 4, 3, 0, 0), (128, 8, 3, 0, 0)],
    ("halving_input", 64): [(64, 8, 3, 0, 0), (64, 4, 2, 0, 0)],
    ("halving_weight", 16): [(32, 4, 3, 0, 5), (64, 4, 2, 0, 3), (64, 4, 3, 0, 2)],
    ("halving_weight", 32): [(32, 8, 3, 0, 2), (64, 8, 2, 0, 1)],
}


def cases(kernel: str, channels: int) -> dict[str, Case]:
    """Make the full-size cases a kernel is tuned on."""
    kind = kernel.split("_")[0]
    if kind == "halving":
        name = f"halving{channels if kernel == 'halving_weight' else channels // 2}.backward"
        return {name: other_cases(RUNS, BATCH, 32)[name]()}
    made = all_cases(RUNS, BATCH, 32, (channels,))
    return {name: build() for name, build in made.items() if name.startswith(kind)}


def put(kernel: str, channels: int, cut: Cut) -> None:
    tiles.TILES[kernel, channels] = tiles.Tile(*cut)


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


def check(failures: list[str], small: bool, part: slice = slice(None)) -> dict[str, float]:
    """Relative error of every result of every kernel on fresh random inputs, an odd batch among them."""
    found: dict[str, float] = {}

    def one(name: str, build: Callable[[], Case]) -> None:
        case = build()
        results = case.call()
        for key, value in case.reference().items():
            away = results[key].double().reshape(-1) - value.double().reshape(-1)
            found[f"{name}.{key}"] = float(torch.nan_to_num(away.norm() / value.double().norm(), nan=float("inf")))

    for name, build in list(check_cases(small).items())[part]:
        guarded(name, partial(one, name, build), failures)
    return found


def prepare(job: tuple[str, int, Cut | None]) -> tuple[str, dict[str, float]]:
    """Fill Triton's cache from a process of its own, so that compilers run side by side; checks give their errors."""
    kind, size, cut = job
    usual = dict(tiles.TILES), tiles.FEWEST, tiles.MADE_CHANNELS
    failures: list[str] = []
    errors: dict[str, float] = {}
    try:
        if kind == "check":
            errors = check(failures, small=False, part=slice(size, None, PARTS))
        elif kind == "errors":
            errors = network_errors()
        elif kind == "inside":
            tiles.MADE_CHANNELS = ()
            all_cases(RUNS, BATCH, 32, (size,))[f"forward{size}.norm"]().call()
            all_cases(RUNS, BATCH, 32, (size,))[f"backward{size}.inner"]().call()
        elif cut is None:
            network_time(kind, size)
        else:
            put(kind, size, cut)
            for case in cases(kind, size).values():
                case.call()
        torch.cuda.synchronize()
    except Exception as error:
        failures.append(f"{job}: {type(error).__name__}: {str(error)[:200]}")
    finally:
        tiles.TILES.clear()
        tiles.TILES.update(usual[0])
        tiles.FEWEST, tiles.MADE_CHANNELS = usual[1:]
        torch.cuda.empty_cache()
    return "; ".join(failures), errors


def prepare_all(failures: list[str], sweep: bool) -> dict[str, float]:
    """Compile and check everything, many at once; torch.compile's cache is filled at the same time."""
    jobs: list[tuple[str, int, Cut | None]] = [("errors", 0, None)]
    jobs += [("fused", 64, None), ("fused evaluation", 64, None), ("fused", 1, None)]
    jobs += [("inside", c, None) for c in (16, 32, 64)]
    jobs += [("check", part, None) for part in range(PARTS)]
    if sweep:
        jobs += [(kernel, channels, cut) for (kernel, channels), cuts in SWEEP.items() for cut in cuts[1:]]
    reference = get_context("spawn").Process(target=network_time, args=("compiled", 64))
    reference.start()
    errors: dict[str, float] = {}
    with ProcessPoolExecutor(12, mp_context=get_context("spawn")) as workers:
        for failure, found in workers.map(prepare, jobs):
            failures += [failure] if failure else []
            errors |= found
    print(f"compiled and checked by {elapsed():.0f} s", flush=True)
    reference.join(max(1, 90 - elapsed()))
    print(f"torch.compile {'not ' if reference.is_alive() else ''}ready by {elapsed():.0f} s", flush=True)
    if reference.is_alive():
        reference.kill()
        reference.join()
    return errors


def limited(way: str, runs: int, seconds: float) -> dict[str, object]:
    """Time a step in a process of its own, which is ended after so many seconds."""
    workers = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    try:
        return workers.submit(network_time, way, runs).result(timeout=seconds)
    except TimeoutError:
        for process in list(workers._processes.values()):
            process.kill()
        raise
    finally:
        workers.shutdown(wait=False, cancel_futures=True)
