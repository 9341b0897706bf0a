"""Commands about the health checks of rollouts: `rollout checks` and `rollout check`."""

from __future__ import annotations

import click

from forewarn.cli.formatting import describe_time
from forewarn.cli.invocation import Invocation, service_command
from forewarn.cli.output import bold, state_text
from forewarn.cli.rollout import rollout, rollout_argument
from forewarn.cli.rollout_start import read_rollout_text


@rollout.command("checks")
@rollout_argument
@click.option("--limit", type=click.IntRange(1, 500), default=20, metavar="N", help="Show at most N measurements.")
@service_command
def checks(call: Invocation, rollout_id: str, limit: int) -> None:
    """Show the health checks of a rollout and what they found.

    \f
    `rollout_id` is its id or a unique beginning of it. Prints two tables: the checks with their latest outcome, then
    the newest `limit` measurements, oldest first; or a sentence if it has no checks. With --json it prints all that the
    service shows: the newest 500 measurements. Measures nothing. Raises NotFound, or Refused if several ids begin with
    it.
    """
    view = call.api.get("rollouts", rollout_id, "checks")
    if call.output.as_json:
        call.output.print_json(view)
        return
    if not view["checks"]:
        call.output.print_line("This rollout has no health checks.")
        return
    if view["progress"] == "paused" and view["why"]:
        call.output.print_line(bold("It has paused itself: "), view["why"], ".")
    if view["unclear"]:
        call.output.print_line(bold("It publishes nothing for now: "), view["unclear"], ".")
    now = call.api.now()
    call.output.print_table(
        ("check", "demands", "now", "seen"),
        [
            [check["name"], check["what"], state_text(check["outcome"] or "not measured"), check["text"]]
            for check in view["checks"]
        ],
    )
    call.output.print_line()
    call.output.print_table(
        ("measured", "wave", "check", "outcome", "seen"),
        [
            [describe_time(m["at"], now), str(m["wave"]), m["check"], state_text(m["outcome"]), m["text"]]
            for m in view["measurements"][-limit:]
        ],
    )


@rollout.command("check")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))
@service_command
def check(call: Invocation, file: str) -> int:
    """Try each health check of a rollout file once.

    The rollout is not started.

    \f
    `file` is the path of a rollout file. The service performs the checks, which really call their addresses and run
    their commands, and stores nothing. Prints a table: each check, what it demands, its outcome and what was seen.
    Returns the exit code: 1 if one of them is not good, else 0. Raises Rejected for a file that cannot be read or used,
    or has no checks.
    """
    view = call.api.post("rollouts", "check", body={"file": read_rollout_text(file)})
    if call.output.as_json:
        call.output.print_json(view)
    else:
        call.output.print_table(
            ("check", "demands", "now", "seen"),
            [[c["name"], c["what"], state_text(c["outcome"]), c["text"]] for c in view["checks"]],
        )
    return 0 if all(c["outcome"] == "good" for c in view["checks"]) else 1
