"""`make cluster`: the cluster to play with starts, survives what it suggests, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from tests.cluster.control_node_processes import until
from tests.support.nats_server import nats_program
from tests.support.postgres_server import is_installed

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        nats_program() is None or not is_installed(),
        reason="NATS or PostgreSQL is not installed: run tests/cluster/install_servers.sh",
    ),
]
ROOT = Path(__file__).parents[2]


def test_the_cluster_to_play_with_survives_the_kill_that_it_suggests() -> None:
    lines: list[str] = []
    command = [sys.executable, "-u", "-m", "tools.cluster_demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as demo:
        assert demo.stdout is not None
        reading = Thread(target=lambda: lines.extend(demo.stdout or ()))
        reading.start()
        try:
            until(lambda: any("Ctrl-C stops" in line for line in lines), "the cluster is started")
            text = "".join(lines)
            (data,) = re.findall(r"forewarn (--data \S+) node resign", text)
            (pid,) = re.findall(r"kill -9 (\d+)    # control node c1", text)
            os.kill(int(pid), signal.SIGKILL)
            listed = [sys.executable, "-m", "forewarn", *shlex.split(data), "node", "list"]

            def is_taken_over() -> bool:
                done = subprocess.run(listed, capture_output=True, text=True, check=False)
                return re.search(r"c2 +active", done.stdout) is not None

            until(is_taken_over, "the other control node is active")
            until(lambda: any("c1 runs again" in line for line in lines), "the killed node was started again")
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(60)
            reading.join(60)
    assert lines[-1] == "everything is stopped and removed\n"
    assert demo.returncode == 0
    assert not Path(shlex.split(data)[1]).exists()
