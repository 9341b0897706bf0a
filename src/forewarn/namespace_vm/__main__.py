"""`python -m forewarn.vm DATA VM PROGRAM…`: `forewarn vm run --detached` without the command line for people.

It is what the service starts for each VM of a fleet that has a program, and loads nothing but what a keeper needs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from forewarn.errors import ForewarnError, Unavailable
from forewarn.vm.run import Wish, run


def main(data: str, vm: str, *program: str) -> int:
    try:
        return run(Wish(vm=vm, program=program, data=Path(data), is_detached=True), _complain)
    except ForewarnError as error:
        _complain(str(error))
        return 3 if isinstance(error, Unavailable) else 2


def _complain(sentence: str) -> None:
    print(sentence, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
