"""`python -m aol`, and the command `aol`."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command line and leave with its exit status."""
    try:
        from aol.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(main())


if __name__ == "__main__":
    run()
