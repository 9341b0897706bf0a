"""Shell completion: the script for a shell, and the names that the service offers after a tab.

Offers nothing if the service does not answer within two seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from forewarn.base.wording import scope_name_from_id
from forewarn.cli.api_client import ApiClient, JsonObject
from forewarn.cli.invocation import Invocation, offline_command
from forewarn.errors import ForewarnError

CompletionFunction = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]  # as click calls it
_TIMEOUT_S = 2.0


def _complete_from(names: Callable[[ApiClient], list[tuple[str, str]]]) -> CompletionFunction:
    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            found = names(ctx.ensure_object(Invocation).api)
        except ForewarnError:
            return []
        start = incomplete.casefold()
        return [CompletionItem(name, help=text) for name, text in found if name.casefold().startswith(start)]

    return complete


def _fleet_part(api: ApiClient, part: str) -> list[JsonObject]:
    items: list[JsonObject] = api.get("fleet", timeout_s=_TIMEOUT_S)[part]
    return items


def _event_choices(api: ApiClient) -> list[tuple[str, str]]:
    events: list[dict[str, Any]] = api.get("events", timeout_s=_TIMEOUT_S)["events"]
    return [(event["id"], f"{event['kind'] or event['verb']} of {', '.join(event['vms'])}") for event in events]


def _rollout_choices(api: ApiClient) -> list[tuple[str, str]]:
    rollouts: list[dict[str, Any]] = api.get("rollouts", timeout_s=_TIMEOUT_S)["rollouts"]
    return [(rollout["id"], f"{rollout['impact']}, {rollout['progress']}") for rollout in rollouts]


def _fault_choices(api: ApiClient) -> list[tuple[str, str]]:
    view = api.get("faults", timeout_s=_TIMEOUT_S)
    return [(thing["id"], str(thing.get("kind", "storm"))) for thing in (*view["faults"], *view["storms"])]


def _fault_kind_choices(api: ApiClient) -> list[tuple[str, str]]:
    return [(kind["kind"], kind["symptom"]) for kind in api.get("faults", timeout_s=_TIMEOUT_S)["kinds"]]


def _webhook_choices(api: ApiClient) -> list[tuple[str, str]]:
    return [(webhook["id"], webhook["url"]) for webhook in api.get("webhooks", timeout_s=_TIMEOUT_S)["webhooks"]]


def _explainable_choices(api: ApiClient) -> list[tuple[str, str]]:
    fleet = api.get("fleet", timeout_s=_TIMEOUT_S)
    named = [*((vm["name"], "VM") for vm in fleet["vms"]), *((host["name"], "host") for host in fleet["hosts"])]
    return [
        *_event_choices(api),
        *_rollout_choices(api),
        *named,
        *((scope["id"], scope["title"]) for scope in fleet["scopes"]),
    ]


def _client_choices(api: ApiClient) -> list[tuple[str, str]]:
    return [(client["id"], client["name"]) for client in api.get("access", timeout_s=_TIMEOUT_S)["clients"]]


def _grant_choices(api: ApiClient) -> list[tuple[str, str]]:
    listed = api.get("access", timeout_s=_TIMEOUT_S)["grants"]
    return [(grant["id"], f"{grant['role']} of {grant['principal_name']}") for grant in listed]


def _node_choices(api: ApiClient) -> list[tuple[str, str]]:
    return [(node["name"], node["role"]) for node in api.get("nodes", timeout_s=_TIMEOUT_S)["nodes"]]


# For `shell_complete` of an argument: what the service has that begins with the typed text, ignoring letter case, each
# with a help text; nothing if the service does not answer.
vm_names = _complete_from(lambda api: [(vm["name"], scope_name_from_id(vm["scope"])) for vm in _fleet_part(api, "vms")])
host_names = _complete_from(lambda api: [(host["name"], host["health"]) for host in _fleet_part(api, "hosts")])
scope_ids = _complete_from(lambda api: [(scope["id"], scope["title"]) for scope in _fleet_part(api, "scopes")])
event_ids = _complete_from(_event_choices)
rollout_ids = _complete_from(_rollout_choices)
fault_ids = _complete_from(_fault_choices)
fault_kinds = _complete_from(_fault_kind_choices)
client_ids = _complete_from(_client_choices)
grant_ids = _complete_from(_grant_choices)
node_names = _complete_from(_node_choices)
webhook_ids = _complete_from(_webhook_choices)
explainable_names = _complete_from(_explainable_choices)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@offline_command
def completion(call: Invocation, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash   eval "$(forewarn completion bash)"       in ~/.bashrc
    zsh    eval "$(forewarn completion zsh)"        in ~/.zshrc
    fish   forewarn completion fish | source        in ~/.config/fish/config.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    script = found(root, {}, "forewarn", "_FOREWARN_COMPLETE").source()
    if call.output.as_json:
        call.output.print_json({"shell": shell, "script": script})
    else:
        click.echo(script)
