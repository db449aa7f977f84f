"""The report of any runs: an HTML page, the table of samples, and the figures of `aol.report.figures`.

`run_data.py` reads runs, `payload.py` makes the data of the page, `assets/` draws it, `page.py` writes the file.
"""
