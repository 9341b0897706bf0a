"""What a shell must know so that the vendor's clients talk to the service on this machine, and to nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from forewarn.cli.connection import View
from forewarn.cli.extra import server_extra
from forewarn.cli.invocation import Invocation, here
from forewarn.cli.private import read_secret
from forewarn.cli.shell import SHELLS, Shell, remark
from forewarn.cli.suggestion import vm_names
from forewarn.errors import Refused

Variables = dict[str, str]


@click.command()
@click.option("--shell", "shell_name", type=click.Choice(list(SHELLS)), default="bash", show_default=True)
@click.option("--vm", metavar="VM", shell_complete=vm_names, help="Whose managed identity to have, where allowed.")
@click.option("--with-secret", is_flag=True, help="Also what DefaultAzureCredential signs in with.")
@here
def env(call: Invocation, shell_name: str, vm: str | None, with_secret: bool) -> None:
    """Print variables for az and the vendor's other clients.

    \b
    bash, zsh   eval "$(forewarn env)"
    fish        forewarn env --shell fish | source
    powershell  forewarn env --shell powershell | Out-String | Invoke-Expression
    """
    info = call.api.get("service")
    console = info.get("console")
    if not console:
        raise Refused(f"the service {call.api.where} has no console over TLS: give it one with the setting 'console'")
    shell = SHELLS[shell_name]
    identity = _identity(call, info, vm)
    variables = {**_trust(console), **_azure(call.data, console), **_sign_in(console), **identity}
    variables |= _credentials(console) if with_secret else {}
    remarks = [*_remarks(console, shell), *(() if identity else _why_no_identity(info))]
    if call.screen.as_json:
        call.screen.document({"variables": variables, "remarks": remarks})
        return
    click.echo("\n".join(_lines(shell, variables, remarks)))


def _lines(shell: Shell, variables: Variables, remarks: list[str]) -> Iterator[str]:
    yield from (shell.variable(name, value) for name, value in variables.items())
    yield from map(remark, remarks)


def _trust(console: View) -> Variables:
    """Whom clients believe: besides those of the system, our CA; with a certificate of the user's own, as before."""
    if not console["ca"]:
        return {}
    with server_extra("env"):
        from forewarn.access.bundle import bundle

    ca = Path(console["ca"])
    both = str(bundle(ca.parent))
    return {"REQUESTS_CA_BUNDLE": both, "SSL_CERT_FILE": both, "NODE_EXTRA_CA_CERTS": str(ca)}


def _azure(data: Path, console: View) -> Variables:
    """A directory of its own for az, where no other cloud is known: a slip cannot reach the real one."""
    return {
        "AZURE_CONFIG_DIR": str(data / "azure"),
        "ARM_CLOUD_METADATA_URL": f"{console['url']}/metadata/endpoints-list",
        "AZURE_CORE_COLLECT_TELEMETRY": "0",
    }


def _sign_in(console: View) -> Variables:
    """What `az login` is given, so that nobody copies ids about; the secret itself stays in its file."""
    if console.get("issuer"):
        return {}
    return {
        "FOREWARN_TENANT_ID": console["tenant_id"],
        "FOREWARN_CLIENT_ID": console["client_id"],
        "FOREWARN_SECRET_FILE": console["admin_secret"],
    }


def _identity(call: Invocation, info: View, vm: str | None) -> Variables:
    if not info.get("identity_on_loopback"):
        if vm is not None:
            raise Refused(_NOT_ON_LOOPBACK)
        return {}
    listed = [call.api.get("vms", vm)] if vm is not None else call.api.get("fleet")["vms"]
    urls = [listed_vm["url"] for listed_vm in listed if listed_vm["url"]]
    if vm is not None and not urls:
        raise Refused(f"VM {vm!r} has no address on this machine: ask for its token from inside it")
    return {"AZURE_POD_IDENTITY_AUTHORITY_HOST": urls[0]} if urls else {}


_NOT_ON_LOOPBACK = (
    "managed identities are not given out on loopback, where any program could pose as a VM: use "
    "`forewarn vm run VM`, or start the service with the setting identity_on_loopback = true"
)


def _why_no_identity(info: View) -> list[str]:
    if not info.get("identity_on_loopback"):
        return [f"AZURE_POD_IDENTITY_AUTHORITY_HOST is not set: {_NOT_ON_LOOPBACK}"]
    return ["AZURE_POD_IDENTITY_AUTHORITY_HOST is not set: no VM has an address on this machine"]


def _credentials(console: View) -> Variables:
    if console.get("issuer"):
        raise Refused(
            f"the service takes tokens of {console['issuer']} and has no secret to give: leave --with-secret out, and "
            "sign in with a client of that issuer"
        )
    return {
        "AZURE_AUTHORITY_HOST": console["url"],
        "AZURE_TENANT_ID": "adfs",  # by this name clients ask nobody else about the authority
        "AZURE_CLIENT_ID": console["client_id"],
        "AZURE_CLIENT_SECRET": read_secret(Path(console["admin_secret"])),
    }


def _remarks(console: View, shell: Shell) -> list[str]:
    trust = [] if console["ca"] else ["The console shows a certificate of your own: its CA must be trusted already."]
    if console.get("issuer"):
        return [*trust, f"Sign in with a client of {console['issuer']}."]
    secret = shell.quote(f"@{console['admin_secret']}")
    tenant, client_id = console["tenant_id"], shell.quote(console["client_id"])
    return [*trust, f"az login --service-principal -u {client_id} -p {secret} --tenant {tenant}"]
