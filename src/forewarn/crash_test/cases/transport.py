"""Cases on transport: late, refused, broken, slow and huge answers.

The handler must outlast them and see the next event.
"""

from __future__ import annotations

from forewarn.crash_test import answers, remedies
from forewarn.crash_test.case import Case, Demand, Need
from forewarn.crash_test.cases.scripts import (
    DOCUMENTATION,
    ENDURES,
    LONGEST_PAUSE_S,
    METADATA_DOCUMENTATION,
    OBSERVED,
    ScriptFactory,
    announce_after,
    announce_with,
    preempt_variant,
    understands,
)
from forewarn.crash_test.demands import noticed, reacted
from forewarn.crash_test.program_demands import does_not_exit, polls_again
from forewarn.crash_test.verdict import Severity

_TIME_LIMIT_S = 20.0  # a reasonable time limit for a request, and a poll interval
_HANGING_S = 6.0  # for which a request has hung when an eviction is announced


def _transport(
    name: str,
    title: str,
    reason: str,
    sources: tuple[str, ...],
    script_for: ScriptFactory,
    demands: tuple[Demand, ...] = ENDURES,
    *,
    is_rare: bool = False,
    on_spot: bool = False,
    at_start: bool = False,
) -> tuple[Case, ...]:
    case = Case(
        id=f"transport-{name}",
        title=title,
        reason=reason,
        sources=sources,
        profiles=OBSERVED,
        severity=Severity.LOSES_WORK,
        is_rare=is_rare,
        needs=frozenset({Need.CONTROL} if at_start else ()),
        script=script_for("Reboot"),
        demands=demands,
    )
    return (case, preempt_variant(case, script_for("Preempt"))) if on_spot else (case,)


CASES: tuple[Case, ...] = (
    *_transport(
        "late-first-answer",
        "The first answer takes fifteen seconds.",
        "The first request turns the service on, and its answer may take two minutes. A handler that concludes that it "
        "does not run on Azure, or stops, never sees an event.",
        (DOCUMENTATION, "Azure/azure-sdk-for-net#20609"),
        announce_after(lambda: answers.late_answer(15.0), lasts_s=17.0, at_start=True, times=1),
        at_start=True,
    ),
    *_transport(
        "answers-after-3s",
        "Every answer takes three seconds.",
        "A handler with a time limit of one second saw no events on slow nodes. The service promises ten seconds.",
        ("maksim-paskal/aks-node-termination-handler#73", "Azure/go-autorest#660"),
        announce_with(lambda: answers.late_answer(3.0)),
        understands(remedies.WAIT_FOR_ANSWERS, to_get_it=remedies.WAIT_FOR_ANSWERS),
        on_spot=True,
    ),
    *_transport(
        "no-answer",
        "One request never gets an answer, but later requests do.",
        "A handler without a time limit waits forever on a half-open connection, while its process keeps running.",
        ("aws-deadline/deadline-cloud-worker-agent#1083", "aws-deadline/deadline-cloud-worker-agent#1010"),
        announce_after(answers.never_answers, lasts_s=_HANGING_S, times=1),
        (
            polls_again(within_s=_TIME_LIMIT_S, at_most_s=LONGEST_PAUSE_S),
            noticed(within_s=_TIME_LIMIT_S - _HANGING_S, at_most_s=_TIME_LIMIT_S).with_remedy(remedies.KEEP_POLLING),
            reacted().with_remedy(remedies.ACT_AFTER_ERRORS),
            does_not_exit(),
        ),
        on_spot=True,
    ),
    *_transport(
        "refused",
        "Connections are refused for six seconds.",
        "The endpoint cannot be reached for a while when a host is serviced. A handler must not exit, and must poll "
        "again by itself.",
        ("aws/aws-node-termination-handler#21", "Shogan/ec2-spot-termination-simulator#1"),
        announce_after(answers.refuses_connections),
        on_spot=True,
    ),
    *_transport(
        "refused-at-start",
        "Connections are refused when the handler starts.",
        "A handler may start before the network is ready. One took 40 seconds to start while its requests failed.",
        ("aws/aws-node-termination-handler#277", "aws/aws-node-termination-handler#281"),
        announce_after(answers.refuses_connections, lasts_s=8.0, at_start=True),
        at_start=True,
    ),
    *_transport(
        "503-at-start",
        "The first requests are answered with 503.",
        "A handler that treats an error at its start as a wrong configuration exits, and nobody notices until the "
        "eviction.",
        ("aws/aws-node-termination-handler#916",),
        announce_after(lambda: answers.status(503), lasts_s=8.0, at_start=True),
        at_start=True,
        on_spot=True,
    ),
    *_transport(
        "500",
        "Requests are answered with 500 for six seconds.",
        "The documentation says to retry. A handler that reads the error's body as a document concludes that there are "
        "no events.",
        ("kubernetes/kubernetes#70246", "canonical/cloud-init#1271"),
        announce_after(lambda: answers.status(500)),
    ),
    *_transport(
        "429",
        "Requests are answered with 429 and Retry-After for six seconds.",
        "The service allows five requests a second for the whole VM, and other programs use it too.",
        (METADATA_DOCUMENTATION, "canonical/cloud-init#4470"),
        announce_after(lambda: answers.throttled(2)),
        on_spot=True,
    ),
    *_transport(
        "410",
        "Requests are answered with 410 for ten seconds.",
        "The service answers 410 for up to 70 seconds while a VM moves. Many clients treat 410 as final.",
        ("coreos/ignition#1806", METADATA_DOCUMENTATION),
        announce_after(answers.gone, lasts_s=10.0),
        on_spot=True,
    ),
    *_transport(
        "401",
        "Requests are answered with 401 for six seconds.",
        "Metadata security answers 401 to requests that are not signed, also while a key is being replaced.",
        ("aws/aws-node-termination-handler#229", "aws/aws-node-termination-handler#668"),
        announce_after(answers.unauthorized),
        is_rare=True,
    ),
    *_transport(
        "504-page",
        "A web proxy answers with 504 and an HTML page for six seconds.",
        "Environment variables send metadata requests through a proxy that cannot reach the service.",
        ("RedHatInsights/insights-core#3565",),
        announce_after(lambda: answers.html_page(504)),
        is_rare=True,
    ),
    *_transport(
        "redirect",
        "Polls are redirected to a page that does not exist, for six seconds.",
        "A network with a sign-in page redirects every request to it.",
        ("https://www.rfc-editor.org/rfc/rfc9110#section-15.4",),
        announce_after(answers.redirect),
        is_rare=True,
    ),
    *_transport(
        "reset",
        "Connections are reset before an answer is sent, for six seconds.",
        "A client saw resets of connections to the metadata address. A handler that catches only HTTP errors stops.",
        ("zalando-incubator/kube-ingress-aws-controller#573",),
        announce_after(answers.resets_connections),
        on_spot=True,
    ),
    *_transport(
        "truncated",
        "Answers end in the middle of the body, for six seconds.",
        "A connection that breaks in the body gives half a document without any HTTP error.",
        ("https://www.rfc-editor.org/rfc/rfc9112#section-8",),
        announce_after(answers.truncated_body),
        is_rare=True,
    ),
    *_transport(
        "slow-body",
        "The body of every answer takes three seconds.",
        "A time limit only for the first byte does not end such a request; one that is too short ends all of them.",
        ("maksim-paskal/aks-node-termination-handler#73", "canonical/cloud-init#4372"),
        announce_with(lambda: answers.slow_body(3.0)),
        understands(remedies.WAIT_FOR_ANSWERS, to_get_it=remedies.WAIT_FOR_ANSWERS),
        is_rare=True,
    ),
    *_transport(
        "huge",
        "The document has thousands of events of other VMs, and is longer than a megabyte.",
        "Large scopes have large documents. A fixed buffer ends before the event of this VM.",
        (DOCUMENTATION,),
        announce_with(answers.huge_document),
        understands(remedies.READ_WHOLE_BODIES, to_get_it=remedies.READ_WHOLE_BODIES),
        is_rare=True,
        on_spot=True,
    ),
    *_transport(
        "chunked",
        "Answers come in chunks, without Content-Length.",
        "HTTP/1.1 allows it and proxies do it. A handler that reads Content-Length bytes by hand reads nothing.",
        ("https://www.rfc-editor.org/rfc/rfc9112#section-7.1",),
        announce_with(answers.chunked_transfer),
        understands(remedies.READ_WHOLE_BODIES, to_get_it=remedies.READ_WHOLE_BODIES),
        is_rare=True,
    ),
)
