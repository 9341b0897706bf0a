"""Responses to VMs over real sockets (spec §2, §4.3, §5, §10)."""

from __future__ import annotations

import pytest

from forewarn.metadata import Limits, PublishedScope
from forewarn.protocol.document import Document, Kind
from forewarn.protocol.exchange import EndpointRules
from tests.metadata.conftest import MakeNotice, MakeRequest, RunScenario, World

POLL = "/metadata/scheduledevents?api-version=2020-07-01"
START = b'{"StartRequests":[{"EventId":"event-1"}]}'


def test_a_poll_gets_the_document_of_the_callers_scope(run_scenario: RunScenario, notice: MakeNotice) -> None:
    """Spec §2.1, §4.1, §7.2: all VMs of a scope see the whole document, and no others do."""

    async def scenario(world: World) -> None:
        world.backend.show("pair", notice())
        for vm in ("a", "b"):
            reply = await world.ask(vm=vm)
            assert reply.status == 200
            assert reply.body.startswith(b'{"DocumentIncarnation":2,"Events":[{"EventId":"EVENT-1"')
            assert reply.headers["content-type"] == "application/json; charset=utf-8"
            assert reply.headers["content-length"] == str(len(reply.body))
        assert (await world.ask(vm="other")).body == b'{"DocumentIncarnation":1,"Events":[]}'

    run_scenario(scenario)


def test_the_date_header_carries_lab_time(run_scenario: RunScenario) -> None:
    """Spec §12: guests compute the time left as NotBefore − Date."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        world.backend.at = 1_474_309_787.9
        assert (await client.ask()).headers["date"] == "Mon, 19 Sep 2016 18:29:47 GMT"
        world.backend.at += 3600
        assert (await client.ask()).headers["date"] == "Mon, 19 Sep 2016 19:29:47 GMT"

    run_scenario(scenario)


def test_one_etag_never_names_two_bodies(run_scenario: RunScenario, notice: MakeNotice) -> None:
    """Spec §4.3: a store that lost writes shows another document under the same numbers, and no VM may miss it."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        before = world.documents.view("a")
        world.backend.show("pair", notice())
        tag = (await client.ask()).headers["etag"]
        assert before is not None
        for events in ((), (notice("EVENT-2", kind=Kind.REDEPLOY),)):
            document = Document(incarnation=2, notices=events)
            shown = PublishedScope(scope_id="pair", enabled=True, epoch=1, document=document, vms={"a": before.facts})
            world.documents.publish(shown)
            for prefer in ("", "wait=300"):
                reply = await client.ask(If_None_Match=tag, Prefer=prefer)
                assert (reply.status, reply.headers["etag"] == tag) == (200, False)

    run_scenario(scenario)


def test_a_known_etag_gets_304_with_no_body_and_junk_gets_200(run_scenario: RunScenario, notice: MakeNotice) -> None:
    """Spec §4.3."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        tag = (await client.ask()).headers["etag"]
        same = await client.ask(If_None_Match=tag)
        assert (same.status, same.body) == (304, b"")
        assert same.headers["etag"] == tag
        assert "content-length" not in same.headers
        assert (await client.ask(If_None_Match="junk")).status == 200
        world.backend.show("pair", notice())
        assert (await client.ask(If_None_Match=tag)).status == 200

    run_scenario(scenario)


def test_an_unknown_caller_gets_404_for_every_path_and_is_disconnected(run_scenario: RunScenario) -> None:
    """Spec §2.7, §10: it learns nothing, and its next connection may be identified as a VM."""

    async def scenario(world: World) -> None:
        for target in (POLL, "/", "/metadata/instance?api-version=2021-02-01", "/metadata/versions"):
            client = await world.connect("unknown")
            reply = await client.ask(target)
            assert (reply.status, reply.body) == (404, b'{ "error": "Not found" }')
            assert reply.headers["connection"] == "close"
            assert await client.is_closed()

    run_scenario(scenario)


def test_a_vm_that_was_removed_is_unknown_on_its_open_connection_too(run_scenario: RunScenario) -> None:
    """Spec §10, first row."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        assert (await client.ask()).status == 200
        world.backend.drop_scope("pair")
        assert (await client.ask()).status == 404

    run_scenario(scenario)


def test_a_vm_reads_its_own_name_and_the_versions(run_scenario: RunScenario) -> None:
    """Spec §2.6."""

    async def scenario(world: World) -> None:
        client = await world.connect("b")
        name = await client.ask("/metadata/instance/compute/name?api-version=2021-02-01&format=text")
        assert (name.status, name.body) == (200, b"b")
        assert (await client.ask("/metadata/versions")).status == 200

    run_scenario(scenario)


def test_a_location_serves_only_its_configured_versions(run_scenario: RunScenario) -> None:
    """Spec §3: real regions introduce versions at different times."""

    def rules(location: str) -> EndpointRules:
        return EndpointRules(versions=("2017-11-01",)) if location == "northeurope" else EndpointRules()

    async def scenario(world: World) -> None:
        assert (await world.ask(vm="a")).status == 200
        lagging = await world.ask(vm="other")
        assert lagging.status == 400
        assert b'"newest-versions":["2017-11-01"]' in lagging.body

    run_scenario(scenario, rules=rules)


def test_an_approval_is_answered_after_it_is_durable(
    run_scenario: RunScenario, notice: MakeNotice, request_bytes: MakeRequest
) -> None:
    """Spec §5.2, §5.3: 200 without a body, after the store has it."""

    async def scenario(world: World) -> None:
        world.backend.show("pair", notice())
        world.backend.is_open.clear()
        client = await world.connect("b")
        client.send(request_bytes(method="POST", body=START))
        await world.until(lambda: world.backend.waiting == 1)
        assert world.server.counters.responses_by_status[200] == 0
        world.backend.is_open.set()
        reply = await client.reply()
        assert (reply.status, reply.body, reply.headers["content-length"]) == (200, b"", "0")
        assert world.backend.approved == [("b", ("EVENT-1",))]

    run_scenario(scenario)


def test_an_approval_of_another_scopes_event_is_refused_by_name(run_scenario: RunScenario, notice: MakeNotice) -> None:
    """Spec §5.2, §7.4, §10."""

    async def scenario(world: World) -> None:
        world.backend.show("pair", notice())
        reply = await world.ask(vm="other", method="POST", body=START)
        assert reply.status == 400
        assert reply.body == b'{ "error": "Bad request. Unknown EventId: EVENT-1" }'
        assert world.backend.approved == []

    run_scenario(scenario)


def test_an_approval_is_stored_even_if_the_client_disconnects(
    run_scenario: RunScenario, notice: MakeNotice, request_bytes: MakeRequest
) -> None:
    """Spec §5.3: the request was complete."""

    async def scenario(world: World) -> None:
        world.backend.show("pair", notice())
        world.backend.is_open.clear()
        client = await world.connect()
        client.send(request_bytes(method="POST", body=START))
        await world.until(lambda: world.backend.waiting == 1)
        client.reset()
        await world.until(lambda: world.server.connection_count == 0)
        world.backend.is_open.set()
        await world.until(lambda: world.backend.approved == [("a", ("EVENT-1",))])

    run_scenario(scenario)


def test_without_the_store_a_post_gets_503_and_polls_are_still_answered(
    run_scenario: RunScenario, notice: MakeNotice
) -> None:
    """Spec §10, last but one row."""

    async def scenario(world: World) -> None:
        world.backend.show("pair", notice())
        world.backend.is_unavailable = True
        client = await world.connect()
        refused = await client.ask(method="POST", body=START)
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) > 0
        assert (await client.ask()).status == 200
        world.backend.is_unavailable = False
        assert (await client.ask(method="POST", body=START)).status == 200

    run_scenario(scenario)


def test_the_rate_limit_applies_to_each_vm_separately(run_scenario: RunScenario) -> None:
    """Spec §8.5, §10."""

    async def scenario(world: World) -> None:
        client = await world.connect("a")
        assert (await client.ask()).status == 200
        throttled = await client.ask()
        assert (throttled.status, throttled.body) == (429, b"Throttle Result: Too Many Requests")
        assert (await world.ask(vm="b")).status == 200

    # So low that the bucket gets no new token during the scenario.
    run_scenario(scenario, limits=Limits(requests_per_s=0.001))


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "BREW", "get"])
def test_an_unsupported_method_gets_azures_xml_error(run_scenario: RunScenario, method: str) -> None:
    """Spec §10, also for methods that no HTTP library knows."""

    async def scenario(world: World) -> None:
        reply = await world.ask(method=method)
        assert reply.status == 400
        assert reply.headers["content-type"] == "text/xml; charset=utf-8"
        assert f"<Details>'{method}' is not a supported verb.</Details>".encode() in reply.body

    run_scenario(scenario)


def test_head_gets_only_the_headers_of_its_error(run_scenario: RunScenario) -> None:
    """Spec §10; 323 is the length that Azure sends."""

    async def scenario(world: World) -> None:
        client = await world.connect()
        reply = await client.ask(method="HEAD")
        assert (reply.status, reply.headers["content-length"]) == (400, "323")
        assert (await client.ask()).status == 200

    run_scenario(scenario)


def test_an_internal_error_is_a_plain_500_and_the_next_request_is_served(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture
) -> None:
    """The response has no traceback; the log has it."""
    errors = [ZeroDivisionError("a secret")]

    def rules(location: str) -> EndpointRules:
        if errors:
            raise errors.pop()
        return EndpointRules()

    async def scenario(world: World) -> None:
        client = await world.connect()
        reply = await client.ask()
        assert (reply.status, reply.body) == (500, b'{ "error": "Internal server error" }')
        assert await client.is_closed()
        assert (await world.ask()).status == 200
        assert "VM 'a'" in caplog.text
        assert "a secret" in caplog.text

    run_scenario(scenario, rules=rules)
