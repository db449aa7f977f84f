"""The report of any runs: an HTML page, the table of samples, and the figures of `aol.report.figures`."""
