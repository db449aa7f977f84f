"""A run on disk: its record, folders of runs, the driver that trains them, and the frame that everything reads.

`record.py` is the schema, `store.py` a folder of runs, `driver.py` the only place that drives a training loop,
`recorder.py` the same record from a user's own loop, `table.py` runs as pandas DataFrames.
"""
