"""The report of any runs: an HTML page, the table of samples, and the figures of `aol.plots`.

`run_data.py` reads runs, `payload.py` makes the data of the page, `assets/` draws it, `write.py` writes the files.
"""

from aol.report.export import export
from aol.report.page import write_page
from aol.report.run_data import RunData, load
from aol.report.write import follow_runs, watch, write_report

__all__ = ["RunData", "export", "follow_runs", "load", "watch", "write_page", "write_report"]
