"""Every route of `/forewarn/v1`, one line each: method, path, handler, the right it needs and over what, the status
of its answer."""

from __future__ import annotations

from functools import cache
from typing import Any

from forewarn.console import (
    access,
    event,
    explanation,
    fault,
    fleet,
    history,
    keeper,
    maintenance,
    preview,
    replay,
    rollout,
    upkeep,
    webhook,
)
from forewarn.console.call import Call
from forewarn.console.openapi import document
from forewarn.console.over import listing, named_event, named_vm, signed_in, vms_asked_for
from forewarn.console.room import Room
from forewarn.console.route import RouteLine
from forewarn.core.access import Right

READ, OPERATE, APPROVE, PLATFORM = Right.READ, Right.OPERATE, Right.APPROVE, Right.PLATFORM
ADMINISTER = Right.ADMINISTER


async def show_openapi(room: Room, call: Call) -> dict[str, Any]:
    """This API, described in OpenAPI 3.1."""
    return _described()


@cache
def _described() -> dict[str, Any]:
    return document(ROUTES)


# A VM's name may hold a slash (group/name), so it is a `:path`; of two paths that fit, the first counts.
ROUTES: tuple[RouteLine, ...] = (
    RouteLine("GET", "/openapi.json", show_openapi, READ, over=signed_in),
    RouteLine("GET", "/service", upkeep.show_service, READ, over=listing),
    RouteLine("GET", "/fleet", fleet.show, READ, over=listing),
    RouteLine("POST", "/fleet/check", fleet.check, READ),
    RouteLine("POST", "/fleet/apply", fleet.apply, PLATFORM),
    RouteLine("POST", "/fleet/vms", fleet.add_vm, PLATFORM),
    RouteLine("DELETE", "/fleet/vms/{name:path}", fleet.remove_vm, PLATFORM),
    RouteLine("POST", "/fleet/hosts", fleet.add_host, PLATFORM),
    RouteLine("DELETE", "/fleet/hosts/{name}", fleet.remove_host, PLATFORM),
    RouteLine("POST", "/vms/{name:path}/perform-maintenance", maintenance.perform_maintenance, OPERATE, over=named_vm),
    RouteLine("GET", "/vms/{name:path}", fleet.show_vm, READ, over=named_vm),
    RouteLine("GET", "/keepers", keeper.show_all, READ, over=listing),
    RouteLine("POST", "/requests", maintenance.ask, OPERATE, 202, over=vms_asked_for),
    RouteLine("POST", "/requests/preview", preview.ask, OPERATE, over=vms_asked_for),
    RouteLine("GET", "/requests/{id}", maintenance.show_request, READ, over=listing),
    RouteLine("POST", "/hosts/{name}/degrade", maintenance.degrade, PLATFORM, 202),
    RouteLine("POST", "/hosts/{name}/degrade/preview", preview.degrade, PLATFORM),
    RouteLine("POST", "/hosts/{name}/fail/preview", preview.fail, PLATFORM),
    RouteLine("POST", "/hosts/{name}/fail", maintenance.fail, PLATFORM, 202),
    RouteLine("POST", "/hosts/{name}/repair", maintenance.repair, PLATFORM),
    RouteLine("GET", "/rollouts", rollout.show_all, READ),
    RouteLine("POST", "/rollouts", rollout.start, PLATFORM, 202),
    RouteLine("POST", "/rollouts/preview", preview.start_rollout, PLATFORM),
    RouteLine("GET", "/rollouts/{id}", rollout.show, READ),
    RouteLine("POST", "/rollouts/{id}/pause", rollout.pause, PLATFORM),
    RouteLine("POST", "/rollouts/{id}/resume", rollout.resume, PLATFORM),
    RouteLine("POST", "/rollouts/{id}/abort", rollout.abort, PLATFORM),
    RouteLine("GET", "/events", event.show_all, READ, over=listing),
    RouteLine("GET", "/events/{id}", event.show, READ, over=listing),
    RouteLine("POST", "/events/{id}/approve", event.approve, APPROVE, over=named_event),
    RouteLine("POST", "/events/{id}/withdraw", event.withdraw, PLATFORM),
    RouteLine("GET", "/history", history.show, READ, over=listing),
    RouteLine("POST", "/history/prune", history.prune, PLATFORM),
    RouteLine("GET", "/explain/{thing:path}", explanation.explain, READ, over=listing),
    RouteLine("GET", "/replays", replay.show_all, READ),
    RouteLine("POST", "/replays", replay.start, PLATFORM, 202),
    RouteLine("GET", "/replays/{id}", replay.show, READ),
    RouteLine("DELETE", "/replays/{id}", replay.stop, PLATFORM),
    RouteLine("GET", "/faults", fault.show_all, READ),
    RouteLine("POST", "/faults", fault.set_one, PLATFORM),
    RouteLine("POST", "/faults/clear", fault.clear, PLATFORM),
    RouteLine("POST", "/faults/storm", fault.start_storm, PLATFORM),
    RouteLine("DELETE", "/faults/{id}", fault.clear_one, PLATFORM),
    RouteLine("GET", "/clock", upkeep.show_clock, READ, over=listing),
    RouteLine("POST", "/clock/advance", upkeep.advance, PLATFORM),
    RouteLine("POST", "/clock/speed", upkeep.set_speed, PLATFORM),
    RouteLine("POST", "/backup", upkeep.back_up, ADMINISTER),
    RouteLine("GET", "/doctor", upkeep.examine, READ),
    RouteLine("GET", "/access", access.show, ADMINISTER),
    RouteLine("GET", "/access/me", access.show_me, READ, over=signed_in),
    RouteLine("POST", "/access/clients", access.add_client, ADMINISTER),
    RouteLine("POST", "/access/clients/{id}/secret", access.renew_secret, ADMINISTER),
    RouteLine("DELETE", "/access/clients/{id}", access.remove_client, ADMINISTER),
    RouteLine("POST", "/access/grants", access.grant, ADMINISTER),
    RouteLine("DELETE", "/access/grants/{id}", access.revoke, ADMINISTER),
    RouteLine("POST", "/access/links", access.make_link, ADMINISTER),
    RouteLine("GET", "/webhooks", webhook.show_all, ADMINISTER),
    RouteLine("POST", "/webhooks", webhook.add, ADMINISTER),
    RouteLine("DELETE", "/webhooks/{id}", webhook.remove, ADMINISTER),
    RouteLine("POST", "/webhooks/{id}/test", webhook.test, ADMINISTER),
)
