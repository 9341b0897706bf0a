"""Says whether this machine lets a test create namespace VMs."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

_PROBE_PROGRAM = (
    "from forewarn.machines.namespace_vm import syscalls as s; "
    "s.unshare(s.CLONE_NEWUSER | s.CLONE_NEWNET | s.CLONE_NEWPID)"
)


@cache
def why_namespaces_are_unavailable() -> str:
    """The kernel's error when a process creates namespaces; "" if it may."""
    probe = subprocess.run([sys.executable, "-c", _PROBE_PROGRAM], capture_output=True, text=True, check=False)
    return probe.stderr.strip().rpartition("\n")[2]
