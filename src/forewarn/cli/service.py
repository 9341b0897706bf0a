"""Commands that run or check the service: `up`, `serve`, `sockets` and `doctor`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from forewarn.base.log_rate_limit import limit_repeated_messages
from forewarn.cli.api_client import JsonObject, ServiceNotRunning
from forewarn.cli.background import child_arguments, start_detached
from forewarn.cli.invocation import CommandFunction, Invocation, local_command, require_server_extra, service_command
from forewarn.cli.output import count_noun, dim, discard_unwritable_output, join_text, without_control_characters
from forewarn.cli.service_banner import print_running_supervisors, print_service
from forewarn.errors import Rejected

if TYPE_CHECKING:
    from forewarn.metadata import ListenerSpec
    from forewarn.service.settings import Settings


_ENABLEMENT_CHOICE = click.Choice(["on-request", "always"])


def _settings_options(function: CommandFunction) -> CommandFunction:
    options = (
        click.option(
            "--config", type=click.Path(path_type=Path), metavar="FILE", help="Read this settings file (TOML)."
        ),
        click.option("--fleet", metavar="FILE", help="Apply this fleet file to an empty store."),
        click.option("--enablement", type=_ENABLEMENT_CHOICE, help="Choose when a scope gets events."),
        click.option("--hypervisor", metavar="NAME", help="Choose what performs acts on VMs; `serve` has no default."),
        click.option("--workers", type=click.IntRange(0, 64), help="Answer VMs in N processes; 0: in the service."),
        click.option("--listen", multiple=True, metavar="ADDRESS:PORT", help="Serve VMs on this address; repeatable."),
        click.option("--api", metavar="ADDRESS:PORT", help='Serve API and portal over HTTPS here; "": nowhere.'),
        click.option("--new-store", is_flag=True, help="Start empty where an earlier service's database is missing."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@_settings_options
@click.option("--port", type=click.IntRange(1, 65535), help="Use this port on the VMs' loopback addresses.")
@click.option("--one-port-per-vm", is_flag=True, default=None, help="Give each VM a port instead of an address.")
@click.option("--detach", "-d", is_flag=True, help="Run it in the background; `forewarn down` stops it.")
@click.option("--wait-ready", is_flag=True, help="With --detach: return when VMs and operators are served.")
@local_command
def up(call: Invocation, detach: bool, wait_ready: bool, **options: Any) -> None:
    """Start a lab: a sample fleet, and a clock that can be moved.

    Each VM has its own loopback address; a request to that address counts as coming from that VM.

    \b
    forewarn up
    forewarn up --detach --wait-ready
    """
    if wait_ready and not detach:
        raise Rejected("--wait-ready needs --detach: without it, the lab runs here and prints when it is ready")
    if detach:
        start_detached(
            call, _checked_directory(call, options), child_arguments(click.get_current_context()), wait_ready=wait_ready
        )
        return
    run_service_command(call, "up", options, lab=True)


@click.command()
@_settings_options
@click.option("--bus", metavar="URL", help="Let host nodes on these NATS servers answer VMs and perform acts.")
@click.option(
    "--store", metavar="URL", help="Share this PostgreSQL database with the other control nodes of a cluster."
)
@click.option("--name", metavar="NAME", help="Name this control node; each one has a name of its own.")
@click.option("--advertise", metavar="URL", help="Let the other control nodes reach this one at this URL.")
@click.option("--api-url", metavar="URL", help="Let clients reach the service at this URL, the same on all nodes.")
@click.option("--secrets", metavar="DIR", help="Use the cluster's secrets in this directory (`forewarn cluster init`).")
@local_command
def serve(call: Invocation, **options: Any) -> None:
    """Start the service for real VMs, in real time.

    With --store it is a control node of a cluster: one node is active, the others follow and take over.

    \b
    forewarn serve --hypervisor command --config forewarn.toml
    forewarn serve --store postgresql://forewarn@db/forewarn --name c1 --api-url https://forewarn.example:8443
    """
    run_service_command(call, "serve", options, lab=False)


def _checked_directory(call: Invocation, options: dict[str, Any]) -> Path:
    """The data directory; raises Rejected for wrong settings here, not only in the background's log."""
    with require_server_extra("up"):
        settings = _load_settings(call, {name: options[name] for name in options if name != "new_store"}, lab=True)
    return settings.directory


def _load_settings(call: Invocation, options: dict[str, Any], *, lab: bool) -> Settings:
    from forewarn.service.settings import load_settings

    flags = {name: value for name, value in options.items() if name != "config"}
    flags |= {"data": call.given_data, "listen": options["listen"] or None}
    return load_settings(flags, lab=lab, config=options["config"])


def run_service_command(call: Invocation, command: str, options: dict[str, Any], *, lab: bool) -> None:
    """Run the service in this process until a signal stops it, and print its banner once it serves."""
    with require_server_extra(command):
        from forewarn.service.data_directory import live_supervisor_pids
        from forewarn.service.run import run_service
        from forewarn.service.service import Service

    new_store = options.pop("new_store")
    settings = _load_settings(call, options, lab=lab)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    limit_repeated_messages()

    def announce(service: Service) -> None:
        # The link is a secret, and output that is not a terminal may be a log.
        link = service.sign_in_link() if call.output.is_terminal else ""
        print_service(call.output, service.info(), link)

    if settings.store:
        _run_control_node(call, settings)
        return
    try:
        pending = run_service(settings, announce, new_store=new_store)
        if call.output.is_terminal and command != "lab vms":  # that removes its data next
            left = "it had not started yet" if pending is None else f"{count_noun(pending, 'event')} pending"
            call.output.print_line(f"stopped; all data is kept, {left}")
            print_running_supervisors(call.output, live_supervisor_pids(settings.directory))
    finally:
        discard_unwritable_output()


def _run_control_node(call: Invocation, settings: Settings) -> None:
    from forewarn.service.node_wiring import ControlNodeProcess
    from forewarn.service.run import run_control_node

    def announce(process: ControlNodeProcess) -> None:
        node = process.node
        described = {"name": node.name, "url": node.url, "api_url": settings.api_url, "data": settings.data}
        if call.output.as_json:
            call.output.print_json({"control_node": described})
            return
        call.output.print_line(f"control node {node.name} follows the record, and is served at {node.url}")
        call.output.print_line(f"clients use {settings.api_url}; `forewarn node list` shows all control nodes")

    try:
        run_control_node(settings, announce)
        if call.output.is_terminal:
            call.output.print_line("stopped; all data is kept in the record")
    finally:
        discard_unwritable_output()


@click.command()
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="Read the service's settings file (TOML)."
)
@local_command
def sockets(call: Invocation, config: Path | None) -> None:
    """Open the sockets for VMs, and pass them to the service.

    Run it as root beside a service that has `sockets = "helper"` in the same settings file.
    The service's user owns the data directory, and needs no privileges.
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
