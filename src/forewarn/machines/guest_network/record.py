"""Reads the host's network, and records what `forewarn network apply` changes, so that `remove` restores it.

The record is written before the first change and after the last one, in /run, which a reboot empties as it does the
kernel's settings. A lock file beside it lets one command at a time change the network.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from forewarn.errors import Refused, Rejected
from forewarn.machines.guest_network.interfaces import Attachment, VmInterface
from forewarn.machines.guest_network.plan import FormerValue, HostState, Link
from forewarn.machines.guest_network.ruleset import FAMILIES, HAND_MADE_TABLES, METADATA_ADDRESS, TABLE

# Runs `ip`, `nft` and `virsh`, and reads what the host has.

PROTOCOL = 169  # marks our rules and routes in the kernel (RTPROT_…); other programs use other numbers
_PACKAGES = {"ip": "iproute2", "nft": "nftables", "virsh": "libvirt-clients"}
_MORE_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # some users do not have them in PATH
_TIMEOUT_S = 60.0
_SYSCTLS = Path("/proc/sys")
_SO_NETNS_COOKIE = 71


def run_program(name: str, *arguments: str, text: str = "") -> str:
    """Run a program, wait for its end, and return what it wrote to stdout; `text` is its input."""
    path = shutil.which(name) or shutil.which(name, path=os.pathsep.join(_MORE_DIRECTORIES))
    if path is None:
        raise Rejected(f"the program `{name}` is not installed: install the package {_PACKAGES.get(name, name)}")
    line = " ".join([name, *arguments])
    try:
        done = subprocess.run(
            [path, *arguments], input=text, capture_output=True, encoding="utf-8", errors="replace", timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise Rejected(f"`{line}` did not end within {_TIMEOUT_S:.0f} s: run it by hand to see why") from error
    except OSError as error:
        raise Rejected(f"`{line}` cannot be run: {error.strerror}") from error
    if done.returncode:
        errors = [error.strip() for error in done.stderr.splitlines() if error.strip()]
        raise Rejected(f"`{line}` failed: {'; '.join(errors[:2]) or f'exit code {done.returncode}'}")
    return done.stdout


def require_root(command: str) -> None:
    """Raise Rejected, naming `command`, if the user is not root or the system is not Linux."""
    if sys.platform != "linux":
        raise Rejected(f"`{command}` needs Linux: run it on the host of the VMs")
    if os.geteuid() != 0:
        raise Rejected(f"`{command}` needs root: run it with sudo")


def namespace_cookie() -> int:
    """Return the number of this process's network namespace, which no other one gets until the next boot."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)
        except OSError:
            return 0


def boot_id() -> str:
    """Return the id of this boot of the machine; "" if the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def read_links() -> dict[str, Link]:
    """Return all network devices of this process's network namespace, by name. Needs no privilege."""
    return {link.name: link for link in map(_read_link, _ip_json("-d", "link", "show"))}


def read_machine(*, with_firewall: bool = True) -> HostState:
    """Return what this host has now: devices, metadata address, sysctls, and our rules, routes and tables.

    Only root may read the firewall; without `with_firewall` the state has no tables, as if none were loaded.
    """
    addresses = _ip_json("-4", "addr", "show")
    tables = _read_tables() if with_firewall else set()
    return HostState(
        links=read_links(),
        address_devices=tuple(
            item["ifname"]
            for item in addresses
            if any(entry.get("local") == METADATA_ADDRESS for entry in item.get("addr_info", ()))
        ),
        sysctls=_read_sysctls(),
        rules=frozenset(_read_rules()),
        routes=frozenset(_read_routes()),
        tables={family: _nft_json("list", "table", family, TABLE) for family in FAMILIES if (family, TABLE) in tables},
        hand_made_tables=tuple(sorted(" ".join(table) for table in tables & HAND_MADE_TABLES)),
    )


def _ip_json(*arguments: str) -> list[dict[str, Any]]:
    parsed: list[dict[str, Any]] = json.loads(run_program("ip", "-j", *arguments) or "[]")
    return [item for item in parsed if item]


def _nft_json(*arguments: str) -> list[dict[str, Any]]:
    listing: list[dict[str, Any]] = json.loads(run_program("nft", "-j", *arguments))["nftables"]
    return listing


def _read_link(item: dict[str, Any]) -> Link:
    return Link(
        name=item["ifname"],
        index=item["ifindex"],
        is_up="UP" in item.get("flags", ()),
        mac=item.get("address", ""),
        kind=item.get("linkinfo", {}).get("info_kind", ""),
        master=item.get("master", ""),
    )


def _read_tables() -> set[tuple[str, str]]:
    listed = _nft_json("list", "tables")
    return {(item["table"]["family"], item["table"]["name"]) for item in listed if "table" in item}


def _read_rules() -> Iterable[tuple[int, int]]:
    for rule in _ip_json("-4", "rule", "show"):
        if str(rule.get("protocol")) == str(PROTOCOL) and "fwmark" in rule:
            yield int(rule["fwmark"], 0), int(rule["table"])


def _read_routes() -> Iterable[tuple[int, str]]:
    for route in _ip_json("-4", "route", "show", "table", "all", "proto", str(PROTOCOL)):
        yield int(route.get("table", 254)), route.get("dev", "")


def _read_sysctls() -> dict[str, int]:
    paths = [_SYSCTLS / "net/ipv4" / name for name in ("fwmark_reflect", "tcp_fwmark_accept")]
    paths += [*_SYSCTLS.glob("net/ipv4/conf/*/rp_filter"), *_SYSCTLS.glob("net/ipv4/conf/*/arp_ignore")]
    found = {}
    for path in sorted(paths):
        try:
            found[str(path.relative_to(_SYSCTLS))] = int(path.read_text(encoding="ascii"))
        except OSError:  # the device has just been removed, or the kernel lacks the setting
            continue
    return found


def write_sysctl(path: str, value: int) -> None:
    """Set a sysctl by its path below /proc/sys, such as net/ipv4/fwmark_reflect, until the next boot."""
    try:
        (_SYSCTLS / path).write_text(f"{value}\n", encoding="ascii")
    except FileNotFoundError as error:
        if "/conf/" not in path:
            raise Rejected(f"the kernel has no setting {path}: use Linux 4.14 or newer") from error
    except OSError as error:
        raise Rejected(f"{_SYSCTLS / path} cannot be set to {value}: {error.strerror}") from error


DEFAULT_STATE_FILE = Path("/run/forewarn/network.json")
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What `apply_plan` has applied to this host, and how the host was before."""

    interfaces: tuple[VmInterface, ...] = ()  # those of the latest plan, ordered by VM and device
    former: dict[str, FormerValue] = field(default_factory=dict)  # path → value of a changed sysctl before that
    has_added_address: bool = False  # whether we gave loopback the metadata address
    loaded: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # family → `fixed_part` of our firewall table
    boot: str = ""  # the `boot_id` when it was written; "": not written yet, or the system does not tell
    namespace: int = 0  # the `namespace_cookie` when it was written; 0: not written yet, or not known


def read_record(path: Path) -> Record | None:
    """Return the record in the file; None if the file does not exist, or its record is of an earlier boot."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        record = _decode(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Rejected(
            f"state file {path} cannot be read ({error}): give another with --state, or delete it; "
            "kernel settings then keep their current values"
        ) from error
    if record.boot != boot_id():
        return None
    if record.namespace != namespace_cookie():
        raise Rejected(f"state file {path} describes another network namespace: give another file with --state")
    return record


def write_record(path: Path, record: Record) -> None:
    """Replace the state file with this record, atomically, and sync it to disk."""
    data = {"format": _FORMAT, **asdict(replace(record, boot=boot_id(), namespace=namespace_cookie()))}
    temporary = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise Rejected(f"state file {path} cannot be written ({error.strerror}): give another with --state") from error


def _decode(data: dict[str, Any]) -> Record:
    if data["format"] != _FORMAT:
        raise ValueError("another version of forewarn wrote it")
    interfaces = tuple(
        VmInterface(
            **{
                **item,
                "attachment": Attachment(item["attachment"]),
                "addresses": tuple(item["addresses"]),
            }
        )
        for item in data["interfaces"]
    )
    return Record(
        interfaces=interfaces,
        former={path: FormerValue(**value) for path, value in data["former"].items()},
        has_added_address=bool(data["has_added_address"]),
        loaded=dict(data["loaded"]),
        boot=str(data["boot"]),
        namespace=int(data["namespace"]),
    )


@contextmanager
def exclusive_access(path: Path) -> Iterator[None]:
    """Context manager that lets only one process at a time change the network and this state file."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a+", encoding="ascii")
    except OSError as error:
        raise Rejected(f"{lock} cannot be created ({error.strerror}): give another file with --state") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise Refused(
                f"another `forewarn network` command is using {path} (process {holder}): stop it first"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
