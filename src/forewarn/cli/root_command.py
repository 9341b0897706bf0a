"""The root of the command line: which module holds which command, and the exit code of each error.

0    done
1    the awaited operation failed, or the service failed
2    bad input, or the service refused
3    no service answers, or it is unavailable now; `crash-test`: it is unknown whether work is lost
4    `serve`: another control node has taken over, so this process must be started again
130  interrupted
"""

from __future__ import annotations

import difflib
import errno
import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NoReturn

import click

from forewarn import __version__
from forewarn.cli.api_client import InvalidFile, ServiceFailure, error_code
from forewarn.cli.examples import add_examples
from forewarn.cli.invocation import Invocation, data_option, json_option, remote_options
from forewarn.cli.output import Output, discard_unwritable_output
from forewarn.errors import ForewarnError, Unavailable

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
        "rollout": "rollout_checks",
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
        for title, names in HELP_SECTIONS.items():
            commands = ((name, self.get_command(ctx, name)) for name in names)
            with formatter.section(title):
                formatter.write_dl([(name, c.get_short_help_str(70)) for name, c in commands if c is not None])

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
        output.print_error(
            error, code=error_code(error), problems=error.problems if isinstance(error, InvalidFile) else ()
        )
    else:
        for line in error.problem_lines() if isinstance(error, InvalidFile) else [error]:
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
