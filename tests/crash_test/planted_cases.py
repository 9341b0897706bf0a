"""Which defect of the planted handler each built-in case must find, and how a case is run with it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from forewarn.crash_test import remedies
from forewarn.crash_test.case import Case
from forewarn.crash_test.claims import DEFAULT_CLAIMS, Approves, HandlerClaims, HandlerProfile
from forewarn.crash_test.runner import CrashTestPlan, JudgedCase
from tests.crash_test.planted_handler import Defect

HANDLER = Path(__file__).with_name("planted_handler.py")
PREPARED, RECOVERED = "test -f prepared", "test ! -f prepared"

DEFECTS: dict[str, Defect] = {
    "notice-30s": Defect.POLLS_EVERY_MINUTE,
    "notice-8s": Defect.POLLS_EVERY_MINUTE,
    "notice-just-after-a-poll": Defect.POLLS_EVERY_MINUTE,
    "notice-at-first-poll": Defect.IGNORES_FIRST_DOCUMENT,
    "notice-at-first-poll-preempt": Defect.IGNORES_FIRST_DOCUMENT,
    "notice-reboot": Defect.DOES_NOTHING,
    "notice-redeploy": Defect.KNOWS_REBOOT_ONLY,
    "notice-none": Defect.EXITS_ON_EMPTY_DATE,
    "notice-seven-days": Defect.WAITS_FOR_FIRST_EVENT,
    "notice-shorter-than-promised": Defect.POLLS_EVERY_MINUTE,
    "notice-polls-while-pending": Defect.STOPS_POLLING_WHILE_PENDING,
    "whom-neighbour-only": Defect.IGNORES_RESOURCES,
    "whom-neighbour-evicted": Defect.IGNORES_RESOURCES,
    "whom-scale-set-name": Defect.USES_HOSTNAME,
    "whom-scale-set-name-preempt": Defect.USES_HOSTNAME,
    "whom-plain-name": Defect.NEEDS_UNDERSCORE,
    "whom-second-is-mine": Defect.READS_FIRST_EVENT_ONLY,
    "whom-first-is-mine": Defect.READS_LAST_EVENT_ONLY,
    "whom-three-at-once": Defect.READS_FIRST_EVENT_ONLY,
    "whom-several-domains": Defect.READS_FIRST_NAME_ONLY,
    "whom-upper-case": Defect.COMPARES_EXACTLY,
    "whom-upper-case-preempt": Defect.COMPARES_EXACTLY,
    "whom-lower-case": Defect.COMPARES_EXACTLY,
    "whom-longer-name": Defect.COMPARES_BEGINNINGS,
    "reading-empty-body": Defect.EXITS_ON_BAD_DOCUMENT,
    "reading-empty-body-preempt": Defect.EXITS_ON_BAD_DOCUMENT,
    "reading-empty-object": Defect.EXITS_ON_BAD_DOCUMENT,
    "reading-html": Defect.EXITS_ON_BAD_DOCUMENT,
    "reading-html-preempt": Defect.EXITS_ON_BAD_DOCUMENT,
    "reading-invalid-json": Defect.EXITS_ON_BAD_DOCUMENT,
    "reading-byte-order-mark": Defect.EXITS_ON_BAD_DOCUMENT,
    "reading-empty-date": Defect.NEEDS_DATE,
    "reading-empty-date-preempt": Defect.NEEDS_DATE,
    "reading-iso-date": Defect.NEEDS_DATE,
    "reading-wrong-weekday": Defect.CHECKS_WEEKDAY,
    "reading-unknown-keys": Defect.EXITS_ON_UNKNOWN_KEY,
    "reading-unknown-keys-preempt": Defect.EXITS_ON_UNKNOWN_KEY,
    "reading-missing-fields": Defect.NEEDS_EVERY_FIELD,
    "reading-missing-fields-preempt": Defect.NEEDS_EVERY_FIELD,
    "reading-missing-resources": Defect.NEEDS_EVERY_FIELD,
    "reading-unknown-kind": Defect.EXITS_ON_UNKNOWN_KIND,
    "reading-incarnation-reset": Defect.NEEDS_HIGHER_INCARNATION,
    "reading-older-document": Defect.FORGETS_RETURNED_EVENT,
    "reading-version-400": Defect.EXITS_ON_ERROR_STATUS,
    "reading-version-404": Defect.EXITS_ON_ERROR_STATUS,
    "reading-unchanged": Defect.APPROVES_TWICE,
    "reading-repeated-event": Defect.APPROVES_TWICE,
    "transport-late-first-answer": Defect.GIVES_UP_AT_START,
    "transport-answers-after-3s": Defect.IMPATIENT,
    "transport-answers-after-3s-preempt": Defect.IMPATIENT,
    "transport-no-answer": Defect.HAS_NO_TIMEOUT,
    "transport-no-answer-preempt": Defect.HAS_NO_TIMEOUT,
    "transport-refused": Defect.EXITS_ON_CONNECTION_ERROR,
    "transport-refused-preempt": Defect.EXITS_ON_CONNECTION_ERROR,
    "transport-refused-at-start": Defect.GIVES_UP_AT_START,
    "transport-503-at-start": Defect.GIVES_UP_AT_START,
    "transport-503-at-start-preempt": Defect.GIVES_UP_AT_START,
    "transport-500": Defect.EXITS_ON_ERROR_STATUS,
    "transport-429": Defect.EXITS_ON_ERROR_STATUS,
    "transport-429-preempt": Defect.EXITS_ON_ERROR_STATUS,
    "transport-410": Defect.EXITS_ON_ERROR_STATUS,
    "transport-410-preempt": Defect.EXITS_ON_ERROR_STATUS,
    "transport-401": Defect.EXITS_ON_ERROR_STATUS,
    "transport-504-page": Defect.EXITS_ON_ERROR_STATUS,
    "transport-redirect": Defect.EXITS_ON_ERROR_STATUS,
    "transport-reset": Defect.EXITS_ON_CONNECTION_ERROR,
    "transport-reset-preempt": Defect.EXITS_ON_CONNECTION_ERROR,
    "transport-truncated": Defect.EXITS_ON_CONNECTION_ERROR,
    "transport-slow-body": Defect.IMPATIENT,
    "transport-huge": Defect.HAS_SMALL_BUFFER,
    "transport-huge-preempt": Defect.HAS_SMALL_BUFFER,
    "transport-chunked": Defect.NEEDS_CONTENT_LENGTH,
    "acting-freeze": Defect.NEVER_RECOVERS,
    "acting-freeze-is-no-eviction": Defect.PREPARES_FOR_EVERYTHING,
    "acting-two-at-once": Defect.WAITS_FOR_FIRST_EVENT,
    "acting-takes-no-new-work": Defect.LOSES_PREPARATION,
    "acting-takes-no-new-work-preempt": Defect.LOSES_PREPARATION,
    "acting-failed-preparation": Defect.MARKS_DONE_FIRST,
    "acting-frozen-almost-unannounced": Defect.HANGS_AFTER_FREEZE,
    "approving-in-time": Defect.NEVER_APPROVES,
    "approving-after-preparing": Defect.APPROVES_FIRST,
    "approving-for-others": Defect.IGNORES_RESOURCES,
    "approving-although-it-claims-not-to": Defect.APPROVES_NEVERTHELESS,
    "approving-well-formed": Defect.SENDS_NO_HEADER,
    "approving-refused-429": Defect.IGNORES_REFUSAL,
    "approving-refused-500": Defect.IGNORES_REFUSAL,
    "approving-refused-503": Defect.IGNORES_REFUSAL,
    "approving-answer-lost": Defect.EXITS_ON_CONNECTION_ERROR,
    "approving-never-answered": Defect.HAS_NO_TIMEOUT,
    "approving-refused-for-long": Defect.RETRIES_WITHOUT_PAUSE,
    "approving-approver-dies": Defect.LEAVES_IT_TO_THE_FIRST,
    "afterwards-reboot": Defect.NEVER_RECOVERS,
    "afterwards-withdrawn": Defect.WAITS_FOR_STARTED,
    "afterwards-withdrawn-after-approval": Defect.WAITS_FOR_STARTED,
    "afterwards-over-while-down": Defect.FORGETS_AT_RESTART,
    "afterwards-still-listed": Defect.PREPARES_AGAIN_AT_START,
    "afterwards-second-impact": Defect.NEVER_RECOVERS,
    "afterwards-next-event": Defect.STOPS_AFTER_FIRST_EVENT,
    "survival-killed-before-delivery": Defect.IGNORES_FIRST_DOCUMENT,
    "survival-killed-while-preparing": Defect.MARKS_DONE_FIRST,
    "survival-killed-after-preparing": Defect.PREPARES_AGAIN_AT_START,
    "survival-killed-three-times": Defect.NEEDS_FREE_LOCK,
    "survival-rebooted-at-rest": Defect.NEEDS_FREE_LOCK,
    "survival-rebooted-while-preparing": Defect.MARKS_DONE_FIRST,
    "survival-rebooted-after-preparing": Defect.NEEDS_FREE_LOCK,
    "survival-clock-behind": Defect.USES_OWN_CLOCK,
    "survival-clock-ahead": Defect.USES_OWN_CLOCK,
    "survival-clock-behind-preempt": Defect.USES_OWN_CLOCK,
    "survival-full-disk": Defect.NEEDS_DISK,
    "cost-poll-interval": Defect.POLLS_EVERY_MINUTE,
    "cost-at-rest": Defect.POLLS_WITHOUT_PAUSE,
    "cost-connections": Defect.KEEPS_CONNECTIONS,
    "cost-memory": Defect.KEEPS_DOCUMENTS,
    "cost-errors": Defect.RETRIES_WITHOUT_PAUSE,
    "cost-throttled": Defect.RETRIES_WITHOUT_PAUSE,
    "cost-refused": Defect.RETRIES_WITHOUT_PAUSE,
    "cost-unanswered": Defect.PILES_REQUESTS_UP,
}

# What a person would change in a handler with this defect; one case may need another remedy for it than the next.
REMEDIES: dict[Defect, tuple[str, ...]] = {
    Defect.EXITS_ON_CONNECTION_ERROR: (remedies.DO_NOT_EXIT,),
    Defect.EXITS_ON_ERROR_STATUS: (remedies.DO_NOT_EXIT,),
    Defect.EXITS_ON_BAD_DOCUMENT: (remedies.DO_NOT_EXIT,),
    Defect.GIVES_UP_AT_START: (remedies.DO_NOT_EXIT,),
    Defect.HAS_NO_TIMEOUT: (remedies.KEEP_POLLING,),
    Defect.IMPATIENT: (remedies.WAIT_FOR_ANSWERS,),
    Defect.HAS_SMALL_BUFFER: (remedies.READ_WHOLE_BODIES,),
    Defect.NEEDS_CONTENT_LENGTH: (remedies.READ_WHOLE_BODIES,),
    Defect.POLLS_EVERY_MINUTE: (remedies.POLL_OFTEN,),
    Defect.POLLS_WITHOUT_PAUSE: (remedies.SEND_LESS,),
    Defect.RETRIES_WITHOUT_PAUSE: (remedies.BACK_OFF, remedies.APPROVE_WITH_PAUSES, remedies.SLEEP_BETWEEN_POLLS),
    Defect.KEEPS_CONNECTIONS: (remedies.REUSE_CONNECTIONS,),
    Defect.KEEPS_DOCUMENTS: (remedies.FREE_MEMORY,),
    Defect.PILES_REQUESTS_UP: (remedies.REUSE_CONNECTIONS,),
    Defect.EXITS_ON_UNKNOWN_KEY: (remedies.READ_KNOWN_KEYS,),
    Defect.EXITS_ON_UNKNOWN_KIND: (remedies.SKIP_UNUSABLE_EVENTS,),
    Defect.EXITS_ON_EMPTY_DATE: (remedies.DO_NOT_EXIT,),
    Defect.NEEDS_EVERY_FIELD: (remedies.READ_KNOWN_KEYS, remedies.SKIP_UNUSABLE_EVENTS),
    Defect.NEEDS_DATE: (remedies.READ_ANY_DATE,),
    Defect.CHECKS_WEEKDAY: (remedies.READ_ANY_DATE,),
    Defect.NEEDS_HIGHER_INCARNATION: (remedies.READ_EVERY_DOCUMENT,),
    Defect.IGNORES_FIRST_DOCUMENT: (remedies.ACT_ON_FIRST_DOCUMENT,),
    Defect.READS_FIRST_EVENT_ONLY: (remedies.READ_EVERY_EVENT,),
    Defect.READS_LAST_EVENT_ONLY: (remedies.APPROVE_OWN_ONLY,),
    Defect.KNOWS_REBOOT_ONLY: (remedies.PREPARE_FOR_REDEPLOY,),
    Defect.IGNORES_RESOURCES: (remedies.ONLY_OWN_EVENTS, remedies.APPROVE_OWN_ONLY),
    Defect.COMPARES_EXACTLY: (remedies.COMPARE_NAMES,),
    Defect.COMPARES_BEGINNINGS: (remedies.COMPARE_NAMES,),
    Defect.READS_FIRST_NAME_ONLY: (remedies.COMPARE_NAMES,),
    Defect.USES_HOSTNAME: (remedies.COMPARE_NAMES,),
    Defect.NEEDS_UNDERSCORE: (remedies.COMPARE_NAMES,),
    Defect.DOES_NOTHING: (remedies.PREPARE_EARLY,),
    Defect.PREPARES_FOR_EVERYTHING: (remedies.IGNORE_FREEZES,),
    Defect.STOPS_POLLING_WHILE_PENDING: (remedies.POLL_OFTEN,),
    Defect.WAITS_FOR_FIRST_EVENT: (remedies.HANDLE_EACH_EVENT,),
    Defect.USES_OWN_CLOCK: (remedies.USE_SERVICE_CLOCK,),
    Defect.LOSES_PREPARATION: (remedies.STAY_PREPARED,),
    Defect.MARKS_DONE_FIRST: (remedies.NOTE_SUCCESS_ONLY,),
    Defect.HANGS_AFTER_FREEZE: (remedies.KEEP_POLLING,),
    Defect.NEVER_APPROVES: (remedies.APPROVE_IN_TIME,),
    Defect.APPROVES_FIRST: (remedies.APPROVE_AFTER_PREPARING,),
    Defect.APPROVES_TWICE: (remedies.APPROVE_ONCE,),
    Defect.APPROVES_NEVERTHELESS: (remedies.APPROVE_NOTHING,),
    Defect.IGNORES_REFUSAL: (remedies.RETRY_APPROVAL,),
    Defect.SENDS_NO_HEADER: (remedies.SEND_WELL_FORMED_APPROVALS,),
    Defect.LEAVES_IT_TO_THE_FIRST: (remedies.LET_ANOTHER_APPROVE,),
    Defect.NEVER_RECOVERS: (remedies.RECOVER,),
    Defect.WAITS_FOR_STARTED: (remedies.RECOVER,),
    Defect.STOPS_AFTER_FIRST_EVENT: (remedies.HANDLE_NEXT_EVENT,),
    Defect.FORGETS_RETURNED_EVENT: (remedies.PREPARE_AGAIN,),
    Defect.FORGETS_AT_RESTART: (remedies.RECOVER,),
    Defect.PREPARES_AGAIN_AT_START: (remedies.PREPARE_ONCE,),
    Defect.NEEDS_FREE_LOCK: (remedies.START_AGAIN,),
    Defect.NEEDS_DISK: (remedies.WORK_WITHOUT_DISK,),
}


def profile_of(case: Case) -> HandlerProfile:
    """Return the profile in which the planted handler runs through this case: maintenance if it can."""
    if HandlerProfile.MAINTENANCE in case.profiles:
        return HandlerProfile.MAINTENANCE
    return min(case.profiles)


def claims_of(case: Case) -> HandlerClaims:
    """Return what the planted handler claims in this case."""
    if case.id == "approving-although-it-claims-not-to":
        return HandlerClaims(prepares=True)
    return DEFAULT_CLAIMS[profile_of(case)]


def handler_command(claims: HandlerClaims, profile: HandlerProfile, *defects: Defect) -> tuple[str, ...]:
    """Return the command of the planted handler with these defects, or, without any, of the good one."""
    approves = "none" if claims.approves is Approves.NONE else "own"
    skips = ("--skips", "Freeze") if profile is HandlerProfile.SPOT else ()
    return (sys.executable, "-S", str(HANDLER), "--approves", approves, *skips, *defects)


def plan_of(case: Case, *defects: Defect) -> CrashTestPlan:
    """Return the plan of a crash test of this one case with the planted handler."""
    profile, claims = profile_of(case), claims_of(case)
    return CrashTestPlan(
        command=handler_command(claims, profile, *defects),
        profile=profile,
        claims=claims,
        cases=(case,),
        prepared=PREPARED,
        recovered=RECOVERED,
    )


def describe_findings(judged: Iterable[JudgedCase]) -> str:
    """Return what the demands of these cases found, one line for each, for messages of tests."""
    return "\n".join(
        f"{item.case.id}: {finding.outcome}: {finding.demand}: {finding.seen}"
        for item in judged
        for finding in item.verdict.findings
    )
