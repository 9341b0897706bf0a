"""Crash test: runs any handler through what goes wrong in production, and grades it.

A case file of your own imports everything from here: `Case` and its parts, the demands, and the module `answers` with
the answers that a script can give instead of the service's. docs/how-to/crash-test.md shows one. May import `lab` and
everything below it. Start with `case` and `stage`; `runner` runs cases, `result` is what reports show.
"""

from forewarn.crash_test import answers
from forewarn.crash_test.approval_demands import (
    approvals_are_well_formed,
    approvals_sent_at_most,
    approved,
    approved_at_most,
    approved_only_after_prepared,
    approves_nothing,
    approves_only_own,
    not_approved,
    retried_after_refusal,
)
from forewarn.crash_test.case import Case, Demand, Layout, Need, Observed
from forewarn.crash_test.claims import Approves, HandlerClaims, HandlerProfile
from forewarn.crash_test.demands import (
    if_survives_restart,
    not_prepared_for,
    noticed,
    noticed_before_start,
    prepared_at_most_once,
    prepared_at_start,
    prepared_before_start,
    reacted,
    recovered,
    stays_prepared,
)
from forewarn.crash_test.program_demands import (
    connections_at_most,
    cpu_at_most,
    does_not_exit,
    memory_grows_at_most,
    output_at_most,
    polls_after_restart,
    polls_again,
    polls_regularly,
    processes_at_most,
    requests_at_most,
    requests_at_most_during_errors,
    sends_metadata_header,
    still_polls,
)
from forewarn.crash_test.stage import Stage, StageEvent
from forewarn.crash_test.timeline import Probe, Timeline
from forewarn.crash_test.verdict import CaseOutcome, Severity

__all__ = [
    "Approves",
    "Case",
    "CaseOutcome",
    "Demand",
    "HandlerClaims",
    "HandlerProfile",
    "Layout",
    "Need",
    "Observed",
    "Probe",
    "Severity",
    "Stage",
    "StageEvent",
    "Timeline",
    "answers",
    "approvals_are_well_formed",
    "approvals_sent_at_most",
    "approved",
    "approved_at_most",
    "approved_only_after_prepared",
    "approves_nothing",
    "approves_only_own",
    "connections_at_most",
    "cpu_at_most",
    "does_not_exit",
    "if_survives_restart",
    "memory_grows_at_most",
    "not_approved",
    "not_prepared_for",
    "noticed",
    "noticed_before_start",
    "output_at_most",
    "polls_after_restart",
    "polls_again",
    "polls_regularly",
    "prepared_at_most_once",
    "prepared_at_start",
    "prepared_before_start",
    "processes_at_most",
    "reacted",
    "recovered",
    "requests_at_most",
    "requests_at_most_during_errors",
    "retried_after_refusal",
    "sends_metadata_header",
    "stays_prepared",
    "still_polls",
]
