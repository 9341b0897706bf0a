"""Services elsewhere: signing in at one, what is kept of that, and who one is there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from forewarn.cli.connection import Api, View
from forewarn.cli.invocation import Invocation, served, shown_elsewhere
from forewarn.cli.place import Named
from forewarn.cli.private import must_be_secret, read_secret
from forewarn.cli.profile import USUAL, Profile, must_be_name, must_be_text
from forewarn.cli.remote import Remote
from forewarn.cli.screen import Cell, Screen, faint, strong
from forewarn.cli.server import read_server
from forewarn.cli.wording import over
from forewarn.errors import Forbidden, Rejected


@click.command()
@click.option("--client-id", required=True, metavar="ID", help="The client to sign in as.")
@click.option("--secret-file", type=click.Path(path_type=Path), metavar="FILE", help="Where its secret is, mode 0600.")
@click.option("--ca", type=click.Path(path_type=Path), metavar="FILE", help="The server's CA.  [env: FOREWARN_CA]")
@click.option("--issuer", default="", metavar="URL", help="Who gives tokens, if not the one that the server names.")
@click.option("--scope", default="", metavar="SCOPE", help="What to ask that issuer for, if not the server.")
@shown_elsewhere
def login(call: Invocation, client_id: str, secret_file: Path | None, ca: Path | None, issuer: str, scope: str) -> None:
    """Sign in at a service elsewhere, and keep how as a profile.

    \b
    forewarn login --server https://vmhost.example.org:8443 --ca ca.pem --client-id ci --profile lab
    forewarn --profile lab events

    Without --secret-file the secret is asked for, or read from standard input, and kept in the profile.
    """
    name = must_be_name(call.named.profile or USUAL)
    if not call.named.server:
        raise Rejected("no server is named: give its URL with --server https://HOST:PORT")
    profile = Profile(
        server=str(read_server(call.named.server)),
        client_id=must_be_text(client_id, "client id"),
        secret="" if secret_file else _asked_for(client_id),
        secret_file=_whole(secret_file),
        ca=_whole(ca) or _whole(os.environ.get("FOREWARN_CA")),
        issuer=issuer,
        scope=scope,
    )
    me = _try(profile)
    before = call.profiles.all().get(name)
    call.profiles.keep(name, profile)
    call.given_server, call.given_profile = "", name  # as whoever reads the hints would go on
    _tell(call.screen, name, profile, me)
    if before is not None and before.server != profile.server:
        call.screen.note(f"profile {name} was for {before.server} until now")


def _whole(path: Path | str | None) -> str:
    return str(Path(path).expanduser().absolute()) if path else ""


def _asked_for(client_id: str) -> str:
    """Never as an argument: others can read those."""
    if sys.stdin.isatty():
        return must_be_secret(click.prompt(f"Secret of {client_id}", hide_input=True, err=True), "what was typed")
    try:
        return must_be_secret(sys.stdin.buffer.read().decode(), "standard input")
    except UnicodeDecodeError:
        raise Rejected("standard input is no text: give the secret there, or with --secret-file") from None


def _try(profile: Profile) -> View:
    """Who we are there, if the secret is right; also somebody without any role has signed in."""
    if profile.secret_file:
        read_secret(Path(profile.secret_file))
    try:
        return Api(Remote(profile)).get("access", "me")
    except Forbidden:
        return {"name": f"client {profile.client_id}", "grants": []}


def _tell(screen: Screen, name: str, profile: Profile, me: View) -> None:
    if screen.as_json:
        screen.document({"profile": name, "server": profile.server, **me})
        return
    screen.say(f"Signed in at {profile.server} as {me['name']}; kept as profile {name}.")
    if not me["grants"]:
        screen.say(faint("It has no role there yet: `forewarn access grant` gives it one."))
    screen.hints(
        [
            ("forewarn fleet show", "what there is"),
            (f"export FOREWARN_PROFILE={name}", "to mean it in this shell from now on"),
        ]
    )


@click.command()
@shown_elsewhere
def logout(call: Invocation) -> None:
    """Forget a profile, and the secret in it.

    The server is not told: `forewarn access client renew` there makes the secret worthless.
    """
    name = call.named.profile or USUAL
    gone = call.profiles.forget(name)
    if call.screen.as_json:
        call.screen.document({"profile": name, "server": gone.server})
    else:
        call.screen.say(f"Profile {name}, for {gone.server}, is forgotten.")


@click.command()
@shown_elsewhere
def profiles(call: Invocation) -> None:
    """Show the services at which `forewarn login` signed in."""
    known = call.profiles.all()
    used = {name for name in known if _is_meant(call.named, name, known[name])}
    if call.screen.as_json:
        call.screen.document({"profiles": [_document(name, known[name], name in used) for name in known]})
    elif known:
        rows = [_row(name, known[name], name in used) for name in known]
        call.screen.table(("profile", "server", "client", "secret", "used"), rows)
        if not used:
            call.screen.say(faint("None is used unless --profile or FOREWARN_PROFILE names it."))
    else:
        call.screen.say("There is no profile. `forewarn login --server URL --client-id ID` makes one.")


def _is_meant(named: Named, name: str, profile: Profile) -> bool:
    """Whether a command would use this profile now."""
    if named.profile:
        return named.profile == name
    return bool(named.server) and str(read_server(named.server)) == profile.server


def _document(name: str, profile: Profile, is_used: bool) -> View:
    facts = {"server": profile.server, "client_id": profile.client_id, "ca": profile.ca or None}
    return {"name": name, **facts, "secret_file": profile.secret_file or None, "used": is_used}


def _row(name: str, profile: Profile, is_used: bool) -> tuple[Cell, ...]:
    secret = profile.secret_file or "kept"
    return strong(name), profile.server, profile.client_id, secret, "yes" if is_used else ""


@click.command()
@served
def whoami(call: Invocation) -> None:
    """Show which service answers, and who one is there."""
    me = call.api.get("access", "me")
    service = str(call.data) if call.elsewhere is None else call.elsewhere.server
    if call.screen.as_json:
        call.screen.document({"service": service, **me})
        return
    call.screen.say(strong(me["name"]))
    roles = [("role", f"{grant['role']} over {over(grant['over'])}") for grant in me["grants"]]
    call.screen.facts([("service", service), ("id", me["id"]), *(roles or [("role", "none")])])
