"""The messages between a supervisor and the service: one JSON object per line on a unix socket."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forewarn.namespace_vm.act_journal import VmActOutcome

SERVICE_SOCKET = "forewarn.vms"
JsonMessage = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class VmDescription:
    """What the service says about the VM that is kept."""

    name: str
    computer_name: str
    ephemeral: Path
    directory: Path
    host: str = ""

    @classmethod
    def from_welcome(cls, message: JsonMessage) -> VmDescription:
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
    act: str
    verb: str
    duration_s: float = 0.0
    host: str = ""
    abrupt: bool = False  # the VM's host has failed: nobody is asked to end

    @classmethod
    def from_message(cls, message: JsonMessage) -> VmActOrder:
        return cls(
            act=message["act"],
            verb=message["verb"],
            duration_s=float(message.get("duration_s") or 0.0),
            host=message.get("host") or "",
            abrupt=bool(message.get("abrupt")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VmProgramExit:
    """How a program ended: with a code, or by a signal."""

    code: int | None = None
    signal: int | None = None

    @property
    def status(self) -> int:
        """As a shell would tell it."""
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
    who = {"vm": vm, "pid": pid, "started": started, "boot_id": boot_id, "program": program, "state": state}
    return {"hello": {**who, "known": {act: asdict(outcome) for act, outcome in known.items()}}}


def listener_message(address: str, port: int) -> JsonMessage:
    return {"listener": {"address": address, "port": port}, "fds": 1}


def progress_message(act: str, until_s: float) -> JsonMessage:
    return {"act": act, "until": round(max(0.0, until_s), 3)}


def outcome_message(act: str, outcome: VmActOutcome, *, boot_id: str, state: str) -> JsonMessage:
    return {"act": act, **asdict(outcome), "boot_id": boot_id, "state": state}


def exit_message(how: VmProgramExit, output: str) -> JsonMessage:
    return {"exited": {**asdict(how), "output": output}}


def encode_message(message: JsonMessage) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
