"""`python -m aol`, and the command `aol`."""

from __future__ import annotations

import contextlib
import sys
import warnings


def _show_warning(message: Warning | str, *_where: object) -> None:
    """Print a warning as errors are printed: in one line, without the place in the source."""
    from aol.cli import note

    with contextlib.suppress(OSError):  # nobody reads standard error: training goes on
        note(f"warning: {message}")


def run() -> None:
    """Run the command line and leave with its exit status."""
    try:
        from aol.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    warnings.showwarning = _show_warning  # type: ignore[assignment] # not before what it imports
    sys.exit(main())


if __name__ == "__main__":
    run()
