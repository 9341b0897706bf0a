"""Creates a VM of namespaces and ends it, in a process of its own.

Start it with `python -m forewarn.crash_test.namespace_check`. It exits with 0 if this machine allows that; else with 1,
and prints the kernel's reason.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from forewarn.crash_test.handler_machine import HandlerSpec, NamespaceMachine
from forewarn.errors import Refused


def main() -> int:
    """Create a VM of namespaces as a case does, end it, and return the exit status; nothing is left."""
    with tempfile.TemporaryDirectory(prefix="forewarn-check-", ignore_cleanup_errors=True) as text:
        directory, empty = Path(text) / "vm", Path(text) / "empty"
        directory.mkdir()
        empty.mkdir()
        spec = HandlerSpec(
            vm="check",
            hostname="check",
            command=("true",),
            directory=directory,
            user_directory=empty,
            environment=dict(os.environ),
        )
        try:
            NamespaceMachine(spec).close()
        except Refused as error:
            cause = error.__cause__
            print((cause.strerror if isinstance(cause, OSError) else None) or error)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
