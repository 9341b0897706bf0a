"""Prints the environment variables that make az and Azure's SDKs talk to the service on this machine.

Values are quoted for bash, fish or PowerShell.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from forewarn.cli.api_client import JsonObject
from forewarn.cli.completion import vm_names
from forewarn.cli.credentials import read_secret_file
from forewarn.cli.invocation import Invocation, local_command, require_server_extra
from forewarn.errors import Refused

_POWERSHELL_SINGLE_QUOTES = re.compile("['\u2018\u2019\u201a\u201b]")  # all of these end a string in PowerShell


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSyntax:
    quote: Callable[[str], str]
    assignment: str

    def variable(self, name: str, value: str) -> str:
        return self.assignment.format(name=name, value=self.quote(value))


def shell_comment(text: str) -> str:
    """In one line whatever it holds: a line break would begin a command."""
    return f"# {''.join(char if char.isprintable() else '?' for char in text)}"


def _quote_fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _quote_powershell(text: str) -> str:
    return f"'{_POWERSHELL_SINGLE_QUOTES.sub(lambda quote: quote[0] * 2, text)}'"


SHELLS = {
    "bash": ShellSyntax(quote=shlex.quote, assignment="export {name}={value}"),
    "fish": ShellSyntax(quote=_quote_fish, assignment="set -gx {name} {value}"),
    "powershell": ShellSyntax(quote=_quote_powershell, assignment="$env:{name} = {value}"),
}

EnvironmentVariables = dict[str, str]


@click.command()
@click.option("--shell", "shell_name", type=click.Choice(list(SHELLS)), default="bash", show_default=True)
@click.option("--vm", metavar="VM", shell_complete=vm_names, help="Whose managed identity to have, where allowed.")
@click.option("--with-secret", is_flag=True, help="Also what DefaultAzureCredential signs in with.")
@local_command
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
        raise Refused(
            f"the service {call.api.location} has no console over TLS: give it one with the setting 'console'"
        )
    shell = SHELLS[shell_name]
    identity = _identity_variables(call, info, vm)
    variables = {
        **_ca_variables(console),
        **_azure_variables(call.data, console),
        **_sign_in_variables(console),
        **identity,
    }
    variables |= _credential_variables(console) if with_secret else {}
    remarks = [*_remarks(console, shell), *(() if identity else _missing_identity_remarks(info))]
    if call.output.as_json:
        call.output.print_json({"variables": variables, "remarks": remarks})
        return
    click.echo("\n".join(_shell_lines(shell, variables, remarks)))


def _shell_lines(shell: ShellSyntax, variables: EnvironmentVariables, remarks: list[str]) -> Iterator[str]:
    yield from (shell.variable(name, value) for name, value in variables.items())
    yield from map(shell_comment, remarks)


def _ca_variables(console: JsonObject) -> EnvironmentVariables:
    """Whom clients believe: besides those of the system, our CA; with a certificate of the user's own, as before."""
    if not console["ca"]:
        return {}
    with require_server_extra("env"):
        from forewarn.auth.certificates import write_ca_bundle

    ca = Path(console["ca"])
    both = str(write_ca_bundle(ca.parent))
    return {"REQUESTS_CA_BUNDLE": both, "SSL_CERT_FILE": both, "NODE_EXTRA_CA_CERTS": str(ca)}


def _azure_variables(data: Path, console: JsonObject) -> EnvironmentVariables:
    """A directory of its own for az, where no other cloud is known: a slip cannot reach the real one."""
    return {
        "AZURE_CONFIG_DIR": str(data / "azure"),
        "ARM_CLOUD_METADATA_URL": f"{console['url']}/metadata/endpoints-list",
        "AZURE_CORE_COLLECT_TELEMETRY": "0",
    }


def _sign_in_variables(console: JsonObject) -> EnvironmentVariables:
    """What `az login` is given, so that nobody copies ids about; the secret itself stays in its file."""
    if console.get("issuer"):
        return {}
    return {
        "FOREWARN_TENANT_ID": console["tenant_id"],
        "FOREWARN_CLIENT_ID": console["client_id"],
        "FOREWARN_SECRET_FILE": console["admin_secret"],
    }


def _identity_variables(call: Invocation, info: JsonObject, vm: str | None) -> EnvironmentVariables:
    if not info.get("identity_on_loopback"):
        if vm is not None:
            raise Refused(_NO_IDENTITY_ON_LOOPBACK)
        return {}
    listed = [call.api.get("vms", vm)] if vm is not None else call.api.get("fleet")["vms"]
    urls = [listed_vm["url"] for listed_vm in listed if listed_vm["url"]]
    if vm is not None and not urls:
        raise Refused(f"VM {vm!r} has no address on this machine: ask for its token from inside it")
    return {"AZURE_POD_IDENTITY_AUTHORITY_HOST": urls[0]} if urls else {}


_NO_IDENTITY_ON_LOOPBACK = (
    "managed identities are not given out on loopback, where any program could pose as a VM: use "
    "`forewarn vm run VM`, or start the service with the setting identity_on_loopback = true"
)


def _missing_identity_remarks(info: JsonObject) -> list[str]:
    if not info.get("identity_on_loopback"):
        return [f"AZURE_POD_IDENTITY_AUTHORITY_HOST is not set: {_NO_IDENTITY_ON_LOOPBACK}"]
    return ["AZURE_POD_IDENTITY_AUTHORITY_HOST is not set: no VM has an address on this machine"]


def _credential_variables(console: JsonObject) -> EnvironmentVariables:
    if console.get("issuer"):
        raise Refused(
            f"the service takes tokens of {console['issuer']} and has no secret to give: leave --with-secret out, and "
            "sign in with a client of that issuer"
        )
    return {
        "AZURE_AUTHORITY_HOST": console["url"],
        "AZURE_TENANT_ID": "adfs",  # by this name clients ask nobody else about the authority
        "AZURE_CLIENT_ID": console["client_id"],
        "AZURE_CLIENT_SECRET": read_secret_file(Path(console["admin_secret"])),
    }


def _remarks(console: JsonObject, shell: ShellSyntax) -> list[str]:
    trust = [] if console["ca"] else ["The console shows a certificate of your own: its CA must be trusted already."]
    if console.get("issuer"):
        return [*trust, f"Sign in with a client of {console['issuer']}."]
    secret = shell.quote(f"@{console['admin_secret']}")
    tenant, client_id = console["tenant_id"], shell.quote(console["client_id"])
    return [*trust, f"az login --service-principal -u {client_id} -p {secret} --tenant {tenant}"]
