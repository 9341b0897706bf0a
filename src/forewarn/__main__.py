"""`python -m forewarn` runs the `forewarn` command."""

import sys

from forewarn.cli import main

if __name__ == "__main__":
    sys.exit(main())
