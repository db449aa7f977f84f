"""The records of `aol bench --large` as the tables of `benchmarks/README.md`.

Floors: a training step cannot be faster than its FLOPs at the peak of the tensor cores, nor than the bytes that its
layers read and write, where no two are fused, at the bandwidth of the memory.
"""

from __future__ import annotations

from typing import Any

from measuring import table

PEAKS = {"NVIDIA H200": (989e12, 4.8e12)}  # bf16 FLOP/s without sparsity, bytes/s; by the manufacturer
WAYS = (
    "JPEG, decoded while training",
    "packed, decoded while training",
    "JPEG, kept on the device",
    "packed, kept on the device",
)
COSTS = {
    "`--signal train`": "train",
    "clean pass over all samples": "eval",
    "`--clean-part 0.1`": "eval, a tenth of the samples",
}


def text(record: dict[str, Any]) -> str:
    """Return the tables of a record; what was not measured is left out."""
    rows = {row["what"]: row["value"] for row in record["rows"]}
    versions = record["versions"]
    names = [what.partition(",")[0] for what in rows if what.endswith("random tensors on the device")]
    parts = [
        f"{versions['device']}, {record['cores']} CPU cores; Python {versions['python']}, torch {versions['torch']}, "
        f"aol {versions['aol']}; {record['data']}; bf16, channels last; one pass timed.",
        table(_known([row for name in names for row in _speeds(rows, name)])),
        table([_floors(rows, name, *PEAKS[versions["device"]]) for name in names]),
    ]
    if alone := [{"decoding alone": what, "images/s": f"{rows[what]:,.0f}"} for what in rows if "without" in what]:
        parts.append(table(alone))
    if costs := [_costs(rows, name) for name in names if _cost(rows, name, "train") is not None]:
        parts.append(table(costs))
    return "\n\n".join(parts)


def _known(cells: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return a table without columns that are empty."""
    return [{name: text for name, text in row.items() if any(each[name] for each in cells)} for row in cells]


def _speeds(rows: dict[str, float], name: str) -> list[dict[str, str]]:
    alone = rows[f"{name}, random tensors on the device"]
    found = [_speed(name, "random tensors on the GPU", alone, alone)]
    loops = [what for what in rows if what.startswith(f"{name}, plain loop (")]
    found += [_speed(name, what.partition(", ")[2], rows[what], alone) for what in loops]
    shared = [what.partition(", ")[2] for what in rows if what.endswith(f" by workers, {WAYS[0].partition(', ')[2]}")]
    for way in dict.fromkeys((*shared, *WAYS)):
        if (what := f"{name}, {way}") in rows:
            waiting = f"{rows[f'{what}, waiting for images']:.1f} %"
            found.append(_speed(name, way, rows[what], alone, rows.get(f"{what}, over the plain loop"), waiting))
    return found


def _speed(
    name: str, way: str, speed: float, alone: float, ratio: float | None = None, waiting: str = ""
) -> dict[str, str]:
    return {
        "network": name,
        "images from": way,
        "images/s": f"{speed:,.0f}",
        "of random tensors": f"{100 * speed / alone:.0f} %",
        "of the plain loop": "" if ratio is None else f"{ratio:.2f} ×",
        "waiting for images": waiting,
    }


def _floors(rows: dict[str, float], name: str, flops: float, bandwidth: float) -> dict[str, str]:
    work, moved = (1e9 * rows[f"{name}, {what} of a training step, an image"] for what in ("FLOPs", "bytes"))
    alone = rows[f"{name}, random tensors on the device"]
    return {
        "network": name,
        "floor: FLOPs": f"{work / 1e9:.1f} G an image: {flops / work:,.0f} images/s",
        "floor: bytes": f"{moved / 1e6:.0f} MB an image: {bandwidth / moved:,.0f} images/s",
        "random tensors": f"{alone:,.0f} images/s",
        "gap to the lower floor": f"{min(flops / work, bandwidth / moved) / alone:.1f} ×",
    }


def _cost(rows: dict[str, float], name: str, signal: str) -> float | None:
    return rows.get(f"{name}, cost of ages over plain training, signal {signal}")


def _costs(rows: dict[str, float], name: str) -> dict[str, str]:
    found = {what: _cost(rows, name, signal) for what, signal in COSTS.items()}
    return {"ages add": name} | {what: "" if cost is None else f"{cost:.1f} %" for what, cost in found.items()}
