"""Connects the VM to the outside through `pasta` or `slirp4netns`, if one of them is installed.

The outside and the host's loopback become reachable, while 169.254.169.254 stays the service.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from forewarn.machines.namespace_vm import syscalls

_MAX_ROUTE_CHECKS, _ROUTE_CHECK_S = 500, 0.01
_ISOLATED_WARNING = (
    "this VM can reach only the service: install pasta (package passt) or slirp4netns for outbound network, "
    "or use --isolated if this is intended"
)

# Ports of the host's loopback appear on the VM's own loopback; nothing of the VM appears on the host.
_PASTA_COMMAND = "pasta --quiet --foreground --config-net --runas {uid}:{gid} -t none -u none -T auto -U auto {pid}"
# The host's loopback is at 10.0.2.2.
_SLIRP_COMMAND = "slirp4netns --configure --mtu=65520 {pid} tap0"


def connect_outbound(pid: int, print_message: Callable[[str], None]) -> Callable[[], None]:
    """Connect the network namespace of process `pid` to the outside; returns a function that undoes it."""
    for tool in (_PASTA_COMMAND, _SLIRP_COMMAND):
        command = tool.format(pid=pid, uid=os.geteuid(), gid=os.getegid()).split()
        child = _start_tool(command) if shutil.which(command[0]) else None
        if child is not None and _is_connected(child, pid):
            return partial(_stop_tool, child)
        if child is not None:
            _stop_tool(child)
    print_message(_ISOLATED_WARNING)
    return lambda: None


def _start_tool(command: list[str]) -> subprocess.Popen[bytes]:
    devnull = subprocess.DEVNULL
    return subprocess.Popen(
        command, stdin=devnull, stdout=devnull, stderr=devnull, start_new_session=True, preexec_fn=_die_with_supervisor
    )


def _die_with_supervisor() -> None:
    syscalls.die_with_parent(signal.SIGKILL)


def _is_connected(child: subprocess.Popen[bytes], pid: int) -> bool:
    routes = Path(f"/proc/{pid}/net/route")
    for _ in range(_MAX_ROUTE_CHECKS):
        if any(line.split()[1] == "00000000" for line in routes.read_text().splitlines()[1:]):
            return True
        if child.poll() is not None:
            return False
        time.sleep(_ROUTE_CHECK_S)
    return False


def _stop_tool(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
