"""Converts values to SQL rows and back: parameters of `write_statements`, and results of `queries`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.json import Decoder, Encoder
from msgspec.structs import replace

from forewarn.core.access import Grant, RegisteredClient
from forewarn.core.event import Event, Gate
from forewarn.core.fleet import Host, Vm
from forewarn.core.health import Measurement
from forewarn.core.history import EventDelivery, HistoryEntry, LastPoll
from forewarn.core.maintenance_configuration import ConfigurationAssignment, MaintenanceConfiguration
from forewarn.core.request import MaintenanceRequest, PlannedEvent
from forewarn.core.scope import Scope
from forewarn.core.webhook import WebhookCursor, WebhookSubscription

SqlRow = dict[str, Any]  # parameters of a write statement: column → value

# `read_*` take the JSON body of a row, and the columns (version, arrivals, wakes_at, …) that override its fields.
_encode = Encoder().encode
read_vm = Decoder(Vm).decode
read_event = Decoder(Event).decode
read_planned = Decoder(PlannedEvent).decode
read_last_poll = Decoder(LastPoll).decode
read_client = Decoder(RegisteredClient).decode
read_grant = Decoder(Grant).decode
read_measurement = Decoder(Measurement).decode
read_configuration = Decoder(MaintenanceConfiguration).decode
read_assignment = Decoder(ConfigurationAssignment).decode
_read_host = Decoder(Host).decode
_read_gate = Decoder(Gate).decode
_read_request = Decoder(MaintenanceRequest).decode
_read_entry = Decoder(HistoryEntry).decode
_read_webhook = Decoder(WebhookSubscription).decode


def group_by_scope(rows: Iterable[tuple[str, bytes]]) -> dict[str, list[bytes]]:
    """Return scope id → the JSON bodies of its rows, in their order; a row is a scope id and a body."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for scope_id, body in rows:
        found[scope_id].append(body)
    return found


def read_scope(row: tuple[Any, ...], vms: tuple[Vm, ...], events: tuple[Event, ...]) -> Scope:
    """Return a scope from a whole row of table `scopes`, with these VMs and events."""
    id_, version, epoch, incarnation, enabled_at, last_request_at, next_seq, wakes_at = row
    return Scope(
        id=id_,
        version=version,
        epoch=epoch,
        incarnation=incarnation,
        enabled_at=enabled_at,
        last_request_at=last_request_at,
        next_seq=next_seq,
        wakes_at=wakes_at,
        vms=vms,
        events=events,
    )


def read_host(body: bytes, version: int, arrivals: int) -> Host:
    """Return a host from its JSON (`body`); the columns `version` and `arrivals` replace the fields there."""
    return replace(_read_host(body), version=version, arrivals=arrivals)


def read_gate(body: bytes, version: int, wakes_at: float | None) -> Gate:
    """Return a gate from its JSON (`body`); the columns `version` and `wakes_at` replace the fields there."""
    return replace(_read_gate(body), version=version, wakes_at=wakes_at)


def read_request(body: bytes, version: int) -> MaintenanceRequest:
    """Return a request from its JSON (`body`); the column `version` replaces the field there."""
    return replace(_read_request(body), version=version)


def read_entry(body: bytes, seq: int) -> HistoryEntry:
    """Return a history entry from its JSON (`body`), with the sequence number of its row."""
    return replace(_read_entry(body), seq=seq)


def read_webhook(body: bytes, cursor: int) -> WebhookSubscription:
    """Return a webhook from its JSON (`body`); the column `cursor` replaces the field there."""
    return replace(_read_webhook(body), cursor=cursor)


def read_delivery(row: tuple[Any, ...]) -> EventDelivery:
    event_id, scope_id, vm, status, version, incarnation, at = row
    return EventDelivery(
        event_id=event_id, scope_id=scope_id, vm=vm, status=status, version=version, incarnation=incarnation, at=at
    )


def json_list(names: Sequence[str]) -> str:
    """Return these strings as the text of a JSON list, which a query takes as one parameter."""
    return _encode(names).decode()


def scope_row(scope: Scope) -> SqlRow:
    """Return the row of a scope as column → value, without id and version, which `writes` adds."""
    return {
        "epoch": scope.epoch,
        "incarnation": scope.incarnation,
        "enabled_at": scope.enabled_at,
        "last_request_at": scope.last_request_at,
        "next_seq": scope.next_seq,
        "wakes_at": scope.wakes_at,
    }


def gate_row(gate: Gate) -> SqlRow:
    """Return the row of a gate as column → value, without id and version, which `writes` adds."""
    return {"wakes_at": gate.wakes_at, "request_id": gate.request_id, "body": _encode(gate)}


def request_row(request: MaintenanceRequest) -> SqlRow:
    """Return the row of a request as column → value, without id and version, which `writes` adds."""
    return {"is_open": request.is_open, "at": request.requested_at, "body": _encode(request)}


def vm_row(vm: Vm) -> SqlRow:
    """Return the row of a VM as column → value, without its position, which the database assigns."""
    return {
        "key": vm.key,
        "scope_id": vm.scope_id,
        "host": vm.host,
        "removed_at": vm.removed_at,
        "body": _encode(vm),
    }


def host_row(host: Host) -> SqlRow:
    """Return the parameters of the statements that add, update or remove a host, or count an arrival."""
    return {"id": host.id, "decided_on": host.version, "arrivals": host.arrivals, "body": _encode(host)}


def event_row(event: Event) -> SqlRow:
    """Return the row of an event as column → value, without its position, which the database assigns."""
    return {
        "id": event.id,
        "scope_id": event.scope_id,
        "seq": event.seq,
        "request_id": event.request_id,
        "gate_id": event.gate_id,
        "status": event.status.value,
        "over_at": event.over_at,
        "body": _encode(event),
    }


def planned_row(planned: PlannedEvent) -> SqlRow:
    """Return the row of a planned event as column → value, without position, which the database assigns."""
    return {
        "event_id": planned.event_id,
        "request_id": planned.request_id,
        "scope_id": planned.scope_id,
        "gate_id": planned.gate_id,
        "body": _encode(planned),
    }


def entry_row(entry: HistoryEntry) -> SqlRow:
    """Return the row of a history entry as column → value, without `seq`, which the database assigns."""
    return {
        "at": entry.at,
        "kind": entry.kind.value,
        "scope_id": entry.scope_id,
        "event_id": entry.event_id,
        "request_id": entry.request_id,
        "vm": entry.vm,
        "body": _encode(entry),
    }


def measurement_row(measurement: Measurement) -> SqlRow:
    """Return the row of a measurement as column → value, without its position, which the database assigns."""
    return {"request_id": measurement.request_id, "body": _encode(measurement)}


def delivery_row(delivery: EventDelivery) -> SqlRow:
    """Return the parameters that add a delivery; its event, VM and texts must have been added before."""
    return {
        "event_id": delivery.event_id,
        "vm_key": delivery.vm,
        "status_text": delivery.status,
        "version_text": delivery.version,
        "incarnation": delivery.incarnation,
        "at": delivery.at,
    }


def delivery_event_row(delivery: EventDelivery) -> SqlRow:
    """Return the parameters that add a delivery's event to table `delivery_events`."""
    return {"event_id": delivery.event_id, "scope_text": delivery.scope_id, "first_at": delivery.at}


def last_poll_row(poll: LastPoll) -> SqlRow:
    """Return the row of the latest poll of a VM as column → value."""
    return {"vm": poll.vm, "scope_id": poll.scope_id, "at": poll.at, "body": _encode(poll)}


def client_row(client: RegisteredClient) -> SqlRow:
    """Return the row of an API client as column → value: `id`, and `body`, the whole client as JSON."""
    return {"id": client.id, "body": _encode(client)}


def grant_row(grant: Grant) -> SqlRow:
    """Return the row of a grant as column → value, without its position, which the database assigns."""
    return {"id": grant.id, "principal": grant.principal, "body": _encode(grant)}


def webhook_row(webhook: WebhookSubscription) -> SqlRow:
    """Return the row of a webhook as column → value, without its position, which the database assigns."""
    return {"id": webhook.id, "cursor": webhook.cursor, "body": _encode(webhook)}


def configuration_row(value: MaintenanceConfiguration | ConfigurationAssignment) -> SqlRow:
    return {"id": value.key, "body": _encode(value)}


def cursor_row(cursor: WebhookCursor) -> SqlRow:
    """Return the parameters that move a webhook's cursor: `row_id` of the webhook and the new `seq`."""
    return {"row_id": cursor.webhook_id, "seq": cursor.seq}
