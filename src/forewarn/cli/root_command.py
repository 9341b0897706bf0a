"""The root of the command: which noun lives in which file, and which exit code each error has.

0   done
1   what was waited for failed, or the service did
2   bad input, or refused
3   no service, or it is unavailable now
130 interrupted
"""

from __future__ import annotations

import difflib
import errno
import importlib
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, NoReturn

import click

from forewarn import __version__
from forewarn.cli.connection import Broken, Faulty, code_of
from forewarn.cli.invocation import Invocation, data_option, elsewhere_options, json_option
from forewarn.cli.screen import Screen, let_go_of_output
from forewarn.errors import ForewarnError, Unavailable

_SECTIONS = {
    "The service": {
        "up": "up",
        "serve": "up",
        "sockets": "sockets",
        "portal": "portal",
        "clock": "clock",
        "backup": "backup",
        "restore": "backup",
        "doctor": "doctor",
    },
    "The fleet": {"fleet": "fleet", "vm": "vm", "degrade": "host", "fail": "host", "repair": "host"},
    "Maintenance": {
        "restart": "request",
        "redeploy": "request",
        "evict": "request",
        "delete": "request",
        "power": "power",
        "perform-maintenance": "power",
        "rollout": "rollout",
    },
    "What happens": {
        "events": "event",
        "approve": "decision",
        "withdraw": "decision",
        "history": "history",
        "explain": "explain",
    },
    "Stories": {"record": "record", "replay": "replay", "replays": "replay"},
    "Bad days": {"fault": "fault"},
    "Telling others": {"webhook": "webhook"},
    "Who may": {
        "access": "access",
        "whoami": "login",
        "login": "login",
        "logout": "login",
        "profiles": "login",
        "ca": "ca",
    },
    "Inside a VM": {"guest": "guest", "agent": "agent"},
    "Shells": {"env": "env", "completion": "completion"},
}
_NOUNS = {name: noun for section in _SECTIONS.values() for name, noun in section.items()}


class Program(click.Group):
    """Loads a noun's file when it is named, and turns errors into a sentence and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        noun = _NOUNS.get(cmd_name)
        if noun is None:
            return None
        module = importlib.import_module(f"forewarn.cli.{noun}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in _SECTIONS.items():
            commands = ((name, self.get_command(ctx, name)) for name in names)
            with formatter.section(title):
                formatter.write_dl([(name, c.get_short_help_str(70)) for name, c in commands if c is not None])

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        kwargs["standalone_mode"] = False
        call = kwargs["obj"] = Invocation()
        # What is typed wrong is found before the options are taken.
        call.as_json = "--json" in _options(kwargs.get("args"))
        try:
            code = super().main(*args, **kwargs)
            sys.stdout.flush()
        except click.exceptions.Exit as exit_:
            code = exit_.exit_code
        except click.Abort:
            code = 130
        except click.ClickException as error:
            code = _tell_usage(error, call.screen)
        except ForewarnError as error:
            code = _tell(error, call.screen)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            call.screen.complain("the answer could not be written, there is no space left: make room and ask again")
            code = 1
        let_go_of_output()
        sys.exit(code if isinstance(code, int) else 0)


def _options(args: Sequence[str] | None) -> Iterator[str]:
    """What was typed up to a `--`: what follows is for somebody else."""
    return takewhile(lambda word: word != "--", sys.argv[1:] if args is None else args)


# A group by its name alone; click before 8.2 shows the help by itself.
_NOTHING_TYPED = getattr(click.exceptions, "NoArgsIsHelpError", ())


def _tell_usage(error: click.ClickException, screen: Screen) -> int:
    if isinstance(error, _NOTHING_TYPED) and not screen.as_json:
        click.echo(error.format_message(), err=True)  # the help, which needs no hint at itself
        return 2
    message = error.format_message().rstrip(".")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        message += _alike(message, error.ctx)
        message += f"{' See' if message.endswith('?') else '; see'} `{error.ctx.command_path} --help`"
    screen.complain(message, code="Rejected")
    return 2


def _alike(message: str, ctx: click.Context) -> str:
    """The command that was probably meant by one that there is not."""
    if not message.startswith("No such command") or not isinstance(ctx.command, Program):
        return ""
    typed = message.split("'")[1]
    close = difflib.get_close_matches(typed, ctx.command.list_commands(ctx), n=1)
    return f". Did you mean {close[0]!r}?" if close and not message.endswith("?") else ""


def _tell(error: ForewarnError, screen: Screen) -> int:
    if screen.as_json:
        screen.complain(error, code=code_of(error), problems=error.problems if isinstance(error, Faulty) else ())
    else:
        for line in error.lines() if isinstance(error, Faulty) else [error]:
            screen.complain(line)
    if isinstance(error, Unavailable):
        return 3
    return 1 if isinstance(error, Broken) else 2


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="forewarn", message="%(prog)s %(version)s")
@data_option
@elsewhere_options
@json_option
@click.pass_context
def forewarn(ctx: click.Context) -> None:
    """Advance notice of maintenance for virtual machines.

    Start a lab with `forewarn up`, then in another terminal try `forewarn fleet show`,
    `forewarn restart VM` and `forewarn events --watch`.
    """
    ctx.ensure_object(Invocation)
