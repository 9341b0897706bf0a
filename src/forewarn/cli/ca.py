"""Shows and exports the service's certificate authority.

It is read from the data directory, whether or not a service runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from forewarn.base.times import time_text
from forewarn.cli.invocation import Invocation, local_command, require_server_extra
from forewarn.cli.output import local_time
from forewarn.errors import NotFound, Rejected

_STDOUT = "-"


@click.group(invoke_without_command=True)
@local_command
def ca(call: Invocation) -> None:
    """Show the CA of the service's HTTPS certificate, or export it."""
    if click.get_current_context().invoked_subcommand is not None:
        return
    _read_ca(call)
    with require_server_extra("ca"):
        from forewarn.auth.pem import certificate_facts, read_certificate

    authority = certificate_facts(read_certificate(ca_file(call.data)))
    server = call.data / "tls" / "server.pem"
    names = certificate_facts(read_certificate(server)).names if server.exists() else ()
    if call.output.as_json:
        facts: dict[str, Any] = {"fingerprint": authority.fingerprint, "not_after": time_text(authority.not_after)}
        call.output.print_json({"path": str(ca_file(call.data)), **facts, "names": list(names)})
        return
    call.output.print_facts(
        [
            ("CA", str(ca_file(call.data))),
            ("SHA-256", authority.fingerprint),
            ("valid until", f"{local_time(authority.not_after):%Y-%m-%d}"),
            ("certificate for", ", ".join(names) or "no name yet"),
        ]
    )
    call.output.print_hints([("forewarn ca export ca.pem", "export it for a machine that shall trust it")])


@ca.command()
@click.argument("file", default=_STDOUT, metavar="[FILE]")
@local_command
def export(call: Invocation, file: str) -> None:
    """Write the CA's certificate to a file, or to standard output."""
    pem = _read_ca(call)
    if file != _STDOUT:
        _write_ca(Path(file).expanduser(), pem)
    if call.output.as_json:
        call.output.print_json({"file": None if file == _STDOUT else file, "pem": pem})
    elif file == _STDOUT:
        click.echo(pem, nl=False)
    else:
        call.output.print_line(f"{file} holds the CA. It is not secret, but copy it over a channel you trust.")
        call.output.print_hints(
            [(f"forewarn login --server URL --ca {file} --client-id ID", "sign in from the other machine")]
        )


def ca_file(data: Path) -> Path:
    """Return the path of the CA certificate, tls/ca.pem, in a data directory; it may not exist."""
    return data / "tls" / "ca.pem"


def _read_ca(call: Invocation) -> str:
    try:
        return ca_file(call.data).read_text(encoding="ascii")
    except FileNotFoundError:
        raise NotFound(
            f"there is no CA in {call.data}: a service creates one when it first starts with the setting 'api', "
            "unless it uses your own certificate"
        ) from None
    except (OSError, ValueError) as error:
        raise Rejected(f"the CA {str(ca_file(call.data))!r} cannot be read ({error}): check the file") from error


def _write_ca(path: Path, pem: str) -> None:
    """Write the certificate; raises Rejected rather than overwrite a file with other content."""
    try:
        if path.exists() and path.read_bytes() != pem.encode():
            raise Rejected(f"{str(path)!r} exists already and is not overwritten: give another file")
        path.write_text(pem, encoding="ascii")
    except OSError as error:
        raise Rejected(f"{str(path)!r} cannot be written ({error.strerror}): give another file") from error
