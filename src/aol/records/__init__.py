"""A run on disk: its record, folders of runs, and the frame that everything reads.

`record.py` is the schema, `store.py` a folder of runs, `recorder.py` writes the record of a user's own loop,
`samples.py`, `history.py` and `previews.py` hold what is kept of every sample, `table.py` is runs as pandas DataFrames.
"""

# Settings that make a method; runs that differ in any other have different conditions, and are not compared.
METHOD_SETTINGS = (
    "weighting", "rho", "beta", "power", "temper", "level", "after", "factor", "mechanism", "loss", "gamma",
    "divide_by", "margin", "tau", "gain", "margin_memory", "margin_steps", "mixup", "retrain", "smoothing", "start",
    "threshold", "seed",
)  # fmt: skip
