"""A program that ticks in three processes: itself, a child, and a daemon in its own session.

Each writes the time of its ticks by the machine's clock, with a number kept in memory, to a file that it opened once.
"""

import os
import sys
import time
from pathlib import Path

directory = Path(sys.argv[1])
name = "parent"
if os.fork() == 0:
    name = "child"
    if os.fork() == 0:
        name = "daemon"
        os.setsid()
with (directory / f"{name}.ticks").open("a", buffering=1) as file:
    number = 0
    while True:
        file.write(f"{number} {time.monotonic()}\n")
        number += 1
        time.sleep(0.01)
