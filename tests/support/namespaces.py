"""Whether this machine lets a test have VMs made of namespaces."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

_PROBE = "from forewarn.vm import kernel; kernel.unshare(kernel.NEW_USER | kernel.NEW_NET | kernel.NEW_PID)"


@cache
def why_not() -> str:
    """What the kernel says against it; "" where it does not mind."""
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False)
    return probe.stderr.strip().rpartition("\n")[2]
