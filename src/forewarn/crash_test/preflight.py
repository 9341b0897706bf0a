"""Checks before a crash test starts: the handler, the machine, names of cases, files to write.

Each raises Rejected or Refused with one sentence: what is wrong, and what to do instead.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from forewarn.core.fleetfile.reader import DeclaredFleet, read_fleet_file
from forewarn.crash_test.case import Case, Layout
from forewarn.crash_test.cases import ALL_CASES
from forewarn.crash_test.claims import HandlerProfile
from forewarn.errors import Refused, Rejected
from forewarn.lab.arguments import fleet_file_text

# The fleets of cases: which VMs each layout has.

# Names of VMs and hostnames differ here: workers_0 has the hostname worker000000. There is one spare host.
_SCALE_SET_FLEET = """
[[hosts]]
name = "host-{n}"
count = 4

[[scale_sets]]
name = "workers"
count = 3
computer_name_prefix = "worker"
update_domains = 3
terminate_notification = 5
"""


def declare_case_fleet(layout: Layout, vm: str = "") -> DeclaredFleet:
    """Return the fleet of this layout. Each VM is on a host of its own, and one more host is free."""
    return read_fleet_file(_fleet_text(layout, vm), source=f"the layout {layout}")


def _fleet_text(layout: Layout, vm: str) -> str:
    match layout:
        case Layout.SINGLE:
            return fleet_file_text([vm or "web-0"])
        case Layout.CAPITALS:
            return fleet_file_text([vm or "Web-0"])
        case Layout.SPOT:
            return fleet_file_text([], spot=[vm or "spot-0"])
        case Layout.SET:
            neighbours = [name for name in ("db-1", "db-2", "db-3") if name != vm.lower()]
            return fleet_file_text([vm or "db-0", *neighbours[:2]], availability_set="db")
        case Layout.SCALE_SET:
            return _SCALE_SET_FLEET


def vms_with_handler(fleet: DeclaredFleet, profile: HandlerProfile) -> tuple[str, ...]:
    """Return the names of the VMs on which a copy of the handler runs, in the order of the fleet."""
    names = tuple(vm.name for vm in fleet.vms)
    return names if profile is HandlerProfile.CLUSTER else names[:1]


_NAMESPACE_CHECK = ("-P", "-m", "forewarn.crash_test.namespace_check")
_CHECK_TIMEOUT_S = 60.0
_CASE_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def require_handler(command: Sequence[str]) -> None:
    """Raise Rejected unless the first word of this command is an executable program; runs nothing."""
    if not command:
        raise Rejected("no handler is given: write its command after `--`")
    program = command[0]
    if shutil.which(program) is not None:
        return
    path = Path(program)
    if path.is_dir():
        raise Rejected(f"the handler {program!r} is a directory: name the program in it")
    if path.exists() and "/" not in program:
        raise Rejected(f"the handler {program!r} is not on the PATH: write ./{program}")
    if path.exists():
        raise Rejected(f"the handler {program!r} is not executable: change that with chmod +x")
    raise Rejected(f"the handler {program!r} does not exist: check its path")


def require_namespaces() -> None:
    """Raise Refused if this machine allows no VMs of namespaces; creates one for a moment to find out."""
    try:
        done = subprocess.run(
            [sys.executable, *_NAMESPACE_CHECK], capture_output=True, text=True, timeout=_CHECK_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise _namespaces_refused(f"creating one took over {_CHECK_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        raise _namespaces_refused((done.stdout or done.stderr).strip().rpartition("\n")[2])


def _namespaces_refused(reason: str) -> Refused:
    return Refused(
        f"this machine does not allow VMs made of namespaces ({reason}): run this as root, or give the handler the URL "
        "of the endpoint in a variable that it reads, with --endpoint-env VAR"
    )


def require_variable_name(name: str) -> None:
    """Raise Rejected unless this can be the name of an environment variable."""
    if not _VARIABLE.fullmatch(name):
        raise Rejected(f"--endpoint-env {name!r} is not the name of a variable: write letters, digits and underscores")


def require_vm_name(name: str) -> None:
    """Raise Rejected unless a VM can have this name."""
    try:
        declared = declare_case_fleet(Layout.SET, name).vms[0].name
    except Rejected:
        declared = ""
    if not name or declared != name:
        raise Rejected(f"--vm {name!r} cannot name a VM: write up to 64 characters without slashes and braces")


def require_writable(path: Path, option: str) -> None:
    """Raise Rejected unless this file can be written; its content stays, and no new file is left behind."""
    if not path.parent.is_dir():
        raise Rejected(f"{option}: the directory {str(path.parent)!r} does not exist: create it first")
    if path.is_dir():
        raise Rejected(f"{option}: {str(path)!r} is a directory: name a file in it")
    if path.is_symlink() and not path.exists():
        return  # to try would create its target
    is_new = not path.exists()
    if not is_new and not stat.S_ISREG(path.stat().st_mode):
        return  # a device or a pipe: to open it may wait, or have an effect
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666))
    except OSError as error:
        raise Rejected(f"{option}: {str(path)!r} cannot be written ({error.strerror}): name another file") from error
    if is_new:
        path.unlink(missing_ok=True)


def combine_cases(more: Sequence[Case]) -> tuple[Case, ...]:
    """Return the built-in cases, then `more`, the cases of the user's files."""
    known = {case.id for case in ALL_CASES}
    for case in more:
        if not _CASE_ID.fullmatch(case.id):
            raise Rejected(f"case {case.id!r} has a wrong id: write AREA-NAME in lower case, such as own-slow-disk")
        if case.id in known:
            raise Rejected(f"there are two cases {case.id!r}: give the case in your file another id")
        known.add(case.id)
    return (*ALL_CASES, *more)


def select_cases(cases: Sequence[Case], profile: HandlerProfile, only: Sequence[str] = ()) -> tuple[Case, ...]:
    """Return the cases of the profile, in order; with `only` those whose id or area is one of these."""
    of_profile = [case for case in cases if profile in case.profiles]
    for name in only:
        if not any(name in (case.id, case.area) for case in of_profile):
            raise Rejected(_why_nothing_is_selected(name, cases, profile))
    return tuple(case for case in of_profile if not only or case.id in only or case.area in only)


def _why_nothing_is_selected(name: str, cases: Sequence[Case], profile: HandlerProfile) -> str:
    elsewhere = sorted({str(p) for case in cases if name in (case.id, case.area) for p in case.profiles})
    if elsewhere:
        what = f"case {name!r} does" if any(case.id == name for case in cases) else f"cases of area {name!r} do"
        return f"the {what} not belong to profile {profile}: use --profile {' or '.join(elsewhere)}"
    close = get_close_matches(name, dict.fromkeys([c.id for c in cases] + [c.area for c in cases]), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "`forewarn crash-test list` shows all"
    return f"there is no case or area {name!r}: {hint}"
