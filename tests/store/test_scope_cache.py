"""The scope cache: cached scopes follow the commits, and are not read from the file again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from forewarn.conformance.store_suite import (
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


def cache_of(*scopes: Scope, max_vms: int = 100) -> ScopeCache:
    cache = ScopeCache(max_vms)
    for scope in scopes:
        cache.put(scope)
    return cache


def test_a_commit_updates_the_cached_scope() -> None:
    cache = cache_of(WEB)
    event, changed = sample_event("E"), replace_fields(WEB.vms[1], host="h2")
    cache.on_commit(Commit(scopes=(replace_fields(WEB, epoch=7),), vms=(changed,), events=(event,)))
    assert cache.scope(SAMPLE_SCOPE_ID) == Scope(
        id=SAMPLE_SCOPE_ID, version=2, epoch=7, vms=(WEB.vms[0], changed), events=(event,)
    )


def test_a_scope_read_after_a_commit_stays_when_the_commit_is_notified() -> None:
    later = replace_fields(WEB, version=3, epoch=9)
    cache = cache_of(later)
    cache.on_commit(Commit(scopes=(replace_fields(WEB, epoch=7),), events=(sample_event("E"),)))
    assert cache.scope(SAMPLE_SCOPE_ID) is later


def test_ended_events_and_removed_vms_leave_the_cached_scope() -> None:
    event = sample_event("E")
    cache = cache_of(replace_fields(WEB, events=(event,)))
    cache.on_commit(
        Commit(scopes=(WEB,), vms=(replace_fields(WEB.vms[0], removed_at=5.0),), events=(finished_event(event, 5.0),))
    )
    assert cache.scope(SAMPLE_SCOPE_ID) == replace_fields(WEB, version=2, vms=(WEB.vms[1],))


def test_a_vm_that_changes_scope_clears_the_cache() -> None:
    cache = cache_of(WEB, Scope(id=DB.scope_id, version=1, vms=(DB,)))
    cache.on_commit(Commit(vms=(replace_fields(WEB.vms[0], availability_set="db"),)))
    assert cache.scope(SAMPLE_SCOPE_ID) is None
    assert cache.scope(DB.scope_id) is None


def test_a_scope_read_with_a_vm_of_another_evicts_the_other() -> None:
    """The commit that moved the VM is durable, and its notification is still to come."""
    moved = replace_fields(WEB.vms[0], availability_set="db")
    cache = cache_of(WEB, Scope(id=DB.scope_id, version=2, vms=(DB, moved)))
    assert cache.scope(SAMPLE_SCOPE_ID) is None
    assert cache.vm(moved.key) == moved


def test_a_cached_vm_follows_its_scope() -> None:
    cache = cache_of(WEB)
    changed = replace_fields(WEB.vms[1], host="h2")
    cache.on_commit(Commit(scopes=(WEB,), vms=(changed, replace_fields(WEB.vms[0], removed_at=5.0))))
    assert (cache.vm(changed.key), cache.vm(WEB.vms[0].key)) == (changed, None)
    cache.evict([SAMPLE_SCOPE_ID])
    assert cache.vm(changed.key) is None


def test_a_poll_updates_the_last_request_time_which_never_decreases() -> None:
    cache = cache_of(WEB)
    cache.record_polls([sample_poll("web-0", 20.0), sample_poll("web-0", 10.0)])
    cache.on_commit(Commit(scopes=(replace_fields(WEB, last_request_at=5.0),)))
    assert cache.scope(SAMPLE_SCOPE_ID) == replace_fields(WEB, version=2, last_request_at=20.0)


def test_the_least_recently_used_scope_is_evicted_first() -> None:
    scopes = [Scope(id=f"s{number}", vms=(sample_vm("x"),)) for number in range(3)]
    cache = cache_of(*scopes[:2], max_vms=4)
    cache.scope("s0")
    cache.put(scopes[2])
    assert [cache.scope(scope.id) is not None for scope in scopes] == [True, False, True]


def test_a_scope_larger_than_the_cache_is_not_cached() -> None:
    assert cache_of(WEB, max_vms=2).scope(SAMPLE_SCOPE_ID) is None


def test_a_cached_scope_is_not_read_from_the_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore.open(tmp_path / "store.db")
        await store.commit(Commit(scopes=(Scope(id=SAMPLE_SCOPE_ID),), vms=WEB.vms))
        first = store.scope(SAMPLE_SCOPE_ID)
        statements: list[str] = []
        store._reader.set_trace_callback(statements.append)
        await store.commit(Commit(scopes=(WEB,), events=(sample_event("E"),)))
        assert first == WEB
        assert store.scope(SAMPLE_SCOPE_ID) == replace_fields(WEB, version=2, events=(sample_event("E"),))
        assert not statements
        await store.close()

    asyncio.run(scenario())
