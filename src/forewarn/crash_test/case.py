"""A case of the crash test: its reason, its script against a stage, and its demands on the timeline.

A case file of your own is a Python file that makes cases with `Case` and lists them in `CASES`.
"""

from __future__ import annotations

import runpy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from forewarn.crash_test.claims import HandlerClaims, HandlerProfile
from forewarn.crash_test.stage import Stage
from forewarn.crash_test.timeline import Probe, Timeline
from forewarn.crash_test.verdict import CaseOutcome, Finding, Severity, Verdict
from forewarn.errors import Rejected

Script = Callable[[Stage], Awaitable[None]]


class Need(StrEnum):
    """What a case needs, besides a handler that polls."""

    CONTROL = "control over the program"  # the crash test starts, kills and restarts it
    NAMESPACES = "namespaces"  # a VM of namespaces: for reboots, full disks and 169.254.169.254
    SEVERAL_VMS = "several VMs"  # copies of the handler on VMs that share a scope


class Layout(StrEnum):
    """Which VMs the fleet of a case has; the handler runs on the first, in the profile cluster on all."""

    SINGLE = "single"  # one VM, alone in its scope
    CAPITALS = "capitals"  # one VM, alone in its scope, whose name has upper and lower case
    SPOT = "spot"  # one Spot VM, alone in its scope
    SET = "availability set"  # three VMs in an availability set, each in its own update domain
    SCALE_SET = "scale set"  # three VMs of a scale set, whose names differ from their host names


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything that a demand may look at when it judges one run of a case.

    The runner makes it after the script has ended. Nothing in it changes, so it can be judged again and again.
    """

    timeline: Timeline  # all observations, by time
    claims: HandlerClaims  # what the handler says it does
    vm: str  # the name of the VM on which the handler is judged
    neighbours: tuple[str, ...] = ()  # the names of the other VMs of its scope
    events: tuple[str, ...] = ()  # ids of the events that the script published, in order
    probes: frozenset[Probe] = frozenset()  # the probes that the user gave
    is_attached: bool = False  # the handler runs elsewhere, so that its process is not observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One sentence that must be true of a handler in a case, and the function that judges it afterwards.

    `judge` returns an outcome, what was seen (a sentence), and when (seconds since the start of the case). It is not
    called if the handler does not claim to do this (`applies` is False: not applicable), if the demand watches a
    process that is not observed (not applicable), or if the user did not give the probe that it needs (unknown). It
    must not raise: that would end the whole crash test.
    """

    text: str  # the sentence, such as "it does not exit"
    judge: Callable[[Observed], tuple[CaseOutcome, str, tuple[float, ...]]]  # outcome, what was seen, when
    applies: Callable[[HandlerClaims], bool] = lambda claims: True  # False: not applicable
    probe: Probe | None = None  # the probe that the user must have given; None: it needs none
    remedy: str = ""  # what to change in a handler that does not do it, as a sentence; "": nothing is known
    watches_process: bool = False  # it reads exits, output or resources of the handler's process

    def with_remedy(self, remedy: str) -> Demand:
        """Return a copy for a case in which a failure has a cause of its own, so that another remedy helps."""
        return replace(self, remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing that goes wrong in production, as a script, and what is demanded of a handler meanwhile.

    Without namespaces, a case that needs them is not applicable. With a handler that runs elsewhere, a case is not
    applicable if it has any `needs` or a scale set, or if all its demands watch the process. A script that takes longer
    than `longest_s` (real time) is ended, and the case is unknown; so is one whose script raises.
    """

    id: str  # AREA-NAME, such as notice-30s
    title: str  # a sentence: what happens
    reason: str  # why it matters, and which defect it comes from
    sources: tuple[str, ...]  # public: OWNER/REPOSITORY#NUMBER, or an address
    profiles: frozenset[HandlerProfile]  # in which it runs
    severity: Severity  # of a failure
    script: Script  # an async function that takes the Stage, and returns when the case is over
    demands: tuple[Demand, ...]  # what is judged afterwards
    is_rare: bool = False  # whether this is rare in production: then lost work gives a D, not an F
    layout: Layout = Layout.SINGLE  # the VMs of its fleet
    needs: frozenset[Need] = frozenset()  # such as Need.NAMESPACES
    clock_offset_s: float = 0.0  # seconds that the service's clock is ahead of real time; below 0: behind
    longest_s: float = 120.0  # real time; a script that takes longer is ended, and the case is unknown

    @property
    def area(self) -> str:
        """The part of the case's id before the first hyphen, such as `notice`."""
        return self.id.partition("-")[0]


def judge_case(case: Case, observed: Observed) -> Verdict:
    """Return the verdict on the handler in this case: one finding per demand, in their order.

    A pure function: it judges what was observed, and runs nothing. Findings that failed or are slow have a remedy.
    """
    findings = tuple(_judge_demand(demand, observed) for demand in case.demands)
    return Verdict(case=case.id, severity=case.severity, is_rare=case.is_rare, findings=findings)


def _judge_demand(demand: Demand, observed: Observed) -> Finding:
    if not demand.applies(observed.claims):
        return _finding(demand, CaseOutcome.NOT_APPLICABLE, "the handler does not claim to do this")
    if demand.watches_process and observed.is_attached:
        return _finding(demand, CaseOutcome.NOT_APPLICABLE, "the handler runs elsewhere: its process is not observed")
    if demand.probe is not None and demand.probe not in observed.probes:
        return _finding(demand, CaseOutcome.UNKNOWN, f"only a probe can tell: give --{demand.probe} COMMAND")
    outcome, seen, at = demand.judge(observed)
    return _finding(demand, outcome, seen, at)


def _finding(demand: Demand, outcome: CaseOutcome, seen: str, at: tuple[float, ...] = ()) -> Finding:
    remedy = demand.remedy if outcome in (CaseOutcome.FAIL, CaseOutcome.SLOW) else ""
    return Finding(demand=demand.text, outcome=outcome, seen=seen, at=at, remedy=remedy)


def load_case_file(path: Path) -> tuple[Case, ...]:
    """Run a case file, which is Python, in this process, and return the cases of its list `CASES`."""
    if path.is_dir():
        raise Rejected(f"the case file {str(path)!r} is a directory: name a Python file in it")
    try:
        names = runpy.run_path(str(path))
    except SyntaxError as error:
        raise Rejected(f"{path}:{error.lineno}: this is not Python ({error.msg}): correct that line") from error
    except SystemExit as error:
        raise Rejected(f"the case file {str(path)!r} exits when it is run: remove the call that exits") from error
    except OSError as error:
        raise Rejected(f"the case file {str(path)!r} cannot be read ({error.strerror}): check its path") from error
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise Rejected(f"the case file {str(path)!r} fails when it is run ({problem}): correct it") from error
    cases = names.get("CASES")
    if not isinstance(cases, list | tuple) or not all(isinstance(case, Case) for case in cases):
        raise Rejected(f"the case file {str(path)!r} has no list CASES of cases: add CASES = [Case(…), …]")
    return tuple(cases)
