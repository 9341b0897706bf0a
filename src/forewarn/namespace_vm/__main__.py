"""`python -m forewarn.namespace_vm DATA VM PROGRAM…`: as `forewarn vm run --detached`.

The service starts it for each VM of a fleet that has a program. It loads only what a supervisor needs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from forewarn.errors import ForewarnError, Unavailable
from forewarn.namespace_vm.run import VmRunOptions, run_vm


def main(data: str, vm: str, *program: str) -> int:
    try:
        return run_vm(VmRunOptions(vm=vm, program=program, data=Path(data), is_detached=True), _print_error)
    except ForewarnError as error:
        _print_error(str(error))
        return 3 if isinstance(error, Unavailable) else 2


def _print_error(sentence: str) -> None:
    print(sentence, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
