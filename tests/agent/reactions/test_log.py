"""Events are written to the systemd journal and to files."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from pathlib import Path

from forewarn.agent.model import StepOutcome
from tests.support.reaction_harness import SAMPLE_EVENT, ReactionHarness


def fields_of(datagram: bytes) -> dict[str, str]:
    """The fields of a datagram of the journal's native protocol, read as journald reads it."""
    fields, rest = {}, datagram
    while rest:
        line, _, rest = rest.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (length,) = struct.unpack("<Q", rest[:8])
            value, rest = rest[8 : 8 + length], rest[8 + length + 1 :]
        fields[name.decode()] = value.decode()
    return fields


def test_the_systemd_journal_gets_fields_that_can_be_queried(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "journal"))
        log = ReactionHarness("log", {"journal": str(tmp_path / "journal")}, tmp_path / "case")
        assert asyncio.run(log.do()) == StepOutcome(ok=True, text=f"written to {tmp_path}/journal")
        assert asyncio.run(log.undo(resources=("web-0", "a\nPRIORITY=0"))).ok
        noticed, gone = (fields_of(journal.recv(65536)) for _ in range(2))
    assert noticed["MESSAGE"] == "Reboot of web-0 not before Mon, 19 Sep 2016 18:42:50 GMT"
    assert noticed["PRIORITY"] == "4"
    assert noticed["SYSLOG_IDENTIFIER"] == "forewarn"
    assert noticed["FOREWARN_EVENT_ID"] == SAMPLE_EVENT.id
    assert gone["MESSAGE"] == "Reboot of web-0, a PRIORITY=0 is gone"
    assert gone["FOREWARN_RESOURCES"] == "web-0,a\nPRIORITY=0"
    assert gone["PRIORITY"] == "5"


def test_a_file_gets_one_json_object_per_line(tmp_path: Path) -> None:
    log = ReactionHarness("log", {"file": str(tmp_path / "events.jsonl")}, tmp_path / "case")
    assert asyncio.run(log.do()).ok
    assert asyncio.run(log.undo()).ok
    noticed, gone = (json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines())
    assert noticed["message"] == "Reboot of web-0 not before Mon, 19 Sep 2016 18:42:50 GMT"
    assert (noticed["EventId"], noticed["Phase"]) == (SAMPLE_EVENT.id, "do")
    assert noticed["at"].endswith("Z")
    assert (gone["message"], gone["Phase"]) == ("Reboot of web-0 is gone", "undo")


def test_an_unwritable_target_is_reported(tmp_path: Path) -> None:
    for option in ("file", "journal"):
        outcome = asyncio.run(ReactionHarness("log", {option: str(tmp_path / "none/x")}, tmp_path / "case").do())
        assert outcome == StepOutcome(
            ok=False, text=f"{tmp_path}/none/x cannot be written to: No such file or directory"
        )
