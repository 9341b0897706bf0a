"""A scope that was read lately is not read again, and is shown as commits have left it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from forewarn.conformance.store_rows import (
    SAMPLE_SCOPE_ID,
    finished_event,
    replace_fields,
    sample_event,
    sample_poll,
    sample_vm,
)
from forewarn.core.commit import Commit
from forewarn.core.scope import Scope
from forewarn.store import SqliteStore
from forewarn.store.scope_cache import ScopeCache

WEB = Scope(id=SAMPLE_SCOPE_ID, version=1, vms=(sample_vm("web-0"), sample_vm("web-1")))
DB = sample_vm("db-0", availability_set="db")


def kept(*scopes: Scope, max_vms: int = 100) -> ScopeCache:
    recent = ScopeCache(max_vms)
    for scope in scopes:
        recent.put(scope)
    return recent


def test_a_commit_moves_what_was_decided_on() -> None:
    recent = kept(WEB)
    event, stopped = sample_event("E"), replace_fields(WEB.vms[1], host="h2")
    recent.on_commit(Commit(scopes=(replace_fields(WEB, epoch=7),), vms=(stopped,), events=(event,)))
    assert recent.scope(SAMPLE_SCOPE_ID) == Scope(
        id=SAMPLE_SCOPE_ID, version=2, epoch=7, vms=(WEB.vms[0], stopped), events=(event,)
    )


def test_what_was_read_after_a_commit_stays_when_the_commit_is_told_of() -> None:
    later = replace_fields(WEB, version=3, epoch=9)
    recent = kept(later)
    recent.on_commit(Commit(scopes=(replace_fields(WEB, epoch=7),), events=(sample_event("E"),)))
    assert recent.scope(SAMPLE_SCOPE_ID) is later


def test_events_that_are_over_and_vms_that_are_gone_are_not_shown() -> None:
    event = sample_event("E")
    recent = kept(replace_fields(WEB, events=(event,)))
    recent.on_commit(
        Commit(scopes=(WEB,), vms=(replace_fields(WEB.vms[0], removed_at=5.0),), events=(finished_event(event, 5.0),))
    )
    assert recent.scope(SAMPLE_SCOPE_ID) == replace_fields(WEB, version=2, vms=(WEB.vms[1],))


def test_a_vm_that_moves_may_have_been_in_any_scope() -> None:
    recent = kept(WEB, Scope(id=DB.scope_id, version=1, vms=(DB,)))
    recent.on_commit(Commit(vms=(replace_fields(WEB.vms[0], availability_set="db"),)))
    assert recent.scope(SAMPLE_SCOPE_ID) is None
    assert recent.scope(DB.scope_id) is None


def test_a_scope_that_is_read_with_a_vm_of_another_makes_that_one_old() -> None:
    """It was committed, and is told of next."""
    moved = replace_fields(WEB.vms[0], availability_set="db")
    recent = kept(WEB, Scope(id=DB.scope_id, version=2, vms=(DB, moved)))
    assert recent.scope(SAMPLE_SCOPE_ID) is None
    assert recent.vm(moved.key) == moved


def test_a_vm_is_shown_as_its_scope_is() -> None:
    recent = kept(WEB)
    stopped = replace_fields(WEB.vms[1], host="h2")
    recent.on_commit(Commit(scopes=(WEB,), vms=(stopped, replace_fields(WEB.vms[0], removed_at=5.0))))
    assert (recent.vm(stopped.key), recent.vm(WEB.vms[0].key)) == (stopped, None)
    recent.evict([SAMPLE_SCOPE_ID])
    assert recent.vm(stopped.key) is None


def test_a_poll_moves_the_last_request_and_never_back() -> None:
    recent = kept(WEB)
    recent.record_polls([sample_poll("web-0", 20.0), sample_poll("web-0", 10.0)])
    recent.on_commit(Commit(scopes=(replace_fields(WEB, last_request_at=5.0),)))
    assert recent.scope(SAMPLE_SCOPE_ID) == replace_fields(WEB, version=2, last_request_at=20.0)


def test_those_that_were_asked_for_longest_ago_go_first() -> None:
    scopes = [Scope(id=f"s{number}", vms=(sample_vm("x"),)) for number in range(3)]
    recent = kept(*scopes[:2], max_vms=4)
    recent.scope("s0")
    recent.put(scopes[2])
    assert [recent.scope(scope.id) is not None for scope in scopes] == [True, False, True]


def test_a_scope_larger_than_all_that_may_be_kept_is_not_kept() -> None:
    assert kept(WEB, max_vms=2).scope(SAMPLE_SCOPE_ID) is None


def test_of_a_scope_that_was_just_read_nothing_is_read_from_the_file(tmp_path: Path) -> None:
    async def story() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        await store.commit(Commit(scopes=(Scope(id=SAMPLE_SCOPE_ID),), vms=WEB.vms))
        first = store.scope(SAMPLE_SCOPE_ID)
        said: list[str] = []
        store._reader.set_trace_callback(said.append)
        await store.commit(Commit(scopes=(WEB,), events=(sample_event("E"),)))
        assert first == WEB
        assert store.scope(SAMPLE_SCOPE_ID) == replace_fields(WEB, version=2, events=(sample_event("E"),))
        assert not said
        await store.close()

    asyncio.run(story())
