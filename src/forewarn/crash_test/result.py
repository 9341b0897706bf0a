"""The result of a crash test as one JSON document: all that reports show, and enough to judge again.

`schema` is the version of the document. A reader refuses any other.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from forewarn.base.wording import first_names
from forewarn.crash_test.case import Case
from forewarn.crash_test.claims import HandlerClaims, HandlerProfile
from forewarn.crash_test.figures import HandlerFigures, compute_figures
from forewarn.crash_test.grading import Grade, GradeReport, grade_handler
from forewarn.crash_test.runner import CrashTestPlan, JudgedCase, judge_again
from forewarn.crash_test.timeline import ProgramExited, ProgramStarted, Timeline
from forewarn.crash_test.verdict import CaseOutcome, Severity, Verdict
from forewarn.errors import Rejected

SCHEMA = 1
_AT_ONCE_S = 3.0  # a program that ended within this time of its start, everywhere, was not run


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """One case of a crash test's result, with its texts, so that a report needs no code of the case."""

    id: str  # AREA-NAME, such as notice-30s
    area: str  # the first word of the id
    title: str  # a sentence: what happens
    reason: str  # why it matters, and which defect it comes from
    sources: tuple[str, ...]  # public: OWNER/REPOSITORY#NUMBER, or an address
    outcome: CaseOutcome  # that of the verdict
    severity: Severity  # of a failure
    verdict: Verdict  # what each demand found
    timeline: Timeline  # what was observed; empty if the case did not run
    took_s: float  # seconds of real time; 0 if it did not run
    vm: str = ""  # the name of the VM on which the handler was judged; "": the case did not run
    neighbours: tuple[str, ...] = ()  # the other VMs of its scope
    events: tuple[str, ...] = ()  # ids of the events that the script published, in order


class CrashTestResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a whole crash test: how it was run, its cases, and the grade; the JSON of `--json`."""

    schema: int = SCHEMA  # the version of this format
    forewarn: str  # the version that ran it
    at: str  # when it began, as ISO 8601
    command: tuple[str, ...]  # the handler and its arguments; () if it ran elsewhere
    profile: HandlerProfile  # decided which cases ran
    claims: HandlerClaims  # what the handler says it does
    seed: int  # decided random times of the scripts
    speed: float  # seconds of the service's clock per second of real time
    endpoint_env: str  # the variable that got the endpoint's URL; "": it ran in VMs of namespaces, or elsewhere
    prepared: str  # the shell command of the probe `prepared`; "": none
    recovered: str  # the shell command of the probe `recovered`; "": none
    case_files: tuple[str, ...] = ()  # Python files with further cases
    machine: str  # processor cores, kernel and Python, for the report
    cases: tuple[CaseResult, ...]  # in the order of the plan
    grade: GradeReport  # the grade, and the cases that decide it
    figures: HandlerFigures  # measured over all cases
    attached: str = ""  # ADDRESS:PORT that the handler called which ran elsewhere; "": the crash test started it
    vm: str = ""  # how documents called the VM of an attached handler
    warnings: tuple[str, ...] = ()  # sentences: what limits what this result says, most important first

    @property
    def handler(self) -> str:
        """What was tested: the command, quoted as for a shell, or the address that an attached handler called."""
        return f"handler at {self.attached}" if self.attached else shlex.join(self.command)


def build_result(
    plan: CrashTestPlan, judged: Sequence[JudgedCase], *, version: str, at: str, machine: str
) -> CrashTestResult:
    """Return the result of a run: its cases in this order, with grade, figures and warnings."""
    cases = tuple(_case_result(item) for item in judged)
    was_run = any(_did_run(item.timeline, item.vm, plan.claims) for item in judged)
    grade = grade_handler([case.verdict for case in cases]) if was_run else GradeReport(grade=Grade.NOT_RUN)
    return CrashTestResult(
        forewarn=version,
        at=at,
        command=plan.command,
        profile=plan.profile,
        claims=plan.claims,
        seed=plan.seed,
        speed=plan.speed,
        endpoint_env=plan.endpoint_env,
        prepared=plan.prepared,
        recovered=plan.recovered,
        case_files=tuple(map(str, plan.case_files)),
        machine=machine,
        cases=cases,
        grade=grade,
        attached=plan.attached,
        vm=plan.vm,
        figures=compute_figures([(case.timeline, case.vm, case.events) for case in cases]),
        warnings=tuple(_find_warnings(plan, cases, grade)),
    )


def judge_result_again(result: CrashTestResult, plan: CrashTestPlan) -> CrashTestResult:
    """Return a new result of the cases of the plan, judged from what the result recorded; nothing runs."""
    recorded = {case.id: case for case in result.cases}
    judged = [_judge_recorded(case, recorded[case.id], plan) for case in plan.cases]
    return build_result(plan, judged, version=result.forewarn, at=result.at, machine=result.machine)


def _judge_recorded(case: Case, recorded: CaseResult, plan: CrashTestPlan) -> JudgedCase:
    if recorded.verdict.reason:
        raise Rejected(f"{case.id} was not judged ({recorded.verdict.reason}): run it again, without --recorded")
    before = JudgedCase(
        case=case,
        verdict=recorded.verdict,
        timeline=recorded.timeline,
        took_s=recorded.took_s,
        vm=recorded.vm,
        neighbours=recorded.neighbours,
        events=recorded.events,
    )
    return judge_again(case, before, plan)


def encode_result(result: CrashTestResult) -> bytes:
    """Return the JSON of a result in UTF-8, indented, with a line break at the end; for `load_result`."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"


def load_result(path: Path) -> CrashTestResult:
    """Read the JSON file of a result, as `encode_result` made it, and return the result."""
    try:
        data = path.read_bytes()
        schema = msgspec.json.decode(data, type=_SchemaOnly).schema
        if schema < SCHEMA:
            raise Rejected(
                f"{str(path)!r} was written by an older forewarn (schema {schema}): run the crash test again"
            )
        if schema > SCHEMA:
            raise Rejected(f"{str(path)!r} was written by a newer forewarn (schema {schema}): use that version")
        return msgspec.json.decode(data, type=CrashTestResult)
    except OSError as error:
        raise Rejected(f"the result {str(path)!r} cannot be read ({error.strerror}): check its path") from error
    except msgspec.DecodeError as error:
        raise Rejected(f"{str(path)!r} is not the JSON of a crash test ({error}): give a file of --json") from error


class _SchemaOnly(msgspec.Struct):
    schema: int


def _case_result(judged: JudgedCase) -> CaseResult:
    case = judged.case
    return CaseResult(
        id=case.id,
        area=case.area,
        title=case.title,
        reason=case.reason,
        sources=case.sources,
        outcome=judged.verdict.outcome,
        severity=case.severity,
        verdict=judged.verdict,
        timeline=judged.timeline,
        took_s=judged.took_s,
        vm=judged.vm,
        neighbours=judged.neighbours,
        events=judged.events,
    )


def _did_run(timeline: Timeline, vm: str, claims: HandlerClaims) -> bool:
    """Return whether the handler's program ran: it polled, claims to be one-shot, or did not end at once."""
    starts = timeline.of(ProgramStarted, vm)
    if not starts:
        return bool(timeline.polls(vm))  # it runs elsewhere
    if claims.one_shot or timeline.polls(vm):
        return True
    ended = [item.at for item in timeline.of(ProgramExited, vm) if not item.by_case]
    return not ended or ended[0] - starts[0].at > _AT_ONCE_S


def _find_warnings(plan: CrashTestPlan, cases: Sequence[CaseResult], grade: GradeReport) -> list[str]:
    unknown = [case for case in cases if case.outcome is CaseOutcome.UNKNOWN]
    problems = Counter(case.verdict.reason for case in unknown if case.verdict.reason)
    reason = problems.most_common(1)[0][0] if problems else ""
    if grade.grade is Grade.NOT_RUN:
        if reason:
            return [f"The handler was not run: {reason}."]
        if plan.attached:
            return ["The handler polled in no case: it may have ended, or it calls another address."]
        return ["The handler ended at once in every case: it was not run. Claim one-shot if it is meant to end."]
    warnings = []
    if not any(case.timeline.polls(case.vm) for case in cases):
        warnings.append("The handler never polled: check which address it polls.")
    if unknown:
        because = f", most often because {reason}" if reason else ""
        lost = f"; work may be lost in {first_names(grade.unknown)}" if grade.unknown else ""
        warnings.append(f"{len(unknown)} of {len(cases)} cases could not be judged{because}{lost}.")
    if plan.claims.prepares and not plan.prepared:
        warnings.append("It is not known whether the handler had prepared: give --prepared COMMAND.")
    if plan.claims.recovers and not plan.recovered:
        warnings.append("It is not known whether the application recovered: give --recovered COMMAND.")
    if plan.left_out:
        ran, total = len(cases), len(cases) + plan.left_out
        warnings.append(f"Only {ran} of the {total} cases of profile {plan.profile} ran: the others may fail.")
    if plan.attached:
        left_out = sum(bool(case.verdict.reason) and case.outcome is CaseOutcome.NOT_APPLICABLE for case in cases)
        warnings.append(f"The handler ran elsewhere. Cases that need its process were left out: {left_out}.")
    if plan.endpoint_env and (skipped := sum(case.verdict.reason != "" for case in cases if case not in unknown)):
        warnings.append(f"Cases that need a VM of namespaces were left out: {skipped}.")
    if plan.speed != 1.0:
        warnings.append(f"The clock ran {plan.speed:g} times as fast as real time.")
    return warnings
