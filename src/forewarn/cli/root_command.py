"""The root of the command line: which module holds which command, and the exit code of each error.

0    done
1    the awaited operation failed, or the service failed
2    bad input, or the service refused
3    no service answers, or it is unavailable now; `crash-test`: it is unknown whether work is lost
4    `serve`: another control node has taken over, so this process must be started again
130  interrupted
"""

from __future__ import annotations

import ast
import difflib
import errno
import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

import click

from forewarn import __version__
from forewarn.cli.api_client import ServiceFailure, error_code
from forewarn.cli.invocation import Invocation, data_option, json_option, remote_options
from forewarn.cli.output import Output, discard_unwritable_output
from forewarn.errors import ForewarnError, InvalidFile, Unavailable

# Examples for the help of each command, except for commands with examples in their own help text.

_EXAMPLES = {
    "serve": ("serve --config /etc/forewarn/service.toml", "serve --hypervisor simulated --listen 169.254.169.254:80"),
    "node": ("node run --bus nats://10.0.0.1:4222 --host h7 --config node.toml",),
    "sockets": ("sockets --config /etc/forewarn/service.toml",),
    "network": ("network plan --libvirt qemu:///system", "network apply --tap web-0=tap-web0 --tap web-1=tap-web1"),
    "network apply": (
        "network apply --tap web-0=tap-web0 --tap web-1=tap-web1",
        "network apply --port web-0=vnet3,mac=52:54:00:00:00:01,ip=10.0.0.11",
        "network apply --libvirt qemu:///system --follow",
    ),
    "network check": ("network check --file interfaces.toml",),
    "network plan": ("network plan --libvirt qemu:///system", "network plan --file interfaces.toml --listeners"),
    "network remove": ("network remove",),
    "portal": ("portal", "portal --open"),
    "clock": ("clock show", "clock advance 15m"),
    "clock advance": ("clock advance 15m", "clock advance 25h --without-polls"),
    "clock show": ("clock show",),
    "clock speed": ("clock speed 60",),
    "backup": ("backup forewarn-backup.db",),
    "restore": ("restore forewarn-backup.db",),
    "doctor": ("doctor", "doctor --json"),
    "fleet": ("fleet show", "fleet add web-3 --location westeurope", "fleet apply fleet.toml"),
    "fleet add": ("fleet add web-3 --location westeurope", "fleet add batch-1 --location westeurope --spot"),
    "fleet add-host": ("fleet add-host host-9 --location westeurope --zone 1",),
    "fleet apply": ("fleet apply fleet.toml --dry-run", "fleet apply fleet.toml --yes"),
    "fleet check": ("fleet check fleet.toml",),
    "fleet import": ("fleet import libvirt qemu:///system",),
    "fleet import libvirt": (
        "fleet import libvirt kvm-a=qemu+ssh://kvm-a/system kvm-b=qemu+ssh://kvm-b/system",
        "fleet import libvirt qemu:///system --watch",
    ),
    "fleet remove": ("fleet remove web-3",),
    "fleet remove-host": ("fleet remove-host host-9",),
    "fleet show": ("fleet show", "fleet show web-0", "fleet show --host host-1 --json"),
    "lab": ("lab vms", "lab down"),
    "lab down": ("lab down",),
    "vm": ("vm run web-0 -- forewarn guest watch", "vm shell web-0"),
    "vm list": ("vm list",),
    "vm shell": ("vm shell web-0",),
    "degrade": ("degrade host-1 --in 7d", "degrade host-1 --in 2h --dry-run"),
    "fail": ("fail host-1 --dry-run", "fail host-1 --wait"),
    "confirm-down": ("confirm-down host-1",),
    "repair": ("repair host-1",),
    "restart": ("restart web-0", "restart web-0 web-1 --notice 20m --wait"),
    "redeploy": ("redeploy web-0", "redeploy web-0 --dry-run"),
    "evict": ("evict batch-1", "evict batch-1 --notice 5s --short-notice"),
    "delete": ("delete web-3", "delete batch_1 --scale-in"),
    "power": ("power web-0 off", "power web-0 web-1 start --wait"),
    "perform-maintenance": ("perform-maintenance web-0",),
    "rollout": ("rollout start --scope db --impact update", "rollout list"),
    "rollout abort": ("rollout abort 6a9c88d6",),
    "budget": ("budget set all --at-most 10%", "budget list"),
    "budget list": ("budget list",),
    "budget remove": ("budget remove web",),
    "budget set": ("budget set shop --at-most 1 --tag team=shop", "budget set regions --at-most 5% --per location"),
    "rollout standing": ("rollout standing set --within 30d", "rollout standing show"),
    "rollout standing remove": ("rollout standing remove",),
    "rollout standing set": (
        "rollout standing set --within 30d --at-once 2 --window 'sat,sun 02:00 4h Europe/Berlin'",
    ),
    "rollout standing show": ("rollout standing show",),
    "rollout hold": ("rollout hold --reason 'an incident in westeurope'",),
    "rollout lift-hold": ("rollout lift-hold",),
    "rollout pause": ("rollout pause 6a9c88d6",),
    "rollout resume": ("rollout resume 6a9c88d6",),
    "rollout list": ("rollout list",),
    "rollout show": ("rollout show 6a9c88d6", "rollout show 6a9c88d6 --watch"),
    "rollout check": ("rollout check rollout.toml",),
    "rollout checks": ("rollout checks 6a9c88d6", "rollout checks 6a9c88d6 --limit 100"),
    "rollout plan": ("rollout plan rollout.toml", "rollout plan --everything --canary tag=canary --settle 1h"),
    "rollout start": (
        "rollout start --scope db --impact update",
        "rollout start --all-hosts --impact reboot --max-failures 3 --wait",
        "rollout start --all-hosts --window 'sat,sun 02:00 4h Europe/Berlin' --dry-run",
        "rollout start --host host-1 --impact migrate --dry-run",
        "rollout start --everything --canary 2 --shares 10,50 --settle 10m",
        "rollout start --file rollout.toml",
    ),
    "events": ("events", "events --watch", "events --all --vm web-0 --json"),
    "approve": ("approve 00E2639F", "approve --vm web-0", "approve --rollout 6a9c88d6"),
    "withdraw": ("withdraw 00E2639F --reason 'not tonight'", "withdraw --host host-1"),
    "history": ("history", "history --vm web-0 --limit 20", "history --watch"),
    "history prune": ("history prune --older-than 30d",),
    "explain": ("explain web-0", "explain 00E2639F", "explain host-1"),
    "record": ("record --out events.jsonl", "record --out events.jsonl --for 2h --endpoint http://127.0.0.1:8254"),
    "replay": ("replay events.jsonl --vm web-0", "replay events.jsonl --vm web-0 --speed 60 --no-wait"),
    "replays": ("replays",),
    "fault": ("fault set stale age=30s --vm web-0", "fault list", "fault clear --all"),
    "fault clear": ("fault clear f3", "fault clear --kind stale", "fault clear --all"),
    "fault list": ("fault list", "fault list --kinds"),
    "fault set": ("fault set stale age=30s --vm web-0 --count 3", "fault set gone --scope db --for 1m"),
    "fault storm": ("fault storm --seed 7 --vm web-0 --for 2m",),
    "webhook": ("webhook add https://example.org/hook", "webhook list"),
    "webhook add": ("webhook add https://example.org/hook", "webhook add https://example.org/hook --status started"),
    "webhook list": ("webhook list",),
    "webhook remove": ("webhook remove 5d0f",),
    "webhook test": ("webhook test 5d0f",),
    "access": ("access show", "access grant Operator --to ci --over-group lab"),
    "access client": ("access client add ci",),
    "access client add": ("access client add ci --name 'CI of team blue'",),
    "access client remove": ("access client remove ci",),
    "access client renew": ("access client renew ci",),
    "access grant": ("access grant Operator --to ci --over-group lab", "access grant Reader --to ci --everything"),
    "access revoke": ("access revoke 7f21",),
    "access show": ("access show",),
    "whoami": ("whoami",),
    "logout": ("logout",),
    "profiles": ("profiles",),
    "ca": ("ca",),
    "ca export": ("ca export ca.pem",),
    "guest": ("guest events", "guest approve --own"),
    "guest approve": ("guest approve --own", "guest approve 00E2639F --endpoint http://127.0.0.1:8254"),
    "guest events": ("guest events", "guest events --endpoint http://127.0.0.1:8254"),
    "guest watch": ("guest watch",),
    "agent": ("agent check agent.toml", "agent run --config agent.toml", "agent status"),
    "agent check": ("agent check agent.toml",),
    "agent explain": ("agent explain 00E2639F",),
    "agent repair": ("agent repair --config agent.toml",),
    "agent run": ("agent run --config agent.toml", "agent run --config agent.toml --dry-run"),
    "agent status": ("agent status",),
    "crash-test claims": ("crash-test claims --profile spot > handler.toml", "crash-test claims --ask"),
    "crash-test explain": ("crash-test explain notice-30s",),
    "crash-test list": ("crash-test list", "crash-test list --profile spot --json"),
    "crash-test replay": ("crash-test replay result.json --case notice-30s",),
}


def add_examples(command: click.Command, name: str) -> None:
    """Add examples from this module's table to the help of a command and of all its subcommands."""
    if lines := _EXAMPLES.get(name):
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  forewarn {line}" for line in lines)
    if isinstance(command, click.Group):
        for subcommand, each in command.commands.items():
            add_examples(each, f"{name} {subcommand}")


HELP_SECTIONS = {
    "The service": {
        "up": "service",
        "down": "background",
        "status": "background",
        "reset": "background",
        "lab": "lab",
        "serve": "service",
        "sockets": "service",
        "network": "network",
        "portal": "login",
        "clock": "clock",
        "backup": "backup",
        "restore": "backup",
        "doctor": "service",
    },
    "The fleet": {
        "fleet": "fleet",
        "vm": "vm",
        "degrade": "host",
        "fail": "host",
        "confirm-down": "host",
        "repair": "host",
    },
    "Maintenance": {
        "restart": "request",
        "redeploy": "request",
        "evict": "request",
        "delete": "request",
        "power": "request",
        "perform-maintenance": "request",
        "rollout": "rollout",
        "budget": "budget",
    },
    "Events": {
        "events": "event",
        "approve": "event",
        "withdraw": "event",
        "history": "history",
        "explain": "history",
    },
    "Record and replay": {"record": "record", "replay": "replay", "replays": "replay"},
    "Faults": {"fault": "fault"},
    "Webhooks": {"webhook": "webhook"},
    "Cluster": {"cluster": "cluster", "node": "node", "store": "store"},
    "Access": {
        "access": "access",
        "whoami": "login",
        "login": "login",
        "logout": "login",
        "profiles": "login",
        "ca": "ca",
    },
    "Inside a VM": {"guest": "guest", "agent": "agent"},
    "Test a handler": {"crash-test": "crash_test"},
    "Shell": {"env": "env", "completion": "completion"},
}
# Words of other tools, and the command that does what they mean.
_COMMANDS_BY_GUESS = {
    "reboot": "restart VM",
    "migrate": "rollout start --impact migrate --host HOST",
    "drain": "rollout start --impact migrate --host HOST",
    "cordon": "degrade HOST",
    "freeze": "rollout start --impact update --host HOST",
    "update": "rollout start --impact update --host HOST",
    "preempt": "evict VM",
    "terminate": "delete VM",
    "remove": "delete VM",
    "rm": "delete VM",
    "start": "up",
    "run": "up",
    "stop": "down",
    "shutdown": "down",
    "poweroff": "power VM off",
    "deallocate": "power VM deallocate",
    "ps": "status",
    "info": "status",
    "list": "fleet show",
    "ls": "fleet show",
    "vms": "fleet show",
    "hosts": "fleet show",
    "watch": "events --watch",
    "logs": "history",
    "log": "history",
    "why": "explain VM",
    "describe": "explain VM",
    "ack": "approve EVENT",
    "acknowledge": "approve EVENT",
    "cancel": "withdraw EVENT",
    "advance": "clock advance DURATION",
    "time": "clock show",
    "ui": "portal",
    "dashboard": "portal",
    "test": "crash-test -- HANDLER",
}
_COMMAND_MODULES = {name: module for section in HELP_SECTIONS.values() for name, module in section.items()}


def _short_help(command: str, module: str) -> str:
    # Read off the source: to import the modules of all commands for the list of them takes half a second.
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    name = command.replace("-", "_")
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return click.Command(command, help=ast.get_docstring(function)).get_short_help_str(70)


class _RootCommand(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMAND_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module_name = _COMMAND_MODULES.get(cmd_name)
        if module_name is None:
            return None
        module = importlib.import_module(f"forewarn.cli.{module_name}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        add_examples(command, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, modules in HELP_SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, _short_help(name, module)) for name, module in modules.items()])

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        kwargs["standalone_mode"] = False
        call = kwargs["obj"] = Invocation()
        # Usage errors are raised before the option callbacks run, and they too must respect --json.
        call.as_json = "--json" in _arguments_before_separator(kwargs.get("args"))
        try:
            code = super().main(*args, **kwargs)
            sys.stdout.flush()
        except click.exceptions.Exit as exit_:
            code = exit_.exit_code
        except click.Abort:
            code = 130
        except click.ClickException as error:
            code = _print_usage_error(error, call.output, _arguments_before_separator(kwargs.get("args")))
        except ForewarnError as error:
            code = _print_error(error, call.output)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            call.output.print_error("the answer could not be written, the disk is full: free some space and try again")
            code = 1
        discard_unwritable_output()
        sys.exit(code if isinstance(code, int) else 0)


def _arguments_before_separator(args: Sequence[str] | None) -> Iterator[str]:
    return takewhile(lambda argument: argument != "--", sys.argv[1:] if args is None else args)


# Raised for a group without a subcommand; click before 8.2 prints the help itself.
_NO_ARGUMENTS_ERROR = getattr(click.exceptions, "NoArgsIsHelpError", ())


def _print_usage_error(error: click.ClickException, output: Output, arguments: Iterable[str]) -> int:
    if isinstance(error, _NO_ARGUMENTS_ERROR) and not output.as_json:
        click.echo(error.format_message(), err=True)  # the help text: a hint to --help would be redundant
        return 2
    message = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and error.option_name[1:2].isdigit():
        typed = next((word for word in arguments if word.startswith(error.option_name)), error.option_name)
        output.print_error(
            f"{typed} is negative, and numbers and durations here never are (a clock only moves forward): "
            "leave out the minus sign",
            code="Rejected",
        )
        return 2
    if isinstance(error, click.UsageError) and error.ctx is not None:
        message += _similar_command_hint(message, error.ctx)
        message += f"{' See' if message.endswith('?') else '; see'} `{error.ctx.command_path} --help`"
    output.print_error(message, code="Rejected")
    return 2


def _similar_command_hint(message: str, ctx: click.Context) -> str:
    if not message.startswith("No such command") or not isinstance(ctx.command, _RootCommand):
        return ""
    typed = message.split("'")[1]
    if meant := _COMMANDS_BY_GUESS.get(typed.lower()):
        return f". Did you mean `forewarn {meant}`?"
    close = difflib.get_close_matches(typed, ctx.command.list_commands(ctx), n=1)
    return f". Did you mean {close[0]!r}?" if close and not message.endswith("?") else ""


def _print_error(error: ForewarnError, output: Output) -> int:
    if output.as_json:
        problems = [asdict(each) for each in error.problems] if isinstance(error, InvalidFile) else []
        output.print_error(error, code=error_code(error), problems=problems)
    else:
        for line in error.sentences() if isinstance(error, InvalidFile) else [error]:
            output.print_error(line)
    if isinstance(error, Unavailable):
        return 3
    return 1 if isinstance(error, ServiceFailure) else 2


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    click.echo(f"forewarn {__version__}")
    ctx.exit()


@click.group(
    cls=_RootCommand,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExamples:\n  forewarn up --detach --wait-ready\n  forewarn restart web-0\n  forewarn explain web-0",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
@data_option
@remote_options
@json_option
@click.pass_context
def forewarn(ctx: click.Context) -> None:
    """Advance notice of maintenance for virtual machines.

    Start a lab with `forewarn up`, then in another terminal try `forewarn fleet show`,
    `forewarn restart VM` and `forewarn events --watch`.
    """
    ctx.ensure_object(Invocation)
