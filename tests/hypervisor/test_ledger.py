"""The effect ledger: one effect per act id, durable, and readable as the history of a VM."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forewarn.core.cause import Verb
from forewarn.errors import Rejected, Unavailable
from forewarn.machines.interface import ActDone
from forewarn.machines.ledger import Effect, EffectLedger, VmHistory


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[EffectLedger]:
    ledger = EffectLedger(tmp_path / "ledger.db")
    yield ledger
    ledger.close()


def effect(act_id: str, verb: Verb = Verb.REBOOT, *, at: float = 100.0, vm: str = "s/g/a", **fields: Any) -> Effect:
    return Effect(act_id=act_id, vm=vm, verb=verb, event_id="E", begun_at=at, ends_at=at + 10, **fields)


def record_ended(ledger: EffectLedger, *effects: Effect) -> None:
    for one in effects:
        ledger.record_effect(one)
        ledger.mark_ended(one.act_id)


def test_a_second_effect_of_an_act_is_not_written_but_counted(ledger: EffectLedger) -> None:
    assert ledger.record_effect(effect("1"))
    assert not ledger.record_effect(effect("1", at=500.0))
    assert [e.begun_at for e in ledger.effects()] == [100.0]
    assert ledger.repeated_effects == 1


def test_effects_are_listed_as_they_began_and_by_vm(ledger: EffectLedger) -> None:
    for act_id, vm in [("2", "s/g/a"), ("1", "s/g/b"), ("3", "s/g/a")]:
        ledger.record_effect(effect(act_id, vm=vm))
    assert [e.act_id for e in ledger.effects()] == ["2", "1", "3"]
    assert [e.act_id for e in ledger.effects("s/g/a")] == ["2", "3"]
    assert ledger.find("1") == effect("1", vm="s/g/b")
    assert ledger.find("4") is None


def test_effects_are_there_after_the_ledger_is_reopened(tmp_path: Path) -> None:
    first = EffectLedger(tmp_path / "ledger.db")
    first.count_perform("1")
    first.record_effect(effect("1", Verb.REDEPLOY, from_host="h1", to_host="h2"))
    before = first.effects()
    first.close()

    second = EffectLedger(tmp_path / "ledger.db")
    assert second.effects() == before
    assert second.count_perform("1") == 2
    second.close()


def test_old_effects_that_ended_are_deleted_so_that_the_file_stays_small(
    ledger: EffectLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An act may be performed again until the store has its outcome, so young and unfinished ones stay."""
    monkeypatch.setattr("forewarn.machines.ledger._MAX_EFFECTS", 3)
    monkeypatch.setattr("forewarn.machines.ledger._PRUNE_INTERVAL", 10)
    day = 24 * 3600.0
    ledger.record_effect(effect("unfinished"))
    for number in range(8):
        ledger.count_perform(f"{number}")
        record_ended(ledger, effect(f"{number}", at=100.0 if number < 4 else 2 * day))
    ledger.record_effect(effect("tenth", at=2.5 * day))
    assert [e.act_id for e in ledger.effects()] == ["unfinished", "4", "5", "6", "7", "tenth"]
    assert ledger.count_perform("0") == 1
    assert ledger.count_perform("4") == 2


def test_old_outcomes_without_an_effect_are_deleted_so_that_the_file_stays_small(
    ledger: EffectLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forewarn.machines.ledger._MAX_EFFECTS", 3)
    monkeypatch.setattr("forewarn.machines.ledger._PRUNE_INTERVAL", 10)
    day = 24 * 3600.0
    failed = ActDone(ok=False, note="no power")
    for number in range(10):
        ledger.count_perform(f"{number}")
        ledger.record_outcome(f"{number}", failed, 100.0 if number < 4 else 2 * day)
    assert [ledger.find_outcome(f"{number}") for number in range(10)] == [None] * 4 + [failed] * 6
    assert (ledger.count_perform("0"), ledger.count_perform("4")) == (1, 2)


def test_the_first_outcome_without_an_effect_stays(ledger: EffectLedger) -> None:
    ledger.record_outcome("1", ActDone(ok=False, note="no power"), 100.0)
    ledger.record_outcome("1", ActDone(ok=True, note="reboot took 30 s"), 200.0)
    assert ledger.find_outcome("1") == ActDone(ok=False, note="no power")


def test_a_vm_without_effects_has_an_empty_history(ledger: EffectLedger) -> None:
    assert ledger.vm_history("s/g/unknown") == VmHistory(boots=0, host="")


@pytest.mark.parametrize(
    ("verb", "boots"),
    [(verb, verb in (Verb.REBOOT, Verb.REDEPLOY, Verb.START, Verb.REIMAGE)) for verb in Verb],
    ids=str,
)
def test_a_vm_boots_if_an_act_loses_its_memory_and_it_runs_afterwards(
    ledger: EffectLedger, verb: Verb, boots: bool
) -> None:
    """Spec §4.2: Freeze keeps memory, Reboot loses it; an evicted or deleted VM does not come back."""
    record_ended(ledger, effect("1", verb))
    assert ledger.vm_history("s/g/a").boots == boots


def test_a_vm_is_where_its_last_act_left_it(ledger: EffectLedger) -> None:
    """Spec §6.4: which causes move a VM to another host, and which take it away."""
    places = []
    for one in (
        effect("1", Verb.REBOOT, from_host="h1"),
        effect("2", Verb.MIGRATE, from_host="h1", to_host="h2"),
        effect("3", Verb.REAPPLY),
        effect("4", Verb.DEALLOCATE, from_host="h2"),
        effect("5", Verb.START, to_host="h3"),
        effect("6", Verb.EVICT, from_host="h3"),
    ):
        record_ended(ledger, one)
        places.append(ledger.vm_history("s/g/a").host)
    assert places == ["h1", "h2", "h2", "", "h3", ""]


def test_an_effect_still_under_way_has_not_changed_the_vm(ledger: EffectLedger) -> None:
    record_ended(ledger, effect("1", Verb.REBOOT, from_host="h1"))
    ledger.record_effect(effect("2", Verb.REDEPLOY, at=200.0, from_host="h1", to_host="h2"))
    assert ledger.vm_history("s/g/a") == VmHistory(boots=1, host="h1")


def test_a_transaction_is_written_whole_or_not_at_all(ledger: EffectLedger) -> None:
    def break_off() -> None:
        with ledger.transaction():
            ledger.record_effect(effect("1"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        break_off()
    assert ledger.effects() == []
    with ledger.transaction():
        ledger.record_effect(effect("1"))
    assert len(ledger.effects()) == 1


def test_the_ledger_can_be_read_from_another_thread(ledger: EffectLedger) -> None:
    seen: list[int] = []
    ledger.record_effect(effect("1"))
    reader = threading.Thread(target=lambda: seen.append(len(ledger.effects())))
    reader.start()
    reader.join()
    assert seen == [1]


def test_the_ledger_uses_a_write_ahead_log(ledger: EffectLedger, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "ledger.db")
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.close()


def test_the_ledger_is_unavailable_while_another_process_writes(ledger: EffectLedger, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match=r"ledger '.*ledger.db' cannot be used now \(database is locked\)"):
        ledger.record_effect(effect("1"))
    other.close()
    assert ledger.record_effect(effect("1"))


def test_a_ledger_can_be_closed_twice() -> None:
    ledger = EffectLedger(None)
    ledger.close()
    ledger.close()


def _of_another_program(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE accounts (name TEXT)")
    other.commit()
    other.close()


def _of_a_later_version(path: Path) -> None:
    EffectLedger(path).close()
    later = sqlite3.connect(path)
    later.execute("PRAGMA user_version = 99")
    later.commit()
    later.close()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_of_another_program, "is not a ledger of this version and was not changed: name another"),
        (_of_a_later_version, "is not a ledger of this version and was not changed: name another"),
        (
            lambda path: path.write_bytes(b"not a database" * 100),
            "is not a ledger, or is damaged .*restore it or name",
        ),
    ],
    ids=["another program's", "a later version", "not a database"],
)
def test_a_file_that_is_not_a_ledger_is_rejected_and_stays_unchanged(tmp_path: Path, make, why: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "other.db"
    make(path)
    before = path.read_bytes()
    with pytest.raises(Rejected, match=why):
        EffectLedger(path)
    assert path.read_bytes() == before


def test_the_error_names_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(
        Unavailable, match=r"nowhere/ledger.db' cannot be opened .*: check its directory, then try again"
    ):
        EffectLedger(tmp_path / "nowhere" / "ledger.db")
