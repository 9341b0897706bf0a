"""THE COMMAND. `forewarn`, one file per noun: reads what was typed, asks the service over its unix socket or
HTTPS, or the endpoint of a VM, and shows the answer to people or, with --json, to programs.

Never here: the database, a decision about maintenance, a name resolved by guessing. This file imports nothing but
the standard library, so that it can say what is missing.
"""

from __future__ import annotations

import importlib.util
import io
import sys

MISSING = (
    "the forewarn command needs click and rich: pip install 'forewarn[agent]' for use inside a VM, "
    "or 'forewarn[server]' for the service"
)


def main() -> int:
    try:
        return _main()
    except KeyboardInterrupt:  # while the command was still being loaded
        return 130


def _main() -> int:
    if any(importlib.util.find_spec(name) is None for name in ("click", "rich")):
        print(MISSING, file=sys.stderr)
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # names may hold what this terminal cannot write

    from forewarn.cli.program import forewarn

    forewarn.main(prog_name="forewarn")
    return 0
