"""The service itself: `up` for a lab on this machine, `serve` for VMs that are real."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from forewarn.cli.connection import View
from forewarn.cli.extra import server_extra
from forewarn.cli.invocation import Function, Invocation, here
from forewarn.cli.screen import Screen, faint, let_go_of_output, strong
from forewarn.cli.wording import counted

_ENABLEMENT = click.Choice(["on-request", "always"])
_MOST_VMS = 16
_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
_AZURE = (('eval "$(forewarn env)"', "then az and Azure's SDKs talk to this one, in that shell"),)


def _settings(function: Function) -> Function:
    """What both can be told; left out, the environment and the settings file say it."""
    options = (
        click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="A settings file (TOML)."),
        click.option("--fleet", metavar="FILE", help="A fleet file, applied to an empty store."),
        click.option("--enablement", type=_ENABLEMENT, help="When a scope is given events."),
        click.option("--workers", type=click.IntRange(0, 64), help="Processes that answer VMs; 0: the service itself."),
        click.option("--listen", multiple=True, metavar="ADDRESS:PORT", help="An address that VMs call."),
        click.option("--console", metavar="ADDRESS:PORT", help='Where the API is served over HTTPS; "" nowhere.'),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@_settings
@click.option("--port", type=click.IntRange(1, 65535), help="Of the VMs' loopback addresses.")
@click.option("--one-port-per-vm", is_flag=True, default=None, help="For machines with one loopback address.")
@here
def up(call: Invocation, **options: Any) -> None:
    """Start a lab: a sample fleet, and a clock that can be moved.

    Each VM has a loopback address of its own; what calls it there is that VM.
    """
    _run(call, "up", options, lab=True)


@click.command()
@_settings
@here
def serve(call: Invocation, **options: Any) -> None:
    """Start the service for real VMs, in real time."""
    _run(call, "serve", options, lab=False)


def _run(call: Invocation, command: str, options: dict[str, Any], *, lab: bool) -> None:
    with server_extra(command):
        from forewarn.assembly.keepers import keeping_on
        from forewarn.assembly.run import run
        from forewarn.assembly.service import Service
        from forewarn.assembly.settings import load

    config, listen = options.pop("config"), options.pop("listen")
    flags = {**options, "data": call.given_data, "listen": listen or None}
    settings = load(flags, lab=lab, config=config)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def announce(service: Service) -> None:
        # A link is as good as a secret: what is no terminal may be a log.
        link = service.sign_in_link() if call.screen.is_terminal else ""
        announce_service(call.screen, service.info(), service.seats(_MOST_VMS), link)

    try:
        pending = run(settings, announce)
        if call.screen.is_terminal:
            left = "it was not up yet" if pending is None else f"{counted(pending, 'event')} pending"
            call.screen.say(f"stopped; everything is kept, {left}")
            _tell_who_goes_on(call.screen, keeping_on(settings.directory))
    finally:
        let_go_of_output()


def _tell_who_goes_on(screen: Screen, keepers: list[int]) -> None:
    if keepers:
        who = f"{counted(len(keepers), 'program')} in VMs {'goes' if len(keepers) == 1 else 'go'} on without it"
        screen.say(f"{who}; to end this: kill {' '.join(map(str, keepers))}")


def announce_service(screen: Screen, info: View, seats: list[tuple[str, str]], link: str = "") -> None:
    """`seats` are the first VMs with the URL under which a lab serves each; `link` signs in to the portal once."""
    if screen.as_json:
        screen.document(info)
        return
    counts = info["counts"]
    what = "lab" if info["lab"] else "service"
    screen.say(strong(f"forewarn {info['version']}"), f": the {what} is up.")
    screen.say()
    fleet = (counted(counts["vms"], "VM"), counted(counts["scopes"], "scope"), counted(counts["hosts"], "host"))
    screen.facts(
        [
            ("fleet", ", ".join(fleet)),
            ("events", f"{counts['events']} pending" if counts["events"] else "none pending"),
            *(("VMs call", _listener(at)) for at in info["listeners"][:4]),
            *([("workers", str(len(info["workers"])))] if info["workers"] else []),
            *([("console", info["console"]["url"])] if info["console"] else []),
            *([("portal", link or info["console"]["portal"])] if info["console"] else []),
            ("data", info["data"]),
        ]
    )
    if info["identity_on_loopback"]:
        screen.say()
        screen.say("identity_on_loopback is on: every program of this machine can have the token of any VM.")
    if seats:
        screen.say()
        screen.facts([(name, url) for name, url in seats])
        if counts["vms"] > len(seats):
            screen.say(faint(f"  and {counts['vms'] - len(seats)} more"))
    if screen.is_terminal:
        screen.hints([*_hints(seats, counts["vms"]), *(_AZURE if info["console"] else ())])
        screen.say()
        screen.say(faint("Ctrl-C stops it; everything is kept."))


def _hints(seats: list[tuple[str, str]], vms: int) -> list[tuple[str, str]]:
    """What to try next, with a VM that is there."""
    if not seats and vms:
        return [("forewarn fleet show", "its VMs"), ("forewarn events --watch", "what is announced to them")]
    if not seats:
        return [("forewarn fleet add NAME", "the first VM"), ("forewarn fleet apply FILE", "a whole fleet")]
    name, url = seats[0]
    return [
        (f"curl -H Metadata:true '{url}{_PATH}'", f"what {name} is told"),
        (f"forewarn restart {name}", "ask for maintenance: the VM is given notice first"),
        (f"forewarn explain {name}", "what happened to it, and what it waits for"),
    ]


def _listener(at: View) -> str:
    if "/" in at["address"]:
        return f"addresses of their own in {at['address']}, port {at['port']}"
    return f"http://{at['address']}:{at['port']}"
