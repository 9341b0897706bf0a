"""Describes the machine that the figures were measured on."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import msgspec

PROGRAMS = ("nginx", "wrk", "taskset")
_VERSION = re.compile(r"[\d.]{3,}")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Hardware and software of the machine. Fields are the JSON of results."""

    processor: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    programs: dict[str, str]  # name → version
    filesystem: str  # of the stores


def this_machine(directory: Path) -> Machine:
    """Describe this machine; the stores are in `directory`."""
    info = Path("/proc/cpuinfo").read_text()
    found = re.search(r"model name\s*: (.*)", info)
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        processor=found[1] if found else platform.processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(pages * size / 2**30, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        programs={"nginx": _version("nginx", "-v"), "wrk": _version("wrk", "-v")},
        filesystem=_filesystem(directory),
    )


def missing_programs() -> list[str]:
    """Return the programs that the benchmark needs and that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def load_average() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def _version(*line: str) -> str:
    if shutil.which(line[0]) is None:
        return ""
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    found = _VERSION.search(done.stdout + done.stderr)
    return found[0] if found else "?"


def _filesystem(directory: Path) -> str:
    """The type of the file system with the longest mount point above the directory."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(point, kind) for point, kind in mounts if directory.resolve().is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]))[1] if above else "?"
