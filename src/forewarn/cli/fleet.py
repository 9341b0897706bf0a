"""The fleet: what there is, adding and taking out, and a file that describes it."""

from __future__ import annotations

from typing import IO, Any

import click
from rich.text import Text

from forewarn.cli.connection import Faulty, NotRunning, View
from forewarn.cli.extra import server_extra
from forewarn.cli.fleetview import show_fleet, show_host, show_vm
from forewarn.cli.invocation import Invocation, served
from forewarn.cli.name import name as name_of_vm
from forewarn.cli.screen import clean, faint
from forewarn.cli.suggestion import host_names, scope_ids, vm_names
from forewarn.cli.wording import counted
from forewarn.errors import Rejected

file_argument = click.argument("file", type=click.File("rb"), metavar="FILE")
_SIGNS = {"+": "green", "-": "red", "~": "yellow"}


@click.group()
def fleet() -> None:
    """Show and change the fleet."""


@fleet.command()
@click.argument("vm", metavar="[VM]", required=False, shell_complete=vm_names)
@click.option("--scope", metavar="SCOPE", shell_complete=scope_ids, help="Only this scope.")
@click.option("--host", metavar="HOST", shell_complete=host_names, help="Only what runs on this host.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many VMs.")
@served
def show(call: Invocation, vm: str | None, scope: str | None, host: str | None, limit: int | None) -> None:
    """Show hosts and VMs, or one VM with everything known of it."""
    if vm is not None:
        view = call.api.get("vms", vm)
    else:
        view = call.api.get("fleet", query={"scope": scope, "host": host, "limit": limit})
    if call.screen.as_json:
        call.screen.document(view)
    elif vm is not None:
        show_vm(call, view)
    else:
        show_fleet(call, view)


@fleet.command()
@click.argument("name", type=name_of_vm)
@click.option("--group", "resource_group", metavar="GROUP", help="Its resource group.")
@click.option("--location", metavar="LOCATION")
@click.option("--host", metavar="HOST", shell_complete=host_names, help="Where it runs; chosen if left out.")
@click.option("--availability-set", metavar="SET", help="A name that is new makes a set.")
@click.option("--scale-set", metavar="SET", help="A name that is new makes a set.")
@click.option("--zone", metavar="ZONE")
@click.option("--spot", "priority", flag_value="Spot", help="A Spot VM: it can be evicted.")
@served
def add(call: Invocation, name: str, **facts: Any) -> None:
    """Add one VM."""
    given = {fact: value for fact, value in facts.items() if value is not None}
    _answer(call, call.api.post("fleet", "vms", body={"name": name, **given}), "added")


@fleet.command()
@click.argument("vm", metavar="VM", shell_complete=vm_names)
@served
def remove(call: Invocation, vm: str) -> None:
    """Take one VM out of the fleet at once, with no event.

    `forewarn delete VM` deletes it with notice.
    """
    _answer(call, call.api.delete("fleet", "vms", vm), "taken out of the fleet")


def _answer(call: Invocation, view: View, what: str) -> None:
    if call.screen.as_json:
        call.screen.document(view)
    else:
        call.screen.say(f"VM {view['name']} is {what}.")
        call.screen.say()
        show_vm(call, view)


@fleet.command("add-host")
@click.argument("name")
@click.option("--location", required=True, metavar="LOCATION")
@click.option("--zone", metavar="ZONE")
@served
def add_host(call: Invocation, name: str, location: str, zone: str | None) -> None:
    """Add one host."""
    body = {"name": name, "location": location, **({"zone": zone} if zone else {})}
    show_host(call, call.api.post("fleet", "hosts", body=body), "added")


@fleet.command("remove-host")
@click.argument("host", metavar="HOST", shell_complete=host_names)
@served
def remove_host(call: Invocation, host: str) -> None:
    """Take one host out of the fleet; it must be empty."""
    show_host(call, call.api.delete("fleet", "hosts", host), "taken out of the fleet")


@fleet.command()
@file_argument
@served
def check(call: Invocation, file: IO[bytes]) -> None:
    """Say what is wrong with a fleet file, or what it would change."""
    proposal = _proposal(file)
    try:
        answer = _propose(call, proposal, "check")
    except NotRunning:
        _check_alone(call, proposal)
        return
    if call.screen.as_json:
        call.screen.document(answer)
    else:
        _show_difference(call, answer, _name(file))


def _check_alone(call: Invocation, proposal: dict[str, object]) -> None:
    """A file can be checked before there is a service; what it would change is known only with one."""
    with server_extra("fleet check"):
        from forewarn.core.proposal import BadFleet, read_fleet
    source = str(proposal["source"])
    try:
        found = read_fleet(str(proposal["text"]), source=source)
    except BadFleet as error:
        problems = [{"line": p.line, "what": p.what, "remedy": p.remedy} for p in error.problems]
        raise faulty(f"{source} has {counted(len(problems), 'problem')}", problems, source) from error
    if call.screen.as_json:
        call.screen.document({"difference": None, "vms": len(found.vms), "hosts": len(found.hosts)})
    else:
        call.screen.say(f"{source} is sound: {counted(len(found.vms), 'VM')} on {counted(len(found.hosts), 'host')}.")
        call.screen.say(faint(f"No service answers in {call.data}, so what it would change is not known."))


@fleet.command()
@file_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show the difference.")
@click.option("--resurrect", is_flag=True, help="Bring back VMs that were deleted but are still in the file.")
@served
def apply(call: Invocation, file: IO[bytes], yes: bool, dry_run: bool, resurrect: bool) -> int:
    """Make the fleet what a file describes.

    The difference is shown first, and you are asked.
    """
    proposal: dict[str, object] = {**_proposal(file), "resurrect": resurrect}
    preview = _propose(call, {**proposal, "dry_run": True}, "apply")
    if not call.screen.as_json:
        _show_difference(call, preview, _name(file))
    if dry_run or preview["difference"]["is_empty"]:
        return _conclude(call, preview)
    if preview["difference"]["problems"]:
        return _conclude(call, _propose(call, {**proposal, "dry_run": False}, "apply"))  # the service says why not
    if not yes and not _agreed():
        call.screen.complain("nothing was applied")
        return 1
    return _conclude(call, _propose(call, {**proposal, "dry_run": False}, "apply"))


def _conclude(call: Invocation, answer: View) -> int:
    if call.screen.as_json:
        call.screen.document(answer)
    elif answer["applied"]:
        call.screen.say("Applied.")
    return 0


def _agreed() -> bool:
    try:
        return click.confirm("Apply this?", err=True)
    except click.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
            raise
        raise Rejected("nothing was applied, because nobody could be asked: give --yes to apply") from error


def _proposal(file: IO[bytes]) -> dict[str, object]:
    try:
        text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Rejected(
            f"the fleet file {_name(file)!r} is not UTF-8 at byte {error.start}: save it as UTF-8"
        ) from error
    return {"text": text, "source": _name(file)}


def _name(file: IO[bytes]) -> str:
    name = getattr(file, "name", "<stdin>")
    return "standard input" if name == "<stdin>" else str(name)


def _propose(call: Invocation, proposal: dict[str, object], verb: str) -> View:
    try:
        return call.api.post("fleet", verb, body=proposal)
    except Faulty as error:
        error.source = str(proposal["source"])
        raise


def faulty(message: str, problems: list[View], source: str) -> Faulty:
    error = Faulty(message, problems)
    error.source = source
    return error


def _show_difference(call: Invocation, answer: View, source: str) -> None:
    difference = answer["difference"]
    if difference["is_empty"]:
        call.screen.say(f"The fleet is what {source} describes: nothing to change.")
        return
    for line in difference["lines"]:
        call.screen.say(Text(clean(line), style=_SIGNS.get(line.lstrip()[:1], "")))
