"""`python -m forewarn.cli` is the command too."""

import sys

from forewarn.cli import main

sys.exit(main())
