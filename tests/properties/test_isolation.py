"""No VM learns anything about another scope or can approve events there (spec §7.4).

Every fleet is copied into a second resource group, so that VM names are not unique.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from forewarn.core.event import Event
from forewarn.core.fleet import Vm
from forewarn.core.request import RequestedOperation, Rollout, RolloutImpact
from forewarn.errors import Rejected
from forewarn.metadata.published_documents import PublishedDocuments
from forewarn.metadata.workers.publisher import MetadataPublisher, PublisherConfig
from forewarn.protocol.codec import decode_document
from forewarn.protocol.exchange import (
    ApprovalRequest,
    EndpointRules,
    InstanceRequest,
    PollRequest,
    poll_response,
    read_request,
)
from forewarn.protocol.http_message import HttpRequest, HttpResponse
from forewarn.protocol.instance import instance_response
from forewarn.protocol.responses import approval_accepted, unknown_event
from forewarn.protocol.versions import VERSIONS
from tests.properties.random_fleets import SmallFleet, small_fleets
from tests.properties.search_profile import search_settings
from tests.support.world import World

METADATA = (("metadata", "true"),)
PICKS = st.integers(0, 19)
ASKS = st.sampled_from(
    [
        RequestedOperation.RESTART,
        RequestedOperation.REDEPLOY,
        RequestedOperation.EVICT,
        RequestedOperation.DELETE,
        RequestedOperation.SCALE_IN,
        RequestedOperation.DEALLOCATE,
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A request, and the VM that then tries to approve events of other scopes."""

    ask: RequestedOperation | RolloutImpact | None
    pick: int
    approver: int
    by_s: float


STEPS = st.lists(
    st.builds(
        Step,
        ask=st.one_of(ASKS, st.sampled_from(RolloutImpact), st.none()),
        pick=PICKS,
        approver=PICKS,
        by_s=st.sampled_from([1.0, 31.0, 301.0, 901.0]),
    ),
    min_size=1,
    max_size=8,
)


def world_with_copies(fleet: SmallFleet) -> World:
    copies = tuple(replace(vm, resource_group="copy") for vm in fleet.vms)
    return World(vms=(*fleet.vms, *copies), hosts=fleet.hosts)


class MetadataAnswers:
    """Answers requests of VMs as the metadata server does, without sockets: from what the publisher publishes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._publisher = MetadataPublisher.open(PublisherConfig(), world.control)
        self._documents = PublishedDocuments()

    def publish(self) -> None:
        """Publish every scope as it is in the store now."""
        for scope in self.world.store.scopes():
            self._documents.publish(self._publisher.published(scope))

    def answer(self, vm: Vm, request: HttpRequest) -> HttpResponse:
        asked = read_request(request, is_known_caller=True, rules=EndpointRules())
        view = self._documents.view(vm.key)
        assert view is not None
        match asked:
            case PollRequest():
                return poll_response(asked, tag="", document=view.document, rules=EndpointRules())
            case ApprovalRequest():
                unknown = self.world.do(self.world.control.guests.approve(vm.key, asked.event_ids))
                return approval_accepted() if unknown is None else unknown_event(unknown)
            case HttpResponse():
                return asked
            case InstanceRequest():
                return instance_response(asked, view.facts)
            case _:
                raise AssertionError(f"not a request of these tests: {asked}")

    def poll(self, vm: Vm, version: str) -> HttpResponse:
        target = f"/metadata/scheduledevents?api-version={version}"
        return self.answer(vm, HttpRequest(method="GET", target=target, headers=METADATA))

    def post_approval(self, vm: Vm, event_ids: Sequence[str]) -> HttpResponse:
        body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]}).encode()
        target = f"/metadata/scheduledevents?api-version={VERSIONS[-1]}"
        return self.answer(vm, HttpRequest(method="POST", target=target, headers=METADATA, body=body))


def make_request(world: World, step: Step) -> None:
    vms, hosts = world.store.vms(), world.store.hosts()
    try:
        if isinstance(step.ask, RolloutImpact):
            rollout = Rollout(impact=step.ask, hosts=(hosts[step.pick % len(hosts)].name,))
            world.do(world.control.rollout_requests.start(rollout, who="op"))
        elif step.ask is not None and vms:
            world.do(world.control.requests.request_for_vms(step.ask, [vms[step.pick % len(vms)]], who="ann"))
    except Rejected:
        pass
    world.settle()


def assert_sees_only_its_scope(metadata: MetadataAnswers, vm: Vm, events: dict[str, Event]) -> None:
    own = {other.name for other in metadata.world.store.vms(scope_id=vm.scope_id, removed=True)}
    foreign = [event_id for event_id, event in events.items() if event.scope_id != vm.scope_id]
    for version in VERSIONS:
        body = metadata.poll(vm, version).body
        for seen in decode_document(body).events:
            assert events[seen.id].scope_id == vm.scope_id
            assert {name.removeprefix("_") for name in seen.resources} <= own
            assert not vm.narrow_delivery or vm.name in events[seen.id].vms  # spec §14.6
        assert not any(event_id.encode() in body for event_id in foreign)


def assert_cannot_approve_elsewhere(metadata: MetadataAnswers, vm: Vm, events: dict[str, Event]) -> None:
    """A foreign id is answered like an unknown one, and an own id in the same request is not approved."""
    foreign = next((e for e in events.values() if e.scope_id != vm.scope_id and e.listed), None)
    own = [e.id for e in events.values() if e.scope_id == vm.scope_id and e.listed]
    if foreign is None:
        return
    store = metadata.world.store
    seq, unknown = store.last_seq(), "00000000-0000-4000-8000-FFFFFFFFFFFF"
    answer_foreign, answer_unknown = (
        metadata.post_approval(vm, [*own, foreign.id]),
        metadata.post_approval(vm, [*own, unknown]),
    )

    assert answer_foreign.status == answer_unknown.status == 400
    assert answer_foreign.headers == answer_unknown.headers
    assert answer_foreign.body.replace(foreign.id.encode(), unknown.encode()) == answer_unknown.body
    assert store.last_seq() == seq
    assert store.event(foreign.id) == foreign


def assert_history_is_per_scope(world: World) -> None:
    for scope_id in world.store.scope_ids():
        names = {vm.name for vm in world.store.vms(scope_id=scope_id, removed=True)}
        for entry in world.store.history(scope_id=scope_id):
            event = world.store.event(entry.event_id) if entry.event_id else None
            assert event is None or event.scope_id == scope_id
            assert entry.vm in {"", *names}


@given(fleet=small_fleets(), steps=STEPS)
@search_settings(60)
def test_a_vm_sees_and_approves_in_its_own_scope_only(fleet: SmallFleet, steps: list[Step]) -> None:
    world = world_with_copies(fleet)
    try:
        metadata = MetadataAnswers(world)
        for step in steps:
            make_request(world, step)
            metadata.publish()
            events = {event.id: event for event in world.events()}
            for vm in world.store.vms():
                assert_sees_only_its_scope(metadata, vm, events)
            if vms := world.store.vms():
                assert_cannot_approve_elsewhere(metadata, vms[step.approver % len(vms)], events)
            world.advance(step.by_s)
        assert_history_is_per_scope(world)
    finally:
        world.close()
