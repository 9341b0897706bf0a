"""Clients that sign in with a secret, which is shown once."""

from __future__ import annotations

from pathlib import Path

import click

from forewarn.cli.connection import View
from forewarn.cli.invocation import Function, Invocation, served
from forewarn.cli.name import name
from forewarn.cli.private import write_private
from forewarn.cli.screen import faint, strong
from forewarn.cli.suggestion import client_ids
from forewarn.cli.wording import counted
from forewarn.errors import Rejected


@click.group()
def client() -> None:
    """Programs that sign in with a secret of their own."""


def _secret_file(function: Function) -> Function:
    return click.option(
        "--secret-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the secret to this file, mode 0600, instead of showing it.",
    )(function)


@client.command()
@click.argument("client_id", type=name, required=False, metavar="[ID]")
@click.option("--name", "called", default="", metavar="TEXT", help="For people.")
@_secret_file
@served
def add(call: Invocation, client_id: str | None, called: str, secret_file: Path | None) -> None:
    """Make a client, and show its secret: now or never. Without an ID it gets a GUID."""
    if secret_file is not None and secret_file.exists():
        raise Rejected(f"{str(secret_file)!r} exists already and is not overwritten: give another --secret-file")
    _must_have_room(secret_file)
    made = call.api.post("access", "clients", body={"id": client_id or "", "name": called})
    _tell_secret(call, made, secret_file, "made")
    if not call.screen.as_json:
        use = f"forewarn access grant Reader --to {made['id']} --everything"
        call.screen.hints([(use, "it may do nothing before a role is granted")])


@client.command()
@click.argument("client_id", type=name, metavar="ID", shell_complete=client_ids)
@_secret_file
@served
def renew(call: Invocation, client_id: str, secret_file: Path | None) -> None:
    """Give a client another secret; the old one counts no longer."""
    _must_have_room(secret_file)
    kept = secret_file or _kept_here(call, client_id)
    made = call.api.post("access", "clients", client_id, "secret")
    _tell_secret(call, made, kept, "given another secret")


@client.command()
@click.argument("client_id", type=name, metavar="ID", shell_complete=client_ids)
@served
def remove(call: Invocation, client_id: str) -> None:
    """Remove a client, and what was granted to it."""
    gone = call.api.delete("access", "clients", client_id)
    if call.screen.as_json:
        call.screen.document(gone)
    else:
        lost = f", and {counted(len(gone['grants']), 'grant')} with it" if gone["grants"] else ""
        call.screen.say(f"Client {gone['id']} is removed{lost}.")


def _kept_here(call: Invocation, client_id: str) -> Path | None:
    """The file in which `forewarn env` and others look for this client's secret, which must not go stale."""
    if call.elsewhere is not None:
        return None
    console = call.api.get("service").get("console") or {}
    path = Path(console.get("admin_secret") or "")
    return path if client_id.casefold() == console.get("client_id") and path.is_file() else None


def _must_have_room(secret_file: Path | None) -> None:
    """Before there is a secret that could be lost."""
    if secret_file is not None and not secret_file.absolute().parent.is_dir():
        raise Rejected(f"{str(secret_file)!r} lies in no directory that there is: make it, or give another file")


def _tell_secret(call: Invocation, made: View, secret_file: Path | None, what: str) -> None:
    view = dict(made)
    if secret_file is not None:
        write_private(secret_file, f"{view.pop('secret')}\n")
        view["secret_file"] = str(secret_file.absolute())
    if call.screen.as_json:
        call.screen.document(view)
        return
    call.screen.say(f"Client {view['id']} is {what}.")
    shown = ("its secret", strong(view["secret"])) if secret_file is None else ("its secret is in", str(secret_file))
    call.screen.facts([shown])
    if secret_file is None:
        call.screen.say(faint("  Keep it now: nobody can show it again."))
