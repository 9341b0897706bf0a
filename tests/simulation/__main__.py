"""`python -m tests.simulation`: starts again with a fixed hash seed, so that sets have the same order in every run."""

from __future__ import annotations

import os
import sys

HASH_SEED = "0"

if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    from tests.simulation.command import main

    main()
