"""`python -m forewarn.machines.namespace_vm DATA VM PROGRAM…`: like `forewarn vm run --detached`.

The service starts it for each VM of the fleet that has a program. It imports only what a supervisor needs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from forewarn.errors import ForewarnError, Unavailable
from forewarn.machines.namespace_vm.run import VmRunOptions, run_vm


def main(data: str, vm: str, *program: str) -> int:
    """Run a VM in the foreground without a terminal, and return the exit code for this process."""
    try:
        return run_vm(VmRunOptions(vm=vm, program=program, data=Path(data), is_detached=True), _print_error)
    except ForewarnError as error:
        _print_error(str(error))
        return 3 if isinstance(error, Unavailable) else 2


def _print_error(sentence: str) -> None:
    print(sentence, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
