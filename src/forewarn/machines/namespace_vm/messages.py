"""The messages between a supervisor and the service: one JSON object per line on a unix socket."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forewarn.machines.namespace_vm.act_journal import VmActOutcome

SERVICE_SOCKET = "forewarn.vms"  # in the data directory
JsonMessage = dict[str, Any]  # decoded JSON object, one per line


@dataclass(frozen=True, slots=True, kw_only=True)
class VmDescription:
    """The VM, as the service describes it to the supervisor in its `welcome`, the answer to the hello."""

    name: str  # as the fleet spells it
    computer_name: str  # its hostname
    ephemeral: Path  # the directory that is its ephemeral disk; acts such as redeploy empty it
    directory: Path  # of the supervisor: journal, boot id and output
    host: str = ""  # the name of the host it is on; "": none or unknown

    @classmethod
    def from_welcome(cls, message: JsonMessage) -> VmDescription:
        """Return the description in the value of the service's `welcome` message, an object with the key `vm`."""
        vm = message["vm"]
        return cls(
            name=vm["name"],
            computer_name=vm["computer_name"],
            ephemeral=Path(vm["ephemeral"]),
            directory=Path(vm["directory"]),
            host=vm.get("host") or "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VmActOrder:
    """An order of the service to a VM's supervisor to perform one act on the VM."""

    act: str  # the id of the act
    verb: str  # such as freeze, reboot or evict; only for people
    effect: str  # pause, reboot, shut down, boot or none
    wipes_disk: bool = False  # the ephemeral disk is emptied
    removed_as: str = ""  # what the user reads once the VM is gone for good, such as "evicted"; "": it stays
    duration_s: float = 0.0  # of a pause, in seconds of real time; ignored for other effects
    host: str = ""  # the VM's host after a pause, reboot or boot; "": it stays
    abrupt: bool = False  # the VM's host has failed: a reboot kills without SIGTERM

    @classmethod
    def from_message(cls, message: JsonMessage) -> VmActOrder:
        """Return the order in the value of the service's `order` message; KeyError without act, verb or effect."""
        return cls(
            act=message["act"],
            verb=message["verb"],
            effect=message["effect"],
            wipes_disk=bool(message.get("wipes_disk")),
            removed_as=message.get("removed_as") or "",
            duration_s=float(message.get("duration_s") or 0.0),
            host=message.get("host") or "",
            abrupt=bool(message.get("abrupt")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VmProgramExit:
    """How a VM's program ended: with an exit code or by a signal; both None if it has not ended yet."""

    code: int | None = None  # 0 to 255; None if a signal ended it
    signal: int | None = None  # its number; None if it exited

    @property
    def status(self) -> int:
        """The exit status as a shell reports it: the code, or 128 plus the signal's number; 0 if neither."""
        return 128 + self.signal if self.signal is not None else self.code or 0


def hello_message(
    *,
    vm: str,
    pid: int,
    started: str,
    boot_id: str,
    program: Sequence[str] | None,
    state: str,
    known: Mapping[str, VmActOutcome],
) -> JsonMessage:
    """Make the supervisor's first message: the VM, the supervisor's process, and the outcomes it knows."""
    fields = {"vm": vm, "pid": pid, "started": started, "boot_id": boot_id, "program": program, "state": state}
    return {"hello": {**fields, "known": {act: asdict(outcome) for act, outcome in known.items()}}}


def listener_message(address: str, port: int) -> JsonMessage:
    """Make the message that offers the service a listening socket of the VM."""
    return {"listener": {"address": address, "port": port}, "fds": 1}


def progress_message(act: str, until_s: float) -> JsonMessage:
    """Make the message that the act with this id is under way for about `until_s` more seconds."""
    return {"act": act, "until": round(max(0.0, until_s), 3)}


def outcome_message(act: str, outcome: VmActOutcome, *, boot_id: str, state: str) -> JsonMessage:
    """Make the message that the act with this id is over, with the VM's boot id and state after it."""
    return {"act": act, **asdict(outcome), "boot_id": boot_id, "state": state}


def exit_message(program_exit: VmProgramExit, output: str) -> JsonMessage:
    """Make the message that the VM's program ended by itself, with the end of its output."""
    return {"exited": {**asdict(program_exit), "output": output}}


def encode_message(message: JsonMessage) -> bytes:
    """Encode a message as one line of JSON, with its line break."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
