"""The service's certificate authority, which clients are told to trust: in the data directory, service or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from forewarn.cli.extra import server_extra
from forewarn.cli.instant import local
from forewarn.cli.invocation import Invocation, here
from forewarn.errors import NotFound, Rejected

_STDOUT = "-"


@click.group(invoke_without_command=True)
@here
def ca(call: Invocation) -> None:
    """Show the CA that vouches for the console, or export it."""
    if click.get_current_context().invoked_subcommand is not None:
        return
    _must_exist(call)
    with server_extra("ca"):
        from forewarn.access.pem import facts_of, read_certificate

    authority = facts_of(read_certificate(ca_file(call.data)))
    server = _server_file(call.data)
    names = facts_of(read_certificate(server)).names if server.exists() else ()
    if call.screen.as_json:
        facts: dict[str, Any] = {"fingerprint": authority.fingerprint, "not_after": authority.not_after}
        call.screen.document({"path": str(ca_file(call.data)), **facts, "names": list(names)})
        return
    call.screen.facts(
        [
            ("CA", str(ca_file(call.data))),
            ("SHA-256", authority.fingerprint),
            ("valid until", f"{local(authority.not_after):%Y-%m-%d}"),
            ("vouches for", ", ".join(names) or "nobody yet"),
        ]
    )
    call.screen.hints([("forewarn ca export ca.pem", "for the machine that is to trust it")])


@ca.command()
@click.argument("file", default=_STDOUT, metavar="[FILE]")
@here
def export(call: Invocation, file: str) -> None:
    """Write the CA's certificate to a file, or to standard output."""
    pem = _must_exist(call)
    if file != _STDOUT:
        _write(Path(file).expanduser(), pem)
    if call.screen.as_json:
        call.screen.document({"file": None if file == _STDOUT else file, "pem": pem})
    elif file == _STDOUT:
        click.echo(pem, nl=False)
    else:
        call.screen.say(f"{file} holds the CA: no secret, but take care that nobody changes it on its way.")
        call.screen.hints([(f"forewarn login --server URL --ca {file} --client-id ID", "where it was taken to")])


def ca_file(data: Path) -> Path:
    return data / "tls" / "ca.pem"


def _server_file(data: Path) -> Path:
    return data / "tls" / "server.pem"


def _must_exist(call: Invocation) -> str:
    try:
        return ca_file(call.data).read_text(encoding="ascii")
    except FileNotFoundError:
        raise NotFound(
            f"there is no CA in {call.data}: a service makes one when it first starts with the setting 'console', "
            "unless it has a certificate of your own"
        ) from None
    except (OSError, ValueError) as error:
        raise Rejected(f"the CA {str(ca_file(call.data))!r} cannot be read ({error}): see to it") from error


def _write(path: Path, pem: str) -> None:
    """A file that holds something else is left alone."""
    try:
        if path.exists() and path.read_bytes() != pem.encode():
            raise Rejected(f"{str(path)!r} exists already and is not overwritten: give another file")
        path.write_text(pem, encoding="ascii")
    except OSError as error:
        raise Rejected(f"{str(path)!r} cannot be written ({error.strerror}): give another file") from error
