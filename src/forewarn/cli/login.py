"""Commands for signing in: profiles for remote services, `whoami`, and a one-time link to the portal."""

from __future__ import annotations

import html
import os
import sys
import tempfile
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit

import click

from forewarn.cli.api_client import ApiClient, JsonObject
from forewarn.cli.credentials import (
    DEFAULT_PROFILE,
    Profile,
    parse_secret,
    read_secret_file,
    require_printable,
    require_profile_name,
)
from forewarn.cli.invocation import Invocation, profile_command, service_command
from forewarn.cli.output import Cell, Output, bold, describe_resource, dim, join_text
from forewarn.cli.service_address import RemoteSelection, parse_server_url
from forewarn.cli.transport import RemoteTransport
from forewarn.errors import Rejected, Unavailable


@click.command()
@click.option("--client-id", required=True, metavar="ID", help="Sign in as this client.")
@click.option(
    "--secret-file", type=click.Path(path_type=Path), metavar="FILE", help="Read the secret from this file, mode 0600."
)
@click.option("--ca", type=click.Path(path_type=Path), metavar="FILE", help="Trust this CA.  [env: FOREWARN_CA]")
@click.option("--issuer", default="", metavar="URL", help="Get tokens from this issuer, not the server's own.")
@click.option("--scope", default="", metavar="SCOPE", help="Request this token scope, not the server's own.")
@profile_command
def login(call: Invocation, client_id: str, secret_file: Path | None, ca: Path | None, issuer: str, scope: str) -> None:
    """Sign in to a remote service, and save a profile.

    \b
    forewarn login --server https://vmhost.example.org:8443 --ca ca.pem --client-id ci --profile lab
    forewarn --profile lab events

    Without --secret-file the command prompts for the secret, or reads it from standard input, and saves it.
    """
    name = require_profile_name(call.remote_selection.profile or DEFAULT_PROFILE)
    if not call.remote_selection.server:
        raise Rejected("no server is given: give its URL with --server https://HOST:PORT")
    profile = Profile(
        server=str(parse_server_url(call.remote_selection.server)),
        client_id=require_printable(client_id, "client id"),
        secret="" if secret_file else _prompt_for_secret(client_id),
        secret_file=_absolute_path(secret_file),
        ca=_absolute_path(ca) or _absolute_path(os.environ.get("FOREWARN_CA")),
        issuer=issuer,
        scope=scope,
    )
    me = _try_profile(profile)
    before = call.profiles.read_all().get(name)
    call.profiles.save(name, profile)
    call.given_server, call.given_profile = "", name  # the hints show commands with --profile
    _print_signed_in(call.output, name, profile, me)
    if before is not None and before.server != profile.server:
        call.output.print_note(f"profile {name} was for {before.server} before")


def _absolute_path(path: Path | str | None) -> str:
    return str(Path(path).expanduser().absolute()) if path else ""


def _prompt_for_secret(client_id: str) -> str:
    """The secret, from the terminal or standard input; not an argument, which other users could see."""
    if sys.stdin.isatty():
        return parse_secret(click.prompt(f"Secret of {client_id}", hide_input=True, err=True), "the input")
    try:
        return parse_secret(sys.stdin.buffer.read().decode(), "standard input")
    except UnicodeDecodeError:
        raise Rejected("standard input is not text: write the secret to it, or use --secret-file") from None


def _try_profile(profile: Profile) -> JsonObject:
    if profile.secret_file:
        read_secret_file(Path(profile.secret_file))
    return ApiClient(RemoteTransport(profile)).get("access", "me")


def _print_signed_in(output: Output, name: str, profile: Profile, me: JsonObject) -> None:
    if output.as_json:
        output.print_json({"profile": name, "server": profile.server, **me})
        return
    output.print_line(f"Signed in to {profile.server} as {me['name']}; saved as profile {name}.")
    if not me["grants"]:
        output.print_line(dim("It has no role there yet: grant one with `forewarn access grant`."))
    output.print_hints(
        [
            ("forewarn fleet show", "show its hosts and VMs"),
            (f"export FOREWARN_PROFILE={name}", "use it for all commands of this shell"),
        ]
    )


@click.command()
@profile_command
def logout(call: Invocation) -> None:
    """Delete a profile, and the secret in it.

    The secret stays valid on the server; `forewarn access client renew` there replaces it.
    """
    name = call.remote_selection.profile or DEFAULT_PROFILE
    removed = call.profiles.remove(name)
    if call.output.as_json:
        call.output.print_json({"profile": name, "server": removed.server})
    else:
        call.output.print_line(f"Profile {name}, for {removed.server}, is deleted.")


@click.command()
@profile_command
def profiles(call: Invocation) -> None:
    """Show the profiles that `forewarn login` saved."""
    known = call.profiles.read_all()
    used = {name for name in known if _is_selected(call.remote_selection, name, known[name])}
    if call.output.as_json:
        call.output.print_json({"profiles": [_profile_document(name, known[name], name in used) for name in known]})
    elif known:
        rows = [_profile_row(name, known[name], name in used) for name in known]
        call.output.print_table(("profile", "server", "client", "secret", "used"), rows)
        if not used:
            call.output.print_line(dim("None is in use: choose one with --profile or FOREWARN_PROFILE."))
    else:
        call.output.print_line("There are no profiles. Create one with `forewarn login --server URL --client-id ID`.")


def _is_selected(selection: RemoteSelection, name: str, profile: Profile) -> bool:
    if selection.profile:
        return selection.profile == name
    return bool(selection.server) and str(parse_server_url(selection.server)) == profile.server


def _profile_document(name: str, profile: Profile, is_used: bool) -> JsonObject:
    facts = {"server": profile.server, "client_id": profile.client_id, "ca": profile.ca or None}
    return {"name": name, **facts, "secret_file": profile.secret_file or None, "used": is_used}


def _profile_row(name: str, profile: Profile, is_used: bool) -> tuple[Cell, ...]:
    secret = profile.secret_file or "stored"
    return bold(name), profile.server, profile.client_id, secret, "yes" if is_used else ""


@click.command()
@service_command
def whoami(call: Invocation) -> None:
    """Show which service answers, and your identity there."""
    me = call.api.get("access", "me")
    service = str(call.data) if call.remote_profile is None else call.remote_profile.server
    if call.output.as_json:
        call.output.print_json({"service": service, **me})
        return
    call.output.print_line(bold(me["name"]))
    roles = [("role", f"{grant['role']} over {describe_resource(grant['resource'])}") for grant in me["grants"]]
    call.output.print_facts([("service", service), ("id", me["id"]), *(roles or [("role", "none")])])


_REDIRECT_PAGE = '<!doctype html><title>forewarn</title><meta http-equiv="refresh" content="0; url={url}">\n'


@click.command()
@click.option("--open", "in_browser", is_flag=True, help="Open it in a browser.")
@service_command
def portal(call: Invocation, in_browser: bool) -> None:
    """Print a link that signs you in to the portal once."""
    link = _with_reachable_url(call, call.api.post("access", "links"))
    if call.output.as_json:
        call.output.print_json(link)
    else:
        call.output.print_labelled(join_text(), link["url"])
        if call.output.is_terminal:
            call.output.print_line(dim(f"It signs in {link['user']}, once, within 15 minutes."))
    if in_browser:
        _open_in_browser(link["url"])


def _with_reachable_url(call: Invocation, link: JsonObject) -> JsonObject:
    """The link with the address that reached a remote service, which may know itself by another name."""
    if call.remote_profile is None:
        return link
    return {**link, "url": f"{call.remote_profile.server}{urlsplit(link['url']).path}"}


def _open_in_browser(url: str) -> None:
    """Open the URL through a private file: other users could read it among the browser's arguments."""
    handle, name = tempfile.mkstemp(prefix="forewarn-portal-", suffix=".html")  # mode 0600
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(_REDIRECT_PAGE.format(url=html.escape(url)))
    if not webbrowser.open(Path(name).as_uri()):
        raise Unavailable("no browser could be started: open the link yourself")
