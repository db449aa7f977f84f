"""`python -m aol`: the command line where nothing is installed."""

from aol.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
