"""Budgets shared by all rollouts (spec §13.2): what they hold back, what counts, and what wakes who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from forewarn.control.dry_run import dry_run_rollout
from forewarn.control.fleet import FleetChange
from forewarn.core.budgets import make_budget
from forewarn.core.commit import Commit
from forewarn.core.event import Event, EventState
from forewarn.core.fleet import Vm
from forewarn.core.history import EntryKind
from forewarn.core.request import MaintenanceRequest, RequestedOperation, Rollout, RolloutImpact, RolloutState
from forewarn.errors import NotFound, Rejected, Unavailable
from forewarn.store.memory import MemoryStore
from tests.support.disturbed_calls import ServiceKilled
from tests.support.world import World, a_host, a_vm

HOSTS = ("h0", "h1", "h2", "h3")
MakeWorld = Callable[..., World]
LIVE = (EventState.SCHEDULED, EventState.STARTED)


@pytest.fixture
def make_world() -> Iterator[MakeWorld]:
    """Worlds of four hosts with single VMs, `per_host` on each."""
    made: list[World] = []

    def make(per_host: int = 1, **options: Any) -> World:
        vms = [
            a_vm(f"vm-{host[1]}{n}", host=host, tags={"app": "web" if n == 0 else "db"})
            for host in HOSTS
            for n in range(per_host)
        ]
        made.append(World(hosts=[a_host(host) for host in HOSTS], vms=vms, **options))
        return made[-1]

    yield make
    for world in made:
        world.close()


def set_budget(world: World, name: str = "all", **fields: Any) -> None:
    world.do(world.control.budgets.set_budget(make_budget(name, **fields), who="ann"))
    world.settle()


def start(world: World, *hosts: str, impact: RolloutImpact = RolloutImpact.UPDATE) -> MaintenanceRequest:
    rollout = Rollout(impact=impact, hosts=hosts or HOSTS)
    request = world.do(world.control.rollout_requests.start(rollout, who="ann"))
    world.settle()
    return request


def pending(world: World, request: MaintenanceRequest | None = None) -> list[str]:
    """The names of the VMs with a live event, of one rollout or of all."""
    request_id = request.id if request is not None else None
    return [name for event in world.store.events(request_id=request_id, statuses=LIVE) for name in event.vms]


def waits(world: World, request: MaintenanceRequest) -> tuple[str, ...]:
    return world.control.rollouts.publication_waits(request)


def test_a_rollout_publishes_no_more_than_the_budget_and_says_what_it_waits_for(make_world: MakeWorld) -> None:
    world = make_world()
    set_budget(world, "web", max_vms=2)
    request = start(world)
    assert pending(world) == ["vm-00", "vm-10"]
    assert waits(world, request) == ('the budget "web" allows 2 of 4 VMs out of service at once, and vm-00, vm-10 are',)


def test_freed_budget_wakes_the_rollout_until_all_is_done(make_world: MakeWorld) -> None:
    world = make_world()
    set_budget(world, max_vms=1)
    request = start(world)
    seen = []
    for _ in range(4):
        seen += pending(world)
        world.advance(16 * 60)
    assert seen == ["vm-00", "vm-10", "vm-20", "vm-30"]
    assert (world.rollout(request.id).progress, waits(world, request)) == (RolloutState.COMPLETED, ())


def test_two_rollouts_share_a_budget_and_the_older_one_goes_first(make_world: MakeWorld) -> None:
    world = make_world()
    set_budget(world, max_vms=2)
    first, second = start(world, "h0", "h1", "h2"), start(world, "h3", impact=RolloutImpact.REBOOT)
    assert (pending(world, first), pending(world, second)) == (["vm-00", "vm-10"], [])
    assert waits(world, second) == ('the budget "all" allows 2 of 4 VMs out of service at once, and vm-00, vm-10 are',)
    world.advance(16 * 60)
    assert (pending(world, first), pending(world, second)) == (["vm-20"], ["vm-30"])


def test_two_rollouts_in_one_reconciliation_cannot_both_take_the_rest(make_world: MakeWorld) -> None:
    world = make_world()
    set_budget(world, max_vms=1)
    for host in ("h0", "h1"):
        rollout = Rollout(impact=RolloutImpact.UPDATE, hosts=(host,))
        world.do(world.control.rollout_requests.start(rollout, who="ann"))
    world.settle()
    assert pending(world) == ["vm-00"]


@pytest.mark.parametrize("operation", [RequestedOperation.POWER_OFF, RequestedOperation.DEALLOCATE])
def test_a_vm_that_its_user_has_switched_off_counts(make_world: MakeWorld, operation: RequestedOperation) -> None:
    world = make_world()
    set_budget(world, max_vms=1)
    world.ask(operation, "vm-30")
    world.advance(60)
    request = start(world, "h0", "h1")
    assert pending(world) == []
    assert waits(world, request) == ('the budget "all" allows 1 of 4 VMs out of service at once, and vm-30 is',)
    world.ask(RequestedOperation.START, "vm-30")
    world.advance(60)
    assert pending(world) == ["vm-00"]


def test_the_vms_of_a_failed_host_count_until_they_run_elsewhere(make_world: MakeWorld) -> None:
    world = make_world()
    set_budget(world, max_vms=1)
    world.do(world.control.requests.fail_host("h3", who="ann"))
    world.settle()
    start(world, "h0", impact=RolloutImpact.MIGRATE)
    assert pending(world) == ["vm-30"]
    world.advance(3600)
    assert "vm-00" in {name for event in world.events() for name in event.vms}


def test_a_budget_holds_back_no_user(make_world: MakeWorld) -> None:
    world = make_world()
    set_budget(world, max_vms=1)
    start(world, "h0")
    assert world.ask(RequestedOperation.RESTART, "vm-10")
    assert pending(world) == ["vm-00", "vm-10"]
    world.advance(15 * 60)
    assert all(event.started_at is not None for event in world.events())


def test_maintenance_of_a_vm_that_is_out_already_is_not_held_back(make_world: MakeWorld) -> None:
    world = make_world()
    set_budget(world, max_vms=1)
    world.ask(RequestedOperation.POWER_OFF, "vm-00")
    world.advance(60)
    start(world, "h0", "h1")
    assert pending(world) == ["vm-00"]


def test_a_host_with_more_vms_than_the_budget_waits_and_the_explanation_says_what_to_do(make_world: MakeWorld) -> None:
    world = make_world(per_host=3)
    set_budget(world, max_vms=2)
    request = start(world, "h0")
    world.advance(86_400)
    assert pending(world) == []
    assert waits(world, request) == (
        'the budget "all" allows 2 of 12 VMs out of service at once, but 3 of its VMs on host h0 go together: '
        "raise the budget, or move VMs away with a rollout of impact migrate",
    )
    set_budget(world, max_vms=3)
    assert pending(world) == ["vm-00", "vm-01", "vm-02"]


def leave_the_first_wait(world: World) -> None:
    """Commit something else: the first commit after a rollout begins to wait wakes it in any case."""
    world.do(world.control.fleet.apply_change(FleetChange(hosts=(a_host("h9"),)), who="ann"))
    world.settle()


def move_by_hand(world: World, name: str, host: str) -> None:
    moved = replace(world.vm(name), host=host)
    world.do(world.store.commit(Commit(scopes=(world.scope(name),), vms=(moved,))))
    world.settle()


def test_a_vm_that_loses_the_tag_of_a_rollout_wakes_it_if_the_others_fit_the_budget(make_world: MakeWorld) -> None:
    world = make_world(per_host=3)
    set_budget(world, max_vms=1)
    rollout = Rollout(impact=RolloutImpact.REBOOT, tag="app=db")
    request = world.do(world.control.rollout_requests.start(rollout, who="ann"))
    world.settle()
    leave_the_first_wait(world)
    assert pending(world, request) == []
    untagged = replace(world.vm("vm-02"), tags={})
    world.do(world.control.fleet.apply_change(FleetChange(vms=(untagged,)), who="ann"))
    world.settle()
    assert pending(world, request) == ["vm-01"]


@pytest.mark.parametrize("host", ["h0", "h1"])
def test_a_vm_that_leaves_a_host_by_hand_wakes_the_rollout_if_the_others_fit_the_budget(
    make_world: MakeWorld, host: str
) -> None:
    world = make_world(per_host=3)
    set_budget(world, max_vms=2)
    request = start(world, "h0", "h1", impact=RolloutImpact.REBOOT)
    leave_the_first_wait(world)
    assert pending(world, request) == []
    assert "3 of its VMs on host h0 go together" in waits(world, request)[0]
    move_by_hand(world, f"vm-{host[1]}2", "h3")
    assert pending(world, request) == [f"vm-{host[1]}0", f"vm-{host[1]}1"]


def test_vms_that_need_not_go_together_are_taken_one_by_one(make_world: MakeWorld) -> None:
    world = make_world(per_host=3)
    set_budget(world, max_vms=2)
    start(world, "h0", impact=RolloutImpact.MIGRATE)
    assert pending(world) == ["vm-00", "vm-01"]


def test_a_percentage_allows_at_least_one_vm_of_each_group(make_world: MakeWorld) -> None:
    world = make_world()
    set_budget(world, max_percent=10, per="scope")
    start(world)
    assert len(pending(world)) == 4


def test_a_budget_per_tag_limits_each_value(make_world: MakeWorld) -> None:
    world = make_world(per_host=2)
    set_budget(world, max_vms=1, per="tag:app")
    start(world, impact=RolloutImpact.MIGRATE)
    assert pending(world) == ["vm-00", "vm-01"]


def test_a_restart_of_the_service_keeps_budgets_and_reservations(make_world: MakeWorld) -> None:
    world = make_world()
    set_budget(world, max_vms=1)
    request = start(world)
    for _ in range(4):
        world.restart()
        world.settle()
        assert len(pending(world)) == 1
        assert waits(world, request) or pending(world) == ["vm-30"]
        world.advance(17 * 60)
    assert world.rollout(request.id).progress is RolloutState.COMPLETED


class UnreadableStore(MemoryStore):
    """A store whose VMs on a host and whose live events cannot be read while `is_unreadable`."""

    is_unreadable = False

    def events(self, **filters: Any) -> list[Event]:
        self._require_readable()
        return super().events(**filters)

    def vms(self, **filters: Any) -> list[Vm]:
        if "host" in filters:
            self._require_readable()
        return super().vms(**filters)

    def _require_readable(self) -> None:
        if self.is_unreadable:
            raise Unavailable("the store cannot be read for a moment: try again later")


def test_a_budget_that_is_set_while_the_store_cannot_be_read_counts_what_is_out_later(make_world: MakeWorld) -> None:
    store = UnreadableStore()
    world = make_world(store=store)
    start(world, "h0")
    store.is_unreadable = True
    world.do(world.control.budgets.set_budget(make_budget("all", max_vms=1), who="ann"))
    with pytest.raises(Unavailable):
        world.control.budgets.ledger()
    with pytest.raises(Unavailable):
        world.control.budgets.uses(world.control.budgets.find("all"))
    store.is_unreadable = False
    request = start(world, "h1")
    assert pending(world) == ["vm-00"]
    assert waits(world, request) == ('the budget "all" allows 1 of 4 VMs out of service at once, and vm-00 is',)


def test_a_host_that_fails_while_the_store_cannot_be_read_counts_later(make_world: MakeWorld) -> None:
    store = UnreadableStore()
    world = make_world(store=store)
    set_budget(world, max_vms=1)
    [host] = [host for host in store.hosts() if host.name == "h0"]
    store.is_unreadable = True
    world.do(store.commit(Commit(hosts=(replace(host, confirmed_down=True),))))
    store.is_unreadable = False
    [use] = world.control.budgets.uses(world.control.budgets.find("all"))
    assert use.out == ("vm-00",)


def test_removing_a_budget_lets_rollouts_go_on(make_world: MakeWorld) -> None:
    world = make_world()
    set_budget(world, "Web", max_vms=1)
    start(world)
    world.do(world.control.budgets.remove_budget("web", who="ann"))
    world.settle()
    assert len(pending(world)) == 4
    assert "budget Web removed" in world.transcript()
    with pytest.raises(NotFound, match="budget 'web' does not exist"):
        world.do(world.control.budgets.remove_budget("web", who="ann"))


@pytest.mark.parametrize("applied", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("writes", [0, 1])
def test_a_budget_is_in_force_exactly_if_the_history_has_its_entry_whenever_the_process_dies(
    make_world: MakeWorld, writes: int, applied: bool
) -> None:
    world = make_world()
    assert isinstance(world.store, MemoryStore)
    world.store.fail_next(ServiceKilled(), after=writes, applied=applied)
    with suppress(ServiceKilled):
        world.do(world.control.budgets.set_budget(make_budget("web", max_vms=1), who="ann"))
        world.do(world.control.budgets.remove_budget("web", who="ann"))
    world.restart()
    found = [entry.text for entry in world.store.history() if entry.kind is EntryKind.BUDGET]
    assert found == ["budget web: at most 1 VM out of service at once", "budget web removed"][: len(found)]
    assert len(found) == writes + applied
    assert len(world.control.budgets.budgets()) == (len(found) == 1)


def test_a_wrong_budget_changes_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    set_budget(world, max_vms=3)
    seq = world.store.last_seq()
    for fields in ({"max_vms": 0}, {"max_percent": 101}, {"max_vms": 1, "tag": "app=none"}):
        with pytest.raises(Rejected):
            set_budget(world, **fields)
    assert [budget.max_vms for budget in world.control.budgets.budgets()] == [3]
    assert world.store.last_seq() == seq


def test_what_the_preview_shows_within_a_budget_is_what_happens(make_world: MakeWorld) -> None:
    world = make_world()
    set_budget(world, max_vms=2)
    world.ask(RequestedOperation.POWER_OFF, "vm-30")
    world.advance(60)
    rollout = Rollout(impact=RolloutImpact.UPDATE, hosts=HOSTS)
    preview = world.do(dry_run_rollout(world.control, rollout, who="ann", notice_s=0, short_notice=False))
    request = start(world)
    world.advance(86_400)
    events = world.store.events(request_id=request.id)
    assert [(event.starts_at, event.vms) for event in preview.events] == [(e.started_at, e.vms) for e in events]


def test_the_use_of_a_budget_follows_every_change_of_the_fleet(make_world: MakeWorld) -> None:
    """What is counted commit by commit is what a new process counts from the store."""
    world = make_world(per_host=2)
    set_budget(world, max_percent=50, per="location")
    start(world, "h0", "h1")
    world.ask(RequestedOperation.RESTART, "vm-30")
    world.ask(RequestedOperation.DELETE, "vm-31")
    world.do(world.control.requests.fail_host("h2", who="ann"))
    for _ in range(6):
        world.advance(307)
        (budget,) = world.control.budgets.budgets()
        counted = world.control.budgets.uses(budget)
        world.restart()
        again = world.control.budgets.uses(budget)
        assert [(u.limit, u.vms, set(u.out)) for u in counted] == [(u.limit, u.vms, set(u.out)) for u in again]
