"""`forewarn cluster`: makes the secrets of a cluster, and the configuration of NATS."""

from __future__ import annotations

from pathlib import Path

import click

from forewarn.base.clock import read_real_time
from forewarn.cli.invocation import Invocation, local_command, require_server_extra


@click.group()
def cluster() -> None:
    """Prepare a cluster of several control nodes.

    \b
    forewarn cluster init /etc/forewarn/secrets
    """


@cluster.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Let the node of this host use NATS; repeatable.")
@local_command
def init(call: Invocation, directory: Path, hosts: tuple[str, ...]) -> None:
    """Make the secrets of a new cluster in DIR, a new directory.

    Copy DIR to every control node, readable by its user only, and name it with --secrets. For the NATS servers it has
    nats.conf.

    \b
    forewarn cluster init /etc/forewarn/secrets --host h1 --host h2
    """
    with require_server_extra("cluster init"):
        from forewarn.cluster.nats_config import CONTROL_CREDENTIALS_FILE, NATS_CONFIG_FILE, host_credentials_path
        from forewarn.service.cluster_secrets import create_cluster_secrets
    files = create_cluster_secrets(directory, read_real_time(), hosts)
    made = {
        "directory": str(directory),
        "ca": str(files.authority / "ca.pem"),
        "token_key": str(files.token_key),
        "admin_secret": str(files.admin_secret),
        "nats": str(directory / NATS_CONFIG_FILE),
        "nats_credentials": str(directory / CONTROL_CREDENTIALS_FILE),
    }
    of_hosts = {host: str(host_credentials_path(directory, host)) for host in hosts}
    if call.output.as_json:
        call.output.print_json({**made, "hosts": of_hosts})
        return
    call.output.print_facts(
        [
            ("secrets", str(directory)),
            ("CA", made["ca"]),
            ("administrator", made["admin_secret"]),
            ("NATS", made["nats"]),
            ("control nodes", made["nats_credentials"]),
            *((f"host {host}", path) for host, path in of_hosts.items()),
        ]
    )
    call.output.print_hints([("forewarn serve --secrets DIR …", "on each control node, with a copy of this directory")])


@cluster.command("add-host")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("hosts", metavar="HOST...", nargs=-1, required=True)
@local_command
def add_host(call: Invocation, directory: Path, hosts: tuple[str, ...]) -> None:
    """Let the nodes of more hosts use NATS.

    Makes their credentials, and writes nats.conf in DIR anew, with the hosts of earlier calls: changes by hand are
    lost. Let the NATS servers read nats.conf again then, and give each host its own credentials file.

    \b
    forewarn cluster add-host /etc/forewarn/secrets h7
    """
    with require_server_extra("cluster add-host"):
        from forewarn.cluster.nats_config import host_credentials_path, write_nats_config
    write_nats_config(directory, hosts)
    made = {host: str(host_credentials_path(directory, host)) for host in hosts}
    if call.output.as_json:
        call.output.print_json({"hosts": made})
        return
    call.output.print_facts([(f"host {host}", path) for host, path in made.items()])
