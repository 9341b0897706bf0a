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
from forewarn.log_rate_limit import limit_repeated_messages

if TYPE_CHECKING:
    from forewarn.metadata import ListenerSpec


_ENABLEMENT_CHOICE = click.Choice(["on-request", "always"])
_MAX_VMS_SHOWN = 16
_EVENTS_TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
_AZURE_HINTS = (('eval "$(forewarn env)"', "make az and Azure's SDKs in that shell use this service"),)


def _settings_options(function: CommandFunction) -> CommandFunction:
    """Add the options that `up` and `serve` share; each overrides the environment and the settings file."""
    options = (
        click.option(
            "--config", type=click.Path(path_type=Path), metavar="FILE", help="Read this settings file (TOML)."
        ),
        click.option("--fleet", metavar="FILE", help="Apply this fleet file to an empty store."),
        click.option("--enablement", type=_ENABLEMENT_CHOICE, help="Choose when a scope gets events."),
        click.option("--workers", type=click.IntRange(0, 64), help="Answer VMs in N processes; 0: in the service."),
        click.option("--listen", multiple=True, metavar="ADDRESS:PORT", help="Serve VMs on this address; repeatable."),
        click.option("--console", metavar="ADDRESS:PORT", help='Serve API and portal over HTTPS here; "": nowhere.'),
        click.option("--new-store", is_flag=True, help="Start empty where an earlier service's database is missing."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@_settings_options
@click.option("--port", type=click.IntRange(1, 65535), help="Use this port on the VMs' loopback addresses.")
@click.option("--one-port-per-vm", is_flag=True, default=None, help="Give each VM a port instead of an address.")
@local_command
def up(call: Invocation, **options: Any) -> None:
    """Start a lab: a sample fleet, and a clock that can be moved.

    Each VM has its own loopback address; a request to that address counts as coming from that VM.

    \f
    Prints `print_service` once it serves, and runs until it is stopped. `options` override the settings of environment
    and file by name; those that are None do not.
    """
    _run_service(call, "up", options, lab=True)


@click.command()
@_settings_options
@local_command
def serve(call: Invocation, **options: Any) -> None:
    """Start the service for real VMs, in real time.

    \f
    Prints `print_service` once it serves, and runs until it is stopped. `options` override the settings of environment
    and file by name; those that are None do not.
    """
    _run_service(call, "serve", options, lab=False)


def _run_service(call: Invocation, command: str, options: dict[str, Any], *, lab: bool) -> None:
    with require_server_extra(command):
        from forewarn.service.data_directory import live_supervisor_pids
        from forewarn.service.run import run_service
        from forewarn.service.settings import load_settings
        from forewarn.service.wiring import Service

    config, listen, new_store = options.pop("config"), options.pop("listen"), options.pop("new_store")
    flags = {**options, "data": call.given_data, "listen": listen or None}
    settings = load_settings(flags, lab=lab, config=config)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    limit_repeated_messages()

    def announce(service: Service) -> None:
        # The link is a secret, and output that is not a terminal may be a log.
        link = service.sign_in_link() if call.output.is_terminal else ""
        print_service(call.output, service.info(), service.lab_endpoints(_MAX_VMS_SHOWN), link)

    try:
        pending = run_service(settings, announce, new_store=new_store)
        if call.output.is_terminal:
            left = "it had not started yet" if pending is None else f"{count_noun(pending, 'event')} pending"
            call.output.print_line(f"stopped; all data is kept, {left}")
            _print_running_supervisors(call.output, live_supervisor_pids(settings.directory))
    finally:
        discard_unwritable_output()


def _print_running_supervisors(output: Output, pids: list[int]) -> None:
    if pids:
        programs = f"{count_noun(len(pids), 'program')} in VMs still {'runs' if len(pids) == 1 else 'run'}"
        output.print_line(f"{programs}; to stop: kill {' '.join(map(str, pids))}")


def print_service(output: Output, info: JsonObject, endpoints: list[tuple[str, str]], link: str = "") -> None:
    """Print the banner of a service that has started, or `info` as JSON with --json.

    `info` is the API's view of the service. `endpoints` are the first VMs of a lab by name, with the URL that serves
    each. `link` signs in to the portal once, and is a secret; "" prints the portal's plain URL. A terminal also gets
    commands to try first.
    """
    if output.as_json:
        output.print_json(info)
        return
    counts = info["counts"]
    what = "lab" if info["lab"] else "service"
    output.print_line(bold(f"forewarn {info['version']}"), f": the {what} is up.")
    output.print_line()
    fleet = (
        count_noun(counts["vms"], "VM"),
        count_noun(counts["scopes"], "scope"),
        count_noun(counts["hosts"], "host"),
    )
    output.print_facts(
        [
            ("fleet", ", ".join(fleet)),
            ("events", f"{counts['events']} pending" if counts["events"] else "none pending"),
            *(("VMs use", _listener_text(at)) for at in info["listeners"][:4]),
            *([("workers", str(len(info["workers"])))] if info["workers"] else []),
            *([("console", info["console"]["url"])] if info["console"] else []),
            *([("portal", link or info["console"]["portal"])] if info["console"] else []),
            ("data", info["data"]),
        ]
    )
    if info["identity_on_loopback"]:
        output.print_line()
        output.print_line("identity_on_loopback is on: every program on this machine can get the token of any VM.")
    if endpoints:
        output.print_line()
        output.print_facts([(name, url) for name, url in endpoints])
        if counts["vms"] > len(endpoints):
            output.print_line(dim(f"  and {counts['vms'] - len(endpoints)} more"))
    if output.is_terminal:
        output.print_hints([*_first_steps(endpoints, counts["vms"]), *(_AZURE_HINTS if info["console"] else ())])
        output.print_line()
        output.print_line(dim("Ctrl-C stops it; all data is kept."))


def _first_steps(endpoints: list[tuple[str, str]], vms: int) -> list[tuple[str, str]]:
    """Commands to try next, with a VM of this fleet."""
    if not endpoints and vms:
        return [("forewarn fleet show", "show the VMs"), ("forewarn events --watch", "watch their events")]
    if not endpoints:
        return [("forewarn fleet add NAME", "add a VM"), ("forewarn fleet apply FILE", "load a whole fleet")]
    name, url = endpoints[0]
    return [
        (f"curl -H Metadata:true '{url}{_EVENTS_TARGET}'", f"get the events that {name} sees"),
        (f"forewarn restart {name}", "request a restart; the VM gets notice first"),
        (f"forewarn explain {name}", "what happened to it, and what it waits for"),
    ]


def _listener_text(at: JsonObject) -> str:
    if "/" in at["address"]:
        return f"their own addresses in {at['address']}, port {at['port']}"
    host = f"[{at['address']}]" if ":" in at["address"] else at["address"]
    return f"http://{host}:{at['port']}"


@click.command()
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="Read the service's settings file (TOML)."
)
@local_command
def sockets(call: Invocation, config: Path | None) -> None:
    """Open the sockets for VMs, and pass them to the service.

    Run it as root beside a service that has `sockets = "helper"` in the same settings file.
    The service's user owns the data directory, and needs no privileges.

    \f
    Runs until it is stopped. Prints once how many sockets are open, and how many not yet; opens those later.
    """
    with require_server_extra("sockets"):
        from forewarn.metadata.socket_helper import run_socket_helper
        from forewarn.service.settings import load_settings

    settings = load_settings({"data": call.given_data}, lab=False, config=config)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    limit_repeated_messages()

    def announce(opened: list[ListenerSpec], waits: dict[ListenerSpec, str]) -> None:
        if call.output.as_json:
            waiting = {listener.name: reason for listener, reason in waits.items()}
            names = {"open": [listener.name for listener in opened], "waiting": waiting}
            call.output.print_json({**names, "data": settings.data})
            return
        call.output.print_line(
            f"{count_noun(len(opened), 'socket')} open, {len(waits)} not yet; passed to the service in ", settings.data
        )

    run_socket_helper(settings.metadata_listeners, settings.directory, announce)


@click.command()
@service_command
def doctor(call: Invocation) -> int:
    """Check this machine and the service.

    \f
    The service makes the checks; if none runs, this process makes those of the machine. Prints each check. Returns the
    exit code: 3 if no service runs, 1 if a check failed, else 0.
    """
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
        from forewarn.store.purpose import StorePurpose, read_purpose
    database = call.data / DATABASE_FILE
    settings = Settings(data=str(call.data), lab=read_purpose(database) is not StorePurpose.PRODUCTION)
    return [asdict(check) for check in run_checks(settings, database)]


def _print_check(call: Invocation, check: JsonObject) -> None:
    label = Text("ok  ", style="green") if check["ok"] else Text("bad ", style="red")
    call.output.print_line(
        join_text(label, " ", f"{without_control_characters(check['name']):<10}", "  ", check["text"])
    )
    if not check["ok"] and check["remedy"]:
        call.output.print_line(" " * 17, dim("→ "), check["remedy"])
