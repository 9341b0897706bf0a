"""Commands that run or check the service: `up`, `serve`, `sockets` and `doctor`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from forewarn.cli.api_client import JsonObject, ServiceNotRunning
from forewarn.cli.formatting import count_noun
from forewarn.cli.invocation import CommandFunction, Invocation, local_command, require_server_extra, service_command
from forewarn.cli.output import Output, bold, dim, discard_unwritable_output, join_text, without_control_characters

if TYPE_CHECKING:
    from forewarn.metadata import ListenerSpec


_ENABLEMENT_CHOICE = click.Choice(["on-request", "always"])
_MAX_VMS_SHOWN = 16
_EVENTS_TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
_AZURE_HINTS = (('eval "$(forewarn env)"', "then az and Azure's SDKs talk to this one, in that shell"),)


def _settings_options(function: CommandFunction) -> CommandFunction:
    """What both can be told; left out, the environment and the settings file say it."""
    options = (
        click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="A settings file (TOML)."),
        click.option("--fleet", metavar="FILE", help="A fleet file, applied to an empty store."),
        click.option("--enablement", type=_ENABLEMENT_CHOICE, help="When a scope is given events."),
        click.option("--workers", type=click.IntRange(0, 64), help="Processes that answer VMs; 0: the service itself."),
        click.option("--listen", multiple=True, metavar="ADDRESS:PORT", help="An address that VMs call."),
        click.option("--console", metavar="ADDRESS:PORT", help='Where the API is served over HTTPS; "" nowhere.'),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@_settings_options
@click.option("--port", type=click.IntRange(1, 65535), help="Of the VMs' loopback addresses.")
@click.option("--one-port-per-vm", is_flag=True, default=None, help="For machines with one loopback address.")
@local_command
def up(call: Invocation, **options: Any) -> None:
    """Start a lab: a sample fleet, and a clock that can be moved.

    Each VM has a loopback address of its own; what calls it there is that VM.
    """
    _run_service(call, "up", options, lab=True)


@click.command()
@_settings_options
@local_command
def serve(call: Invocation, **options: Any) -> None:
    """Start the service for real VMs, in real time."""
    _run_service(call, "serve", options, lab=False)


def _run_service(call: Invocation, command: str, options: dict[str, Any], *, lab: bool) -> None:
    with require_server_extra(command):
        from forewarn.service.data_directory import live_supervisor_pids
        from forewarn.service.run import run_service
        from forewarn.service.settings import load_settings
        from forewarn.service.wiring import Service

    config, listen = options.pop("config"), options.pop("listen")
    flags = {**options, "data": call.given_data, "listen": listen or None}
    settings = load_settings(flags, lab=lab, config=config)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def announce(service: Service) -> None:
        # A link is as good as a secret: what is no terminal may be a log.
        link = service.sign_in_link() if call.output.is_terminal else ""
        print_service(call.output, service.info(), service.lab_endpoints(_MAX_VMS_SHOWN), link)

    try:
        pending = run_service(settings, announce)
        if call.output.is_terminal:
            left = "it was not up yet" if pending is None else f"{count_noun(pending, 'event')} pending"
            call.output.print_line(f"stopped; everything is kept, {left}")
            _print_running_supervisors(call.output, live_supervisor_pids(settings.directory))
    finally:
        discard_unwritable_output()


def _print_running_supervisors(screen: Output, keepers: list[int]) -> None:
    if keepers:
        who = f"{count_noun(len(keepers), 'program')} in VMs {'goes' if len(keepers) == 1 else 'go'} on without it"
        screen.print_line(f"{who}; to end this: kill {' '.join(map(str, keepers))}")


def print_service(screen: Output, info: JsonObject, seats: list[tuple[str, str]], link: str = "") -> None:
    """`seats` are the first VMs with the URL under which a lab serves each; `link` signs in to the portal once."""
    if screen.as_json:
        screen.print_json(info)
        return
    counts = info["counts"]
    what = "lab" if info["lab"] else "service"
    screen.print_line(bold(f"forewarn {info['version']}"), f": the {what} is up.")
    screen.print_line()
    fleet = (
        count_noun(counts["vms"], "VM"),
        count_noun(counts["scopes"], "scope"),
        count_noun(counts["hosts"], "host"),
    )
    screen.print_facts(
        [
            ("fleet", ", ".join(fleet)),
            ("events", f"{counts['events']} pending" if counts["events"] else "none pending"),
            *(("VMs call", _listener_text(at)) for at in info["listeners"][:4]),
            *([("workers", str(len(info["workers"])))] if info["workers"] else []),
            *([("console", info["console"]["url"])] if info["console"] else []),
            *([("portal", link or info["console"]["portal"])] if info["console"] else []),
            ("data", info["data"]),
        ]
    )
    if info["identity_on_loopback"]:
        screen.print_line()
        screen.print_line("identity_on_loopback is on: every program of this machine can have the token of any VM.")
    if seats:
        screen.print_line()
        screen.print_facts([(name, url) for name, url in seats])
        if counts["vms"] > len(seats):
            screen.print_line(dim(f"  and {counts['vms'] - len(seats)} more"))
    if screen.is_terminal:
        screen.print_hints([*_first_steps(seats, counts["vms"]), *(_AZURE_HINTS if info["console"] else ())])
        screen.print_line()
        screen.print_line(dim("Ctrl-C stops it; everything is kept."))


def _first_steps(seats: list[tuple[str, str]], vms: int) -> list[tuple[str, str]]:
    """What to try next, with a VM that is there."""
    if not seats and vms:
        return [("forewarn fleet show", "its VMs"), ("forewarn events --watch", "what is announced to them")]
    if not seats:
        return [("forewarn fleet add NAME", "the first VM"), ("forewarn fleet apply FILE", "a whole fleet")]
    name, url = seats[0]
    return [
        (f"curl -H Metadata:true '{url}{_EVENTS_TARGET}'", f"what {name} is told"),
        (f"forewarn restart {name}", "ask for maintenance: the VM is given notice first"),
        (f"forewarn explain {name}", "what happened to it, and what it waits for"),
    ]


def _listener_text(at: JsonObject) -> str:
    if "/" in at["address"]:
        return f"addresses of their own in {at['address']}, port {at['port']}"
    return f"http://{at['address']}:{at['port']}"


@click.command()
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="The service's settings file (TOML).")
@local_command
def sockets(call: Invocation, config: Path | None) -> None:
    """Open the sockets that VMs call, and hand them to the service.

    Run it as root beside a service that has `sockets = "helper"` in the same settings file.
    The service's user owns the data directory, and needs no privilege.
    """
    with require_server_extra("sockets"):
        from forewarn.metadata.socket_helper import run_socket_helper
        from forewarn.service.settings import load_settings

    settings = load_settings({"data": call.given_data}, lab=False, config=config)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def announce(opened: list[ListenerSpec], waits: dict[ListenerSpec, str]) -> None:
        if call.output.as_json:
            names = {"open": [entrance.name for entrance in opened], "waiting": {e.name: w for e, w in waits.items()}}
            call.output.print_json({**names, "data": settings.data})
            return
        call.output.print_line(
            f"{count_noun(len(opened), 'socket')} open, {len(waits)} waited for; handed over in ", settings.data
        )

    run_socket_helper(settings.metadata_listeners, settings.directory, announce)


@click.command()
@service_command
def doctor(call: Invocation) -> int:
    """Check this machine and the service."""
    try:
        checks: list[JsonObject] = [*call.api.get("doctor")["checks"], _service_answers_check(call)]
        running = True
    except ServiceNotRunning as error:
        checks, running = [*_local_checks(call), _service_missing_check(error)], False
    if call.output.as_json:
        call.output.print_json({"checks": checks})
    else:
        for check in checks:
            _print_check(call, check)
    if not running:
        return 3
    return 0 if all(check["ok"] for check in checks) else 1


def _service_answers_check(call: Invocation) -> JsonObject:
    return {"name": "service", "ok": True, "text": f"it answers {call.api.location}", "remedy": ""}


def _service_missing_check(error: ServiceNotRunning) -> JsonObject:
    what, _, remedy = str(error).partition(": ")
    return {"name": "service", "ok": False, "text": what, "remedy": remedy}


def _local_checks(call: Invocation) -> list[JsonObject]:
    with require_server_extra("doctor"):
        from dataclasses import asdict

        from forewarn.service.data_directory import DATABASE_FILE
        from forewarn.service.doctor import run_checks
        from forewarn.service.settings import Settings
    settings = Settings(data=str(call.data), lab=True)
    return [asdict(check) for check in run_checks(settings, call.data / DATABASE_FILE)]


def _print_check(call: Invocation, check: JsonObject) -> None:
    mark = Text("ok  ", style="green") if check["ok"] else Text("bad ", style="red")
    call.output.print_line(
        join_text(mark, " ", f"{without_control_characters(check['name']):<10}", "  ", check["text"])
    )
    if not check["ok"] and check["remedy"]:
        call.output.print_line(" " * 17, dim("→ "), check["remedy"])
