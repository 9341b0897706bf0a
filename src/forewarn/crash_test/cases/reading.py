"""Cases on reading: documents that are empty, incomplete, newer, older or repeated."""

from __future__ import annotations

from forewarn.crash_test import answers, remedies
from forewarn.crash_test.approval_demands import approved_at_most
from forewarn.crash_test.case import Case, Demand, Script
from forewarn.crash_test.cases.scripts import (
    DOCUMENTATION,
    ENDURES,
    MAINTENANCE,
    NOTICE_S,
    OBSERVED,
    SETTLE_S,
    ScriptFactory,
    announce_after,
    announce_with,
    begin,
    preempt_variant,
    understands,
)
from forewarn.crash_test.demands import noticed, prepared_at_most_once, prepared_at_start, reacted
from forewarn.crash_test.program_demands import does_not_exit, still_polls
from forewarn.crash_test.stage import Stage
from forewarn.crash_test.verdict import Severity

_LONG_NOTICE_S = 60.0  # of an event that is withdrawn before it starts

_DASK_PLUGIN = "https://github.com/dask/dask-cloudprovider/blob/main/dask_cloudprovider/azure/utils.py"


def _reading(
    name: str,
    title: str,
    reason: str,
    sources: tuple[str, ...],
    script_for: ScriptFactory,
    demands: tuple[Demand, ...],
    *,
    is_rare: bool = False,
    on_spot: bool = False,
) -> tuple[Case, ...]:
    case = Case(
        id=f"reading-{name}",
        title=title,
        reason=reason,
        sources=sources,
        profiles=OBSERVED,
        severity=Severity.LOSES_WORK,
        is_rare=is_rare,
        script=script_for("Reboot"),
        demands=demands,
    )
    return (case, preempt_variant(case, script_for("Preempt"))) if on_spot else (case,)


def _then_a_real_event(answer: answers.SpoiledAnswer) -> Script:
    """Publish an event that the substitute makes unreadable, withdraw it, and then publish a correct one."""

    async def script(stage: Stage) -> None:
        await begin(stage)
        stage.substitute(answer)
        odd = await stage.publish("Freeze", notice_s=_LONG_NOTICE_S)
        await stage.until_polled(times=2, within_s=12.0)
        await stage.withdraw(odd)
        stage.substitute(None)
        event = await stage.publish("Reboot", notice_s=NOTICE_S)
        await stage.until_started(event, within_s=NOTICE_S + 5.0)
        await stage.wait(SETTLE_S)

    return script


async def _incarnation_falls(stage: Stage) -> None:
    await begin(stage)
    stage.substitute(answers.approval_refused(503))
    earlier = await stage.publish("Freeze", notice_s=_LONG_NOTICE_S)
    await stage.until_delivered(earlier, within_s=10.0)
    await stage.withdraw(earlier)
    await stage.until_polled(times=2, within_s=12.0)
    stage.substitute(answers.incarnation_reset())
    event = await stage.publish("Reboot", notice_s=NOTICE_S)
    await stage.until_started(event, within_s=NOTICE_S + 5.0)
    stage.substitute(None)
    await stage.wait(SETTLE_S)


async def _listed_until_start(stage: Stage) -> None:
    """Accept approvals without effect, so that the event stays listed until NotBefore."""
    await begin(stage)
    stage.substitute(answers.status(200, b"", concerns=answers.Concerns.APPROVALS))
    event = await stage.publish("Reboot", notice_s=NOTICE_S)
    await stage.until_started(event, within_s=NOTICE_S + 5.0)
    stage.substitute(None)
    await stage.wait(SETTLE_S)


async def _older_document_between(stage: Stage) -> None:
    await begin(stage)
    stage.substitute(answers.approval_refused(503))
    event = await stage.publish("Reboot", notice_s=NOTICE_S + 5.0)
    await stage.until_delivered(event, within_s=12.0)
    await stage.wait(2.0)
    stage.substitute(answers.older_document())
    await stage.wait(3.0)
    stage.substitute(answers.approval_refused(503))
    await stage.until_started(event, within_s=NOTICE_S + 10.0)
    stage.substitute(None)
    await stage.wait(SETTLE_S)


_UNREADABLE = (
    reacted(1, already_counts=True).with_remedy(remedies.SKIP_UNUSABLE_EVENTS),
    noticed(1),
    does_not_exit(),
    still_polls(),
)

CASES: tuple[Case, ...] = (
    *_reading(
        "empty-body",
        "Polls are answered with 200 and an empty body for six seconds.",
        "Three independent clients met this on real nodes. A handler must not stop, and must not take it for a "
        "document without events.",
        ("maksim-paskal/aks-node-termination-handler#70", "https://github.com/ledgerscope/Azure.ScheduledEvents"),
        announce_after(answers.empty_body),
        ENDURES,
        on_spot=True,
    ),
    *_reading(
        "empty-object",
        "Polls are answered with an empty JSON object for six seconds.",
        "A client notes that documents sometimes have no Events. A handler that does not check for the key stops.",
        (_DASK_PLUGIN,),
        announce_after(answers.empty_object),
        ENDURES,
        is_rare=True,
    ),
    *_reading(
        "html",
        "Polls are answered with 200 and an HTML page for six seconds.",
        "A web proxy between VM and service answers with its own page and status 200.",
        ("SUSE/susecloud-repocheck#22", "signalfx/signalfx-agent#1625"),
        announce_after(answers.html_page),
        ENDURES,
        is_rare=True,
        on_spot=True,
    ),
    *_reading(
        "invalid-json",
        "Polls are answered with half a document for six seconds.",
        "A parser's error must end one poll, not the handler. One agent sent no more requests after its first error.",
        ("microsoft/ApplicationInsights-Java#1778",),
        announce_after(answers.invalid_json),
        ENDURES,
        is_rare=True,
    ),
    *_reading(
        "byte-order-mark",
        "Documents begin with a byte order mark for six seconds.",
        "JSON must not begin with one, and parsers differ: some ignore it, others fail. The handler must still run "
        "when documents are correct again.",
        ("https://www.rfc-editor.org/rfc/rfc8259#section-8.1",),
        announce_after(answers.byte_order_mark),
        ENDURES,
        is_rare=True,
    ),
    *_reading(
        "empty-date",
        "NotBefore is an empty string, as in every Started event.",
        "A date parser that does not expect it fails at every poll, for as long as the event is listed.",
        ("aws/aws-node-termination-handler#315", "aws/aws-node-termination-handler#363"),
        announce_with(answers.empty_not_before),
        understands(remedies.READ_ANY_DATE),
        is_rare=True,
        on_spot=True,
    ),
    *_reading(
        "iso-date",
        "NotBefore is an ISO date instead of an RFC 1123 date.",
        "Old documentation and Microsoft's mock server write ISO dates, the service RFC 1123. A handler that cannot "
        "read the date must still act.",
        (
            "MicrosoftDocs/azure-docs#5659",
            "https://github.com/Azure-Samples/scheduled-events-mock-server",
            "aws/aws-node-termination-handler#147",
        ),
        announce_with(answers.iso_dates),
        understands(remedies.READ_ANY_DATE),
        is_rare=True,
    ),
    *_reading(
        "wrong-weekday",
        "The weekday in NotBefore does not belong to its date.",
        "The documentation itself shows `Mon, 11 Apr 2026`, which is a Saturday. Some date parsers refuse such a date, "
        "and the handler then ignores the event.",
        (DOCUMENTATION, "https://www.rfc-editor.org/rfc/rfc5322#section-3.3"),
        announce_with(answers.wrong_weekdays),
        understands(remedies.READ_ANY_DATE),
        is_rare=True,
    ),
    *_reading(
        "unknown-keys",
        "Documents and events have keys that the documentation does not name.",
        "Every api-version added keys. Code that passes all keys on as arguments stops at the first new one.",
        ("https://github.com/microsoft/ai4s-jobq", DOCUMENTATION),
        announce_with(answers.unknown_keys),
        understands(remedies.READ_KNOWN_KEYS),
        on_spot=True,
    ),
    *_reading(
        "missing-fields",
        "Events have no Description, EventSource or DurationInSeconds.",
        "Older api-versions do not have these keys, and hosts may know older ones only. The documentation's own sample "
        "stopped with an error.",
        ("MicrosoftDocs/azure-docs#58422", "MicrosoftDocs/azure-docs#46771"),
        announce_with(lambda: answers.without_fields("Description", "EventSource", "DurationInSeconds")),
        understands(remedies.READ_KNOWN_KEYS),
        is_rare=True,
        on_spot=True,
    ),
    *_reading(
        "missing-resources",
        "An event without Resources is listed, and then a correct one.",
        "One unusable event must not hide the next one.",
        (DOCUMENTATION,),
        lambda kind: _then_a_real_event(answers.without_fields("Resources")),
        _UNREADABLE,
        is_rare=True,
    ),
    *_reading(
        "unknown-kind",
        "An event of a kind that no documentation names is listed, and then a reboot.",
        "New kinds come with new versions, as Preempt and Terminate did. A handler must keep running and polling.",
        (DOCUMENTATION, "Azure/karpenter-provider-azure#1769"),
        lambda kind: _then_a_real_event(answers.unknown_event_type()),
        _UNREADABLE,
    ),
    *_reading(
        "incarnation-reset",
        "DocumentIncarnation falls back to 1, and the document has a new event.",
        "The number starts again after a day without polls. A handler that reads only documents with a higher number "
        "than before sees nothing from then on.",
        ("https://github.com/ClusterLabs/resource-agents/blob/main/heartbeat/azure-events-az.in",),
        lambda kind: _incarnation_falls,
        (
            noticed(1),
            reacted(1, already_counts=True, despite_disturbance=True).with_remedy(remedies.READ_EVERY_DOCUMENT),
            does_not_exit(),
        ),
        is_rare=True,
    ),
    *_reading(
        "older-document",
        "After the event was seen, older documents without it arrive for three seconds.",
        "A log that Microsoft published shows new documents about a minute apart, so a VM may get an old one. When an "
        "event disappears and is listed again, the VM must be ready when it starts.",
        ("https://github.com/Azure/vm-scheduled-events",),
        lambda kind: _older_document_between,
        (reacted(), prepared_at_start(), does_not_exit()),
        is_rare=True,
    ),
    *_reading(
        "version-400",
        "The service refuses every api-version with 400 for six seconds.",
        "A host did not yet know the documented version. The handler must keep asking.",
        ("MicrosoftDocs/azure-docs#46771",),
        announce_after(answers.version_refused),
        ENDURES,
        is_rare=True,
    ),
    *_reading(
        "version-404",
        "The service answers every api-version with 404 for six seconds.",
        "Hosts answered 404 for a documented version that they did not know. A handler that concludes from a 404 that "
        "it does not run on Azure stops for good.",
        ("MicrosoftDocs/azure-docs#47992", "hashicorp/terraform-azurerm-consul#38"),
        announce_after(answers.version_unknown),
        ENDURES,
        is_rare=True,
    ),
    Case(
        id="reading-unchanged",
        title="The same event is listed with every poll until it starts.",
        reason="A handler that remembers nothing prepares and approves again at every poll: one drained its node every "
        "five seconds.",
        sources=(
            "maksim-paskal/aks-node-termination-handler#51",
            "aws/aws-node-termination-handler#315",
            "https://github.com/giantswarm/azure-scheduled-events",
        ),
        profiles=MAINTENANCE,
        severity=Severity.NOISE,
        script=_listed_until_start,
        demands=(prepared_at_most_once(until_start=True), approved_at_most(), does_not_exit()),
    ),
    Case(
        id="reading-repeated-event",
        title="The document lists the same event twice.",
        reason="A handler counted the same event a hundred times. One EventId is one event.",
        sources=("maksim-paskal/aks-node-termination-handler#51", "maksim-paskal/aks-node-termination-handler#53"),
        profiles=MAINTENANCE,
        severity=Severity.NOISE,
        is_rare=True,
        script=announce_with(answers.repeated_events)("Reboot"),
        demands=(prepared_at_most_once(until_start=True), approved_at_most(), does_not_exit()),
    ),
)
