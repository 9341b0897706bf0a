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
    """Show the health checks of a rollout and what they found."""
    view = call.api.get("rollouts", rollout_id, "checks")
    if call.output.as_json:
        call.output.print_json(view)
        return
    if not view["checks"]:
        call.output.print_line("This rollout has no health checks.")
        return
    if view["progress"] == "paused" and view["reason"]:
        call.output.print_line(bold("It has paused itself: "), view["reason"], ".")
    if view["unclear"]:
        call.output.print_line(bold("It publishes nothing for now: "), view["unclear"], ".")
    now = call.api.now()
    call.output.print_table(
        ("check", "demands", "now", "seen"),
        [
            [check["name"], check["demand"], state_text(check["outcome"] or "not measured"), check["text"]]
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
    """
    view = call.api.post("rollouts", "check", body={"file": read_rollout_text(file)})
    if call.output.as_json:
        call.output.print_json(view)
    else:
        call.output.print_table(
            ("check", "demands", "now", "seen"),
            [[c["name"], c["demand"], state_text(c["outcome"]), c["text"]] for c in view["checks"]],
        )
    return 0 if all(c["outcome"] == "good" for c in view["checks"]) else 1
