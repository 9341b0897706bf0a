"""Runs one of the handlers that others wrote through the crash test.

    python -m tests.crash_test.foreign NAME [OPTIONS OF forewarn crash-test…]

Without a name, it lists them. `install_handlers.sh` fetches them first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.crash_test.foreign.handlers import FOREIGN_HANDLERS, HERE, ForeignHandler, find_handler

_SOURCES = HERE.parents[2]


def run_foreign_handler(handler: ForeignHandler, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run the crash test of a handler in an empty directory, with these further options; returns how it ended.

    Paths in the options are those of the current directory.
    """
    with tempfile.TemporaryDirectory(prefix="foreign-") as directory:
        claims = Path(directory, "claims.toml")
        claims.write_text(handler.claims, encoding="utf-8")
        probes = ["--prepared", handler.prepared] + (["--recovered", handler.recovered] if handler.recovered else [])
        command = [sys.executable, "-m", "forewarn", "crash-test", "--profile", handler.profile]
        command += ["--claims", str(claims), *probes, *options, "--", *handler.command]
        path = os.pathsep.join((str(HERE), os.environ["PATH"]))  # for its kubectl
        own = {"PATH": path, "PYTHONPATH": f"{_SOURCES / 'src'}:{_SOURCES}", **handler.environment}
        return subprocess.run(command, cwd=directory, env={**os.environ, **own}, check=False, text=True)


def main() -> int:
    """Run the handler that the command line names; returns the exit status of the crash test."""
    if len(sys.argv) < 2:
        for handler in FOREIGN_HANDLERS:
            print(f"{handler.name:36} {handler.program}")
        return 0
    options = [str(Path(text).absolute()) if text.endswith((".json", ".html")) else text for text in sys.argv[2:]]
    return run_foreign_handler(find_handler(sys.argv[1]), options).returncode


if __name__ == "__main__":
    sys.exit(main())
