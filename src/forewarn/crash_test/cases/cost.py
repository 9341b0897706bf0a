"""Cases on cost: how many requests a handler sends, at rest and during errors, and what it uses."""

from __future__ import annotations

from forewarn.crash_test import answers
from forewarn.crash_test.case import Case, Layout
from forewarn.crash_test.cases.scripts import EVERY_PROFILE, METADATA_DOCUMENTATION, rest, rest_with
from forewarn.crash_test.program_demands import (
    connections_at_most,
    cpu_at_most,
    memory_grows_at_most,
    output_at_most,
    polls_regularly,
    processes_at_most,
    requests_at_most,
    requests_at_most_during_errors,
    sends_metadata_header,
)
from forewarn.crash_test.verdict import Severity

_REST_S = 25.0
_ERRORS_S = 15.0

CASES: tuple[Case, ...] = (
    Case(
        id="cost-poll-interval",
        title="Nothing happens for 25 seconds.",
        reason="A handler can use only the part of the notice that its poll interval leaves, so it must poll as often "
        "as it claims.",
        sources=("taskcluster/taskcluster#7916", "https://github.com/webdevops/azure-scheduledevents-manager"),
        profiles=EVERY_PROFILE,
        severity=Severity.DELAYS_PLATFORM,
        layout=Layout.SPOT,
        script=rest(_REST_S),
        demands=(polls_regularly(),),
    ),
    Case(
        id="cost-at-rest",
        title="Nothing happens for 25 seconds, and requests are counted.",
        reason="The service allows five requests a second for all programs of a VM together: the more a handler sends, "
        "the fewer the others can send.",
        sources=(METADATA_DOCUMENTATION,),
        profiles=EVERY_PROFILE,
        severity=Severity.NOISE,
        layout=Layout.SPOT,
        script=rest(_REST_S),
        demands=(requests_at_most(2.5), sends_metadata_header(), cpu_at_most()),
    ),
    Case(
        id="cost-connections",
        title="Nothing happens for 25 seconds, and open connections are counted.",
        reason="A client that never closes its connections runs out of them after days.",
        sources=("aws/aws-sdk-js-v3#7538",),
        profiles=EVERY_PROFILE,
        severity=Severity.NOISE,
        layout=Layout.SPOT,
        script=rest(_REST_S),
        demands=(connections_at_most(4), processes_at_most()),
    ),
    Case(
        id="cost-memory",
        title="Every document is longer than a megabyte, for 25 seconds.",
        reason="Handlers that kept what they had read used more and more memory, until the system killed them.",
        sources=("aws/aws-node-termination-handler#121", "aws/aws-node-termination-handler#925"),
        profiles=EVERY_PROFILE,
        severity=Severity.NOISE,
        layout=Layout.SPOT,
        script=rest_with(answers.huge_document, _REST_S),
        demands=(memory_grows_at_most(64.0),),
    ),
    Case(
        id="cost-errors",
        title="Requests are answered with 503 for fifteen seconds.",
        reason="A handler that asks again at once makes the trouble worse. So do five retries for each poll, and a log "
        "line for each retry.",
        sources=("https://github.com/webdevops/azure-scheduledevents-manager", "canonical/cloud-init#4470"),
        profiles=EVERY_PROFILE,
        severity=Severity.NOISE,
        layout=Layout.SPOT,
        script=rest_with(lambda: answers.status(503), _ERRORS_S),
        demands=(requests_at_most_during_errors(2.5), output_at_most(10.0)),
    ),
    Case(
        id="cost-throttled",
        title="Requests are answered with 429 and Retry-After: 5 for fifteen seconds.",
        reason="Asking faster while being throttled keeps the whole VM throttled.",
        sources=(METADATA_DOCUMENTATION, "canonical/cloud-init#4470"),
        profiles=EVERY_PROFILE,
        severity=Severity.NOISE,
        layout=Layout.SPOT,
        script=rest_with(lambda: answers.throttled(5), _ERRORS_S),
        demands=(requests_at_most_during_errors(2.0),),
    ),
    Case(
        id="cost-refused",
        title="Connections are refused for fifteen seconds.",
        reason="A loop without a pause takes a whole CPU when connections fail at once.",
        sources=("aws/aws-node-termination-handler#21", "canonical/cloud-init#4470"),
        profiles=EVERY_PROFILE,
        severity=Severity.NOISE,
        layout=Layout.SPOT,
        script=rest_with(answers.refuses_connections, _ERRORS_S),
        demands=(cpu_at_most(0.5), output_at_most(10.0)),
    ),
    Case(
        id="cost-unanswered",
        title="No request is answered for fifteen seconds.",
        reason="Pollers on a timer start a new request while older ones hang, so connections and processes accumulate.",
        sources=("aws/aws-sdk-js-v3#7538", "aws-deadline/deadline-cloud-worker-agent#1083"),
        profiles=EVERY_PROFILE,
        severity=Severity.NOISE,
        layout=Layout.SPOT,
        script=rest_with(answers.never_answers, _ERRORS_S),
        demands=(connections_at_most(6), processes_at_most()),
    ),
)
