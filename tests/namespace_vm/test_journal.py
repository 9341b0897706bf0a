"""The journal of acts: a supervisor knows what an earlier one did, however that one ended (spec §6)."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forewarn.machines.namespace_vm.act_journal import VmActJournal, VmActOutcome, VmActStart

REBOOT = VmActStart(effect="reboot", wipes_disk=False)
PAUSE = VmActStart(effect="pause", wipes_disk=False)
REDEPLOY = VmActStart(effect="reboot", wipes_disk=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vms" / "web-0" / "journal.jsonl"


def test_the_next_supervisor_knows_an_outcome(path: Path) -> None:
    journal = VmActJournal(path)
    journal.begin("a", REBOOT)
    journal.finish("a", VmActOutcome(ok=False, note="no"))
    journal.close()

    again = VmActJournal(path)

    assert again.outcomes == {"a": VmActOutcome(ok=False, note="no")}
    assert again.unfinished == {}
    again.close()


def test_an_act_without_an_outcome_is_unfinished(path: Path) -> None:
    journal = VmActJournal(path)
    journal.begin("a", REDEPLOY)
    journal.close()

    again = VmActJournal(path)

    assert again.unfinished == {"a": REDEPLOY}
    assert again.outcomes == {}
    again.close()


def test_every_prefix_of_a_journal_can_be_read(path: Path) -> None:
    """A supervisor may be killed while it writes."""
    journal = VmActJournal(path)
    journal.begin("a", PAUSE)
    journal.finish("a", VmActOutcome(ok=True))
    journal.begin("b", REBOOT)
    journal.close()
    whole = path.read_bytes()

    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        again = VmActJournal(path)
        lines = whole[:length].count(b"\n")
        assert list(again.outcomes) == (["a"] if lines >= 2 else [])
        assert list(again.unfinished) == (["a"] if lines == 1 else [])
        again.close()


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        '["act"]',
        '{"effect":"reboot","wipes_disk":true}',
        '{"act":"b"}',
        '{"act":"b","ok":true}',
        '{"act":"b","ok":"yes","note":""}',
        '{"act":["b"],"effect":"reboot","wipes_disk":true}',
        '{"act":"b","effect":1,"wipes_disk":true}',
        '{"act":"b","effect":"reboot"}',
    ],
)
def test_a_line_that_is_no_entry_is_dropped(path: Path, line: str) -> None:
    journal = VmActJournal(path)
    journal.begin("a", REBOOT)
    journal.close()
    with path.open("a") as file:
        file.write(f"{line}\n")

    again = VmActJournal(path)

    assert (again.unfinished, again.outcomes) == ({"a": REBOOT}, {})
    again.close()


def test_a_journal_drops_old_outcomes_but_no_unfinished_act(path: Path) -> None:
    journal = VmActJournal(path)
    journal.begin("open", REBOOT)
    for number in range(300):
        journal.begin(f"act-{number}", PAUSE)
        journal.finish(f"act-{number}", VmActOutcome(ok=True))
    journal.close()

    again = VmActJournal(path)

    assert len(again.outcomes) == 256
    assert "act-299" in again.outcomes
    assert again.unfinished == {"open": REBOOT}
    assert path.read_bytes().count(b"\n") == 257
    again.close()


def test_only_its_owner_can_read_a_journal(path: Path) -> None:
    VmActJournal(path).close()

    assert path.stat().st_mode & 0o077 == 0


@contextmanager
def disk_with_space(path: Path, more: int) -> Iterator[None]:
    """A disk on which this file can grow by `more` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_partial_write_on_a_full_disk_does_not_spoil_the_next_line(path: Path) -> None:
    journal = VmActJournal(path)
    with disk_with_space(path, 10), pytest.raises(OSError, match="No space left"):
        journal.begin("a", REBOOT)
    journal.begin("b", REBOOT)
    journal.close()

    again = VmActJournal(path)

    assert again.unfinished == {"b": REBOOT}
    again.close()


def test_an_outcome_that_cannot_be_written_is_known_while_the_journal_is_open(path: Path) -> None:
    journal = VmActJournal(path)
    journal.begin("a", REBOOT)
    with disk_with_space(path, 0), pytest.raises(OSError, match="File too large"):
        journal.finish("a", VmActOutcome(ok=True))

    assert journal.outcomes == {"a": VmActOutcome(ok=True)}
    journal.close()


def test_a_journal_that_cannot_be_compacted_on_a_full_disk_stays_as_it_was(path: Path) -> None:
    journal = VmActJournal(path)
    for act in ("a", "b"):
        journal.begin(act, REBOOT)
    journal.close()
    before = path.read_bytes()

    with disk_with_space(path, -10), pytest.raises(OSError, match="No space left"):
        VmActJournal(path)

    assert path.read_bytes() == before
