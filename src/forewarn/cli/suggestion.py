"""What the shell offers after a tab: names that the service knows. A service that is away offers nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from forewarn.cli.connection import Api, View
from forewarn.cli.invocation import Invocation
from forewarn.errors import ForewarnError

Suggest = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
_PATIENCE_S = 2.0


def _suggest(names: Callable[[Api], list[tuple[str, str]]]) -> Suggest:
    def suggest(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            found = names(ctx.ensure_object(Invocation).api)
        except ForewarnError:
            return []
        start = incomplete.casefold()
        return [CompletionItem(name, help=text) for name, text in found if name.casefold().startswith(start)]

    return suggest


def _fleet(api: Api, part: str) -> list[View]:
    listed: list[View] = api.get("fleet", patience_s=_PATIENCE_S)[part]
    return listed


def _events(api: Api) -> list[tuple[str, str]]:
    events: list[dict[str, Any]] = api.get("events", patience_s=_PATIENCE_S)["events"]
    return [(event["id"], f"{event['kind'] or event['verb']} of {', '.join(event['vms'])}") for event in events]


def _rollouts(api: Api) -> list[tuple[str, str]]:
    rollouts: list[dict[str, Any]] = api.get("rollouts", patience_s=_PATIENCE_S)["rollouts"]
    return [(rollout["id"], f"{rollout['impact']}, {rollout['progress']}") for rollout in rollouts]


def _faults(api: Api) -> list[tuple[str, str]]:
    view = api.get("faults", patience_s=_PATIENCE_S)
    return [(thing["id"], str(thing.get("kind", "storm"))) for thing in (*view["faults"], *view["storms"])]


def _fault_kinds(api: Api) -> list[tuple[str, str]]:
    return [(kind["kind"], kind["seen"]) for kind in api.get("faults", patience_s=_PATIENCE_S)["kinds"]]


def _webhooks(api: Api) -> list[tuple[str, str]]:
    return [(webhook["id"], webhook["url"]) for webhook in api.get("webhooks", patience_s=_PATIENCE_S)["webhooks"]]


def _things(api: Api) -> list[tuple[str, str]]:
    fleet = api.get("fleet", patience_s=_PATIENCE_S)
    named = [*((vm["name"], "VM") for vm in fleet["vms"]), *((host["name"], "host") for host in fleet["hosts"])]
    return [*_events(api), *_rollouts(api), *named, *((scope["id"], scope["title"]) for scope in fleet["scopes"])]


def _clients(api: Api) -> list[tuple[str, str]]:
    return [(client["id"], client["name"]) for client in api.get("access", patience_s=_PATIENCE_S)["clients"]]


def _grants(api: Api) -> list[tuple[str, str]]:
    listed = api.get("access", patience_s=_PATIENCE_S)["grants"]
    return [(grant["id"], f"{grant['role']} of {grant['to_name']}") for grant in listed]


vm_names = _suggest(lambda api: [(vm["name"], vm["title_of_scope"]) for vm in _fleet(api, "vms")])
host_names = _suggest(lambda api: [(host["name"], host["health"]) for host in _fleet(api, "hosts")])
scope_ids = _suggest(lambda api: [(scope["id"], scope["title"]) for scope in _fleet(api, "scopes")])
event_ids = _suggest(_events)
rollout_ids = _suggest(_rollouts)
fault_ids = _suggest(_faults)
fault_kinds = _suggest(_fault_kinds)
client_ids = _suggest(_clients)
grant_ids = _suggest(_grants)
webhook_ids = _suggest(_webhooks)
things = _suggest(_things)
