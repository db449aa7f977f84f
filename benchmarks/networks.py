"""The table of `aol bench --nets`: for each figure the floor by FLOPs and by bytes, what was measured, and the gap."""

from __future__ import annotations

from measuring import Record, table

from aol.lab.nets import STACKINGS

# Of one H200: dense bf16 products as its data sheet says, memory as a copy was measured (README-kernels.md).
FLOPS, BYTES = 989e12, 4.24e12
_STRAIGHT = "straightforward loop over engine"


def text(record: Record) -> str:
    """Return the machine, and the tables of one run and of several."""
    rows = {row["what"]: row for row in record["rows"]}
    names = list(dict.fromkeys(what.split(", ")[0] for what in rows))
    versions = ", ".join(f"{name} {value}" for name, value in record["versions"].items())
    head = f"{versions}, {record['cores']} CPU cores; {record['data']}; epochs timed: {_n(record)}."
    parts = [head, table([_one(name, rows) for name in names])]
    several = [row for name in names for row in _several(name, rows)]
    return "\n\n".join([*parts, table(several)] if several else parts)


def _n(record: Record) -> int:
    return max(row["n"] for row in record["rows"])


def _one(name: str, rows: dict[str, Record]) -> dict[str, str]:
    value = {what.removeprefix(f"{name}, "): row["value"] for what, row in rows.items() if what.startswith(f"{name}, ")}
    epoch = value["one run, ages from a clean pass"]
    flops = value["one run, FLOPs of an epoch"] * 1e12 / FLOPS
    moved = value["one run, bytes of an epoch"] * 1e9 / BYTES
    return {
        "one run of": f"`{name}`",
        "floor by FLOPs": f"{flops:.3f} s",
        "floor by bytes": f"{moved:.3f} s",
        "measured epoch": f"{epoch:.3f} s",
        "gap to the sum": f"{epoch / (flops + moved):.1f} ×",
        "200 epochs": f"{200 * epoch:.0f} s",
        "straightforward loop": f"{value['straightforward loop, one run']:.2f} s an epoch",
        "ratio": f"{value['one run, straightforward loop over engine']:.1f} ×",
    }


def _several(name: str, rows: dict[str, Record]) -> list[dict[str, str]]:
    found = []
    for what, row in rows.items():
        if what.startswith(f"{name}, ") and " runs as one (" in what:
            start, way = what.removesuffix(")").split(" as one (")
            found.append(
                {
                    "runs as one": f"`{name}`, {start.split(', ')[-1]}",
                    "by": way,
                    "measured epoch": f"{row['value']:.2f} s",
                    "one after the other": f"{rows[f'{start}, one after the other']['value']:.2f} s",
                    "ratio": f"{rows[f'{start} as one, over one after the other']['value']:.1f} ×",
                    "straightforward loop": f"{rows[f'{start} as one, {_STRAIGHT}']['value']:.0f} ×",
                    "memory": f"{row['memory_gib'] or 0:.1f} GiB",
                }
            )
        elif what.startswith(f"{name}, ") and "quickest one after the other" in what:
            start = what.split(", quickest")[0]
            whole = f"{rows[f'{start}, one after the other']['value']:.2f} s"
            none = dict.fromkeys(("straightforward loop", "memory"), "")
            found.append(
                {"runs as one": f"`{name}`, {start.split(', ')[-1]}", "by": "alone", "measured epoch": whole}
                | {"one after the other": whole, "ratio": "1.0 ×", **none}
            )
    return found


def counts(record: Record) -> str:
    """Return the table of `compiled_bytes.py`: what a step of one of several runs needs at least."""
    rows = []
    for row in record["rows"]:
        cells = {
            way: f"{row['kernels'][way]} kernels, {moved / 1e9:.2f} GB: {moved / BYTES * 1e3:.2f} ms"
            for way, moved in row["bytes"].items()
        }
        rows.append(
            {"a step of one run": f"`{row['network']}`", "FLOPs": f"{row['flops'] / FLOPS * 1e3:.2f} ms", **cells}
        )
    return f"torch {record['torch']}, CPU; batches of {record['batch']}, bf16.\n\n{table(rows)}"


def steps(record: Record) -> str:
    """Return the table of training steps by each stacking, and how many times as fast as alone they are."""
    versions = ", ".join(f"{name} {value}" for name, value in record["versions"].items())
    found = {way for row in record["rows"] for way in row["ms_of_a_run"]}
    ways = [way for way in STACKINGS if way in found]
    rows = []
    for row in record["rows"]:
        taken = row["ms_of_a_run"]
        cells = {
            way: f"{taken[way]:.2f} ms ({taken['alone'] / taken[way]:.2f} ×)" if way in taken else "" for way in ways
        }
        rows.append({"a step of one of 16 runs": row["network"], "alone": f"{taken['alone']:.2f} ms", **cells})
    return f"{versions}; {record['data']}.\n\n{table(rows)}"
