"""The record of what `forewarn network apply` has changed, so that `remove` can restore it.

It is written before the first change and after the last one, in /run, which a reboot empties as it does the kernel's
settings. A lock file beside it lets one command at a time change the network.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from forewarn.errors import Refused, Rejected
from forewarn.machines.guest_network.interfaces import Attachment, VmInterface
from forewarn.machines.guest_network.machine import boot_id, namespace_cookie
from forewarn.machines.guest_network.plan import FormerValue

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
