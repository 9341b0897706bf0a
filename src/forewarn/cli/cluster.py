"""`forewarn cluster init`: makes the secrets that the control nodes of a cluster share."""

from __future__ import annotations

from pathlib import Path

import click

from forewarn.cli.invocation import Invocation, local_command, require_server_extra
from forewarn.clock import read_real_time


@click.group()
def cluster() -> None:
    """Prepare a cluster of several control nodes.

    \b
    forewarn cluster init /etc/forewarn/secrets
    """


@cluster.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@local_command
def init(call: Invocation, directory: Path) -> None:
    """Make the secrets of a new cluster in DIR, a new directory.

    Copy DIR to every control node, readable by its user only, and name it with --secrets. They are the CA of the
    consoles, the key of access tokens, and the administrator's secret.

    \b
    forewarn cluster init /etc/forewarn/secrets

    \f
    Prints what it made. Raises Refused if the directory has files, Rejected or Unavailable if it cannot be written.
    """
    with require_server_extra("cluster init"):
        from forewarn.service.cluster_secrets import create_cluster_secrets
    files = create_cluster_secrets(directory, read_real_time())
    if call.output.as_json:
        call.output.print_json(
            {
                "directory": str(directory),
                "ca": str(files.authority / "ca.pem"),
                "token_key": str(files.token_key),
                "admin_secret": str(files.admin_secret),
            }
        )
        return
    call.output.print_facts(
        [
            ("secrets", str(directory)),
            ("CA", str(files.authority / "ca.pem")),
            ("administrator", str(files.admin_secret)),
        ]
    )
    call.output.print_hints([("forewarn serve --secrets DIR …", "on each control node, with a copy of this directory")])
