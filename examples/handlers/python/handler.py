"""Prepares this VM for its scheduled events, approves them, and recovers when they are over.

    python handler.py 'systemctl stop my-app' 'systemctl start my-app'

Both commands must be harmless when they run twice. A command that fails is repeated, and nothing is approved before the
first one has succeeded. State is kept in $STATE_DIRECTORY (systemd: StateDirectory=), which must survive a reboot.

The SDK polls, retries, finds this VM's own events, and remembers in the cursor file what was handled.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from forewarn.client import Change, Client, Handler, Kind, Scheduled
from forewarn.errors import ForewarnError

STATE = Path(os.environ.get("STATE_DIRECTORY", "."))
PREPARED = STATE / "prepared-for"  # a directory with an empty file for each event that this VM is prepared for
DISRUPTIVE = (Kind.REBOOT, Kind.REDEPLOY, Kind.PREEMPT, Kind.TERMINATE)

prepare_command, recover_command = sys.argv[1:]
one_at_a_time = threading.Lock()  # functions of different events are called in parallel
handler = Handler(retry_s=(1.0, 2.0, 5.0))


def prepare(change: Change) -> None:
    """Run the command, unless the event has started already: then it is too late to prepare for it."""
    if not isinstance(change, Scheduled):
        return
    with one_at_a_time:
        logging.info("preparing for %s %s", change.event.kind, change.event.id)
        (PREPARED / change.event.id).touch()  # first, so that a crash cannot leave the VM prepared for ever
        subprocess.run(["sh", "-c", prepare_command], check=True)


handler.on(Kind.REBOOT, Kind.REDEPLOY, Kind.TERMINATE, approve=True)(prepare)
handler.on(Kind.PREEMPT)(prepare)  # approving an eviction would only give time away


@handler.on(Kind.FREEZE, approve=True)
def let_it_freeze(change: Change) -> None:
    """Do nothing: a freeze pauses the VM for seconds and loses nothing."""


@handler.gone(*DISRUPTIVE)
def recover(change: Change) -> None:
    """Run the command when no other event is left for which this VM is prepared."""
    with one_at_a_time:
        mark = PREPARED / change.event.id
        if mark.exists() and set(PREPARED.iterdir()) == {mark}:
            logging.info("recovering after %s %s: %s", change.event.kind, change.event.id, change.outcome)
            subprocess.run(["sh", "-c", recover_command], check=True)
        mark.unlink(missing_ok=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    PREPARED.mkdir(exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, frame: handler.stop())
    while True:
        try:
            handler.run(Client(), cursor=STATE / "cursor.json")
            break  # it was stopped
        except ForewarnError as error:  # the service refuses: perhaps not for ever
            logging.warning("%s", error)
            time.sleep(2)
