"""The `forewarn` command: one module per noun.

A command parses its arguments, makes calls to the operator API (unix socket or HTTPS) or to a VM's endpoint, and prints
the answer as text or, with --json, as JSON. Nothing here opens the database or decides about maintenance. A command's
docstring is its help. Start with `root_command` (which command is in which module), then `invocation`. This file
imports the standard library only, so that it can say which extra is missing.
"""

from __future__ import annotations

import importlib.util
import io
import sys

MISSING_EXTRAS_MESSAGE = (
    "the forewarn command needs click and rich: pip install 'forewarn[agent]' for use inside a VM, "
    "or 'forewarn[server]' for the service"
)


def main() -> int:
    """Run the `forewarn` command with the arguments of the process; raises SystemExit with its exit code."""
    try:
        return _run_command()
    except KeyboardInterrupt:  # while the modules were still loading
        return 130


def _run_command() -> int:
    if any(importlib.util.find_spec(name) is None for name in ("click", "rich")):
        print(MISSING_EXTRAS_MESSAGE, file=sys.stderr)
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a name may hold characters this terminal cannot write

    from forewarn.cli.root_command import forewarn

    forewarn.main(prog_name="forewarn")
    return 0
