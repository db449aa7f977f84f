"""A run on disk: its record, what is kept of its samples, folders of runs, and the frame that everything reads."""

# Settings that make a method; runs that differ in any other have different conditions, and are not compared.
METHOD_SETTINGS = (
    "weighting", "rho", "beta", "power", "temper", "level", "after", "factor", "mechanism", "loss", "gamma",
    "divide_by", "margin", "tau", "gain", "margin_memory", "margin_steps", "mixup", "retrain", "smoothing", "start",
    "threshold", "seed",
)  # fmt: skip
