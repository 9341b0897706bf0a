"""`forewarn crash-test`: runs a handler through what goes wrong in production, and grades it."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.invocation import Invocation, json_option, require_server_extra
from forewarn.errors import Rejected

if TYPE_CHECKING:
    from forewarn.crash_test.case import Case


class _ProfileChoice(click.Choice[str]):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices and (close := get_close_matches(str(value), self.choices, n=1)):
            self.fail(f"{value!r} is not a profile: did you mean {close[0]}?", param, ctx)
        return super().convert(value, param, ctx)


_PROFILE = _ProfileChoice(("spot", "maintenance", "cluster", "observer"))


class _CrashTestGroup(click.Group):
    """A group that also runs a command of the user's, which follows `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta["handler"] = tuple(args[at + 1 :])
            args = args[:at]
        own = list(takewhile(lambda argument: argument not in self.commands, args))
        if any(argument.startswith("--json") for argument in own):  # it names a file here: errors stay text
            ctx.ensure_object(Invocation).as_json = _json_value(own) == "-"
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not get_close_matches(args[0], self.commands):
            raise Rejected(f"{args[0]!r} is not a command of crash-test: write the command of a handler after `--`")
        return super().resolve_command(ctx, args)


def _json_value(arguments: Sequence[str]) -> str:
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == "--json":
            return after
        if argument.startswith("--json="):
            return argument.partition("=")[2]
    return ""


_allow_unknown_option = click.option(
    "--allow-unknown", is_flag=True, help="Exit 0 even if it is unknown whether work is lost."
)


@click.group("crash-test", cls=_CrashTestGroup, invoke_without_command=True, subcommand_metavar="-- HANDLER…")
@click.option(
    "--profile", type=_PROFILE, default="maintenance", show_default=True, help="Choose what the handler is for."
)
@click.option("--claims", type=click.Path(path_type=Path), help="Read what it claims to do (TOML).")
@click.option("--only", metavar="CASE|AREA,…", default="", help="Run only these cases or areas.")
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Use this seed for the random times of a run; the same seed repeats them.",
)
@click.option(
    "--prepared",
    metavar="COMMAND",
    default="",
    help="Run this probe command; it succeeds once the handler has prepared.",
)
@click.option(
    "--recovered", metavar="COMMAND", default="", help="Run this probe command; it succeeds once the application works."
)
@click.option("--endpoint-env", metavar="VAR", default="", help="Give the URL in this variable; use no namespaces.")
@click.option("--attach", metavar="ADDRESS:PORT", default="", help="Listen here for a handler that runs elsewhere.")
@click.option("--vm", metavar="NAME", default="web-0", show_default=True, help="With --attach: give its VM this name.")
@click.option(
    "--lab-time", type=click.FloatRange(0.1, 100), default=1.0, metavar="FACTOR", help="Speed up the service's clock."
)
@click.option("--at-once", type=click.IntRange(1, 64), default=None, help="Run this many cases at the same time.")
@click.option(
    "--cases", "case_files", multiple=True, type=click.Path(path_type=Path), help="Add the cases of this file."
)
@click.option("--baseline", type=click.Path(path_type=Path), help="Read expected failures; exit 0 if only they fail.")
@_allow_unknown_option
@click.option(
    "--write-baseline",
    type=click.Path(path_type=Path),
    help="Write a baseline with all failures, and the reasons of --baseline.",
)
@click.option("--html", type=click.Path(path_type=Path), help="Write a report for people.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write a report for CI systems.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the whole result; `-`: to stdout.")
@click.option("--badge", type=click.Path(path_type=Path), help="Write a badge with the grade (SVG).")
@click.pass_context
def crash_test(ctx: click.Context, /, **options: Any) -> None:
    """Run a handler through what goes wrong in production, and grade it.

    \b
    forewarn crash-test --prepared 'test -e drained' --recovered 'test ! -e drained' -- ./my-handler
    forewarn crash-test --profile spot --prepared 'test -f /tmp/saved' -- ./my-handler
    forewarn crash-test --attach 127.0.0.1:8080

    \b
    Exit codes:
    0  no case failed, except those of the baseline
    1  a case failed
    2  the handler did not run, or the input is wrong
    3  no case failed, but it is unknown whether work is lost
    """
    if ctx.invoked_subcommand is not None:
        return
    with require_server_extra("crash-test"):
        from forewarn.cli.crash_test_run import ReportFiles, load_known_cases, make_plan, report_result, run_plan
        from forewarn.crash_test.baseline import load_baseline
    call = ctx.ensure_object(Invocation)
    files = ReportFiles(
        json=options["json_file"],
        html=options["html"],
        junit=options["junit"],
        badge=options["badge"],
        write_baseline=options["write_baseline"],
    )
    files.require_writable()
    known = load_known_cases(options["case_files"])
    plan = make_plan(ctx.meta.get("handler", ()), known, options)
    path = options["baseline"]
    expected = load_baseline(path, [case.id for case in known]) if path else {}
    ctx.exit(report_result(call, run_plan(call, plan), files, expected, allow_unknown=options["allow_unknown"]))


@crash_test.command("list")
@click.option("--profile", type=_PROFILE, default=None, help="Show only the cases of this profile.")
@json_option
@click.pass_obj
def list_(call: Invocation, profile: str | None) -> None:
    """Show all cases."""
    from forewarn.crash_test.cases import ALL_CASES

    cases = [case for case in ALL_CASES if profile is None or profile in case.profiles]
    if call.output.as_json:
        call.output.print_json({"cases": [_case_document(case) for case in cases]})
        return
    rows = [(case.id, case.title, str(case.severity), ", ".join(sorted(case.profiles))) for case in cases]
    call.output.print_table(("case", "what happens", "a failure", "profiles"), rows)


@crash_test.command()
@click.argument("case_id", metavar="CASE")
@json_option
@click.pass_obj
def explain(call: Invocation, case_id: str) -> None:
    """Show what a case does, why, and what it demands."""
    from forewarn.crash_test.cases import find_case

    case = find_case(case_id)
    if call.output.as_json:
        call.output.print_json(_case_document(case))
        return
    call.output.print_line(f"{case.id}: {case.title}")
    call.output.print_line(case.reason)
    for demand in case.demands:
        call.output.print_line(f"  demanded: {demand.text}")
    call.output.print_line(f"  a failure: {case.severity}{', in a rare case' if case.is_rare else ''}")
    for source in case.sources:
        call.output.print_line(f"  source: {source}")


@crash_test.command()
@click.option(
    "--profile", type=_PROFILE, default="maintenance", show_default=True, help="Choose what the handler is for."
)
@click.option("--ask", is_flag=True, help="Ask what the handler does.")
@click.option("--output", type=click.Path(path_type=Path), help="Write this new file instead.")
def claims(profile: str, ask: bool, output: Path | None) -> None:
    """Print a claims file, with defaults or your answers."""
    with require_server_extra("crash-test claims"):
        from forewarn.cli.crash_test_claims import ask_for_claims, write_new_file
        from forewarn.crash_test.claims import HandlerProfile, claims_template

    text = ask_for_claims(HandlerProfile(profile)) if ask else claims_template(HandlerProfile(profile))
    if output is None:
        click.echo(text, nl=False)
    else:
        write_new_file(output, text)


@crash_test.command()
@click.argument("result_file", metavar="RESULT.json", type=click.Path(path_type=Path))
@click.option("--case", "case_id", required=True, help="Run this case again.")
@click.option("--recorded", is_flag=True, help="Run nothing: judge again what was recorded.")
@_allow_unknown_option
@click.pass_context
def replay(ctx: click.Context, result_file: Path, case_id: str, recorded: bool, allow_unknown: bool) -> None:
    """Run one case of an earlier result again, with all its options."""
    with require_server_extra("crash-test replay"):
        from forewarn.cli.crash_test_run import ReportFiles, find_case_of_result, plan_replay, report_result, run_plan
        from forewarn.crash_test.preflight import require_handler
        from forewarn.crash_test.result import judge_result_again, load_result

    call = ctx.ensure_object(Invocation)
    earlier = load_result(result_file)
    plan = plan_replay(earlier, find_case_of_result(earlier, result_file, case_id))
    if recorded:
        ctx.exit(report_result(call, judge_result_again(earlier, plan), ReportFiles(), allow_unknown=allow_unknown))
    if not plan.attached:
        require_handler(plan.command)
    ctx.exit(report_result(call, run_plan(call, plan), ReportFiles(), allow_unknown=allow_unknown))


def _case_document(case: Case) -> dict[str, Any]:
    return {
        "id": case.id,
        "area": case.area,
        "title": case.title,
        "reason": case.reason,
        "sources": list(case.sources),
        "profiles": sorted(case.profiles),
        "severity": case.severity,
        "is_rare": case.is_rare,
        "demands": [demand.text for demand in case.demands],
    }
