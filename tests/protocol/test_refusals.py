"""Every error of the wire, byte for byte (spec §10), and what each check lets through (spec §2)."""

import pytest

from forewarn.protocol import exchange, responses
from forewarn.protocol.exchange import ApprovalRequest, EndpointRules, InstanceRequest, MetadataRequest, PollRequest
from forewarn.protocol.http_message import HttpRequest, HttpResponse
from forewarn.protocol.versions import INSTANCE_VERSIONS, VERSIONS, UnknownVersionPolicy

JSON = (("Content-Type", "application/json; charset=utf-8"),)
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
METADATA = (("metadata", "true"),)

NOT_FOUND = b'{ "error": "Not found" }'
NO_HEADER = b'{ "error": "Bad request: . Required metadata header not specified" }'
NO_VERSION = (
    b'{"error":"Bad request. api-version is invalid or was not specified in the request. For more information'
    b' refer to aka.ms/azureimds","newest-versions":["2020-07-01","2019-08-01","2019-04-01"]}'
)
NO_INSTANCE_VERSION = NO_VERSION.replace(
    b'"2020-07-01","2019-08-01","2019-04-01"', b'"2025-04-07","2024-07-17","2024-03-15"'
)
WRONG_VERB = b"""<?xml version="1.0" encoding="utf-8"?>
<Error xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:xsd="http://www.w3.org/2001/XMLSchema">
    <Code>InvalidHttpVerb</Code>
    <Message>The HTTP verb specified was not recognized by the server.</Message>
    <Details>'%s' is not a supported verb.</Details>
</Error>"""


def ask(
    target: str = EVENTS,
    *more: tuple[str, str],
    method: str = "GET",
    known: bool = True,
    headers: tuple[tuple[str, str], ...] = METADATA,
    body: bytes = b"",
    rules: EndpointRules | None = None,
) -> MetadataRequest | HttpResponse:
    request = HttpRequest(method=method, target=target, headers=(*headers, *more), body=body)
    return exchange.read_request(request, known=known, rules=rules or EndpointRules())


def refused(answer: MetadataRequest | HttpResponse, status: int, body: bytes) -> None:
    assert answer == HttpResponse(status=status, headers=JSON, body=body)


def test_an_unknown_caller_is_told_nothing() -> None:
    """Spec §10."""
    refused(ask(known=False), 404, NOT_FOUND)
    refused(ask("/anything", known=False, method="PUT"), 404, NOT_FOUND)


def test_an_unknown_callers_head_gets_no_body() -> None:
    answer = ask(known=False, method="HEAD")
    assert answer == HttpResponse(status=404, headers=JSON, body=NOT_FOUND, head_only=True)


@pytest.mark.parametrize(
    ("method", "length"),
    [("PUT", 322), ("HEAD", 323), ("DELETE", 325), ("PATCH", 324), ("OPTIONS", 326), ("get", 322)],
)
@pytest.mark.parametrize("target", [EVENTS, "/", "*", "/metadata/instance?api-version=2021-02-01"])
def test_a_verb_other_than_get_and_post_meets_the_front_ends_xml(method: str, length: int, target: str) -> None:
    """Spec §10: 322 bytes for PUT, 323 for HEAD, which gets its headers only."""
    answer = ask(target, method=method, headers=())
    assert isinstance(answer, HttpResponse)
    assert answer.status == 400
    assert answer.headers == (("Content-Type", "text/xml; charset=utf-8"),)
    assert answer.body == WRONG_VERB % method.encode()
    assert len(answer.body) == length
    assert answer.head_only is (method == "HEAD")


def test_a_verb_cannot_write_xml_of_its_own() -> None:
    answer = ask(method="<b>&\ud800")
    assert isinstance(answer, HttpResponse)
    assert b"'&lt;b&gt;&amp;?' is not" in answer.body


@pytest.mark.parametrize(
    "target",
    [
        "",
        "/",
        "*",
        "host:80",
        "/metadata",
        "/metadata/",
        "/metadata/events",
        "/metadata/2017-03-01/scheduledevents",
        "/metadata/scheduledevents/x",
        "/metadata//scheduledevents",
        "//metadata/scheduledevents",
        "/metadata/scheduledevents//",
        "/metadata%2Fscheduledevents",
        "/metadata/x/../scheduledevents",
        "/metadata/versions/x",
        "/metadata/identity",
        "/metadata/identity/info",
        "/metadata/identity/oauth2",
        "/metadata/identity/oauth2/token/x",
        "metadata/scheduledevents",
        "http://169.254.169.254",
        "ftp://169.254.169.254/metadata/scheduledevents",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_path_is_not_found(target: str, method: str) -> None:
    refused(ask(target + "?api-version=2020-07-01", method=method), 404, NOT_FOUND)


@pytest.mark.parametrize(
    "path",
    [
        "/metadata/scheduledevents",
        "/metadata/scheduledEvents",
        "/METADATA/ScheduledEvents",
        "/metadata/scheduledevents/",
        "/metadata/scheduled%65vents",
        "/%6detadata/scheduledevents",
        "http://169.254.169.254/metadata/scheduledevents",
        "HTTP://anything:8080/metadata/scheduledevents",
        "https://[::1]/metadata/scheduledevents/",
    ],
)
def test_the_path_is_matched_without_case_however_it_is_written(path: str) -> None:
    """Spec §2.1; the whole address is what a client behind a proxy sends."""
    assert ask(path + "?api-version=2020-07-01") == PollRequest(version="2020-07-01")


@pytest.mark.parametrize("path", ["versions", "instance", "instance/compute/name"])
def test_a_post_to_what_can_only_be_read_is_a_wrong_verb(path: str) -> None:
    answer = ask(f"/metadata/{path}?api-version=2021-02-01", method="POST", headers=())
    assert isinstance(answer, HttpResponse)
    assert (answer.status, answer.body) == (400, WRONG_VERB % b"POST")


@pytest.mark.parametrize("value", ["null", "http://evil.example", ""])
def test_a_browser_is_refused(value: str) -> None:
    """Spec §2.2."""
    refused(ask(EVENTS, ("origin", value)), 400, b'{ "error": "Bad request. Origin header not allowed" }')


@pytest.mark.parametrize("value", ["10.0.0.1", ""])
def test_a_forwarded_request_is_refused_even_if_the_header_is_empty(value: str) -> None:
    """Spec §2.3."""
    body = b'{ "error": "Bad request. X-Forwarded-For header not allowed" }'
    refused(ask(EVENTS, ("x-forwarded-for", value)), 400, body)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("api-version=2020-07-01&api-version=2020-07-01", "api-version"),
        ("api-version=2020-07-01&API-Version=2019-01-01", "api-version"),
        ("api-version=2020-07-01&api%2Dversion=2019-01-01", "api-version"),
        ("a=1&b=2&b&api-version=2020-07-01", "b"),
        ("%22=1&%22=2", '\\"'),
        ("=1&=2", ""),
        ("%0a=1&%0A=2", "\\n"),
        ("ä=1&Ä=2", "\\u00e4"),
    ],
)
def test_a_repeated_parameter_is_refused_by_name_compared_without_case(query: str, name: str) -> None:
    """Spec §2.3."""
    body = f'{{ "error": "Bad request. Duplicate query parameter: {name}" }}'.encode()
    refused(ask(f"/metadata/scheduledevents?{query}"), 400, body)


def test_empty_pieces_of_a_query_are_no_parameters() -> None:
    assert ask("/metadata/scheduledevents?&&api-version=2020-07-01&&") == PollRequest(version="2020-07-01")


@pytest.mark.parametrize("value", ["true", "True", "TRUE", " true "])
def test_the_header_says_true_in_any_case(value: str) -> None:
    """Spec §2.2."""
    assert ask(headers=(("metadata", value),)) == PollRequest(version="2020-07-01")


@pytest.mark.parametrize("values", [(), ("false",), ("",), ("1",), ("true, true",), ("true", "false")])
@pytest.mark.parametrize("version", [*VERSIONS[1:], "2018-01-01", "latest", ""])
def test_without_the_header_the_answer_is_400_from_2017_08_01_on(values: tuple[str, ...], version: str) -> None:
    """Spec §2.2."""
    headers = tuple(("metadata", value) for value in values)
    refused(ask(f"/metadata/scheduledevents?api-version={version}", headers=headers), 400, NO_HEADER)
    assert len(NO_HEADER) == 68


def test_the_header_may_be_sent_twice_if_it_says_true_twice() -> None:
    assert ask(headers=METADATA * 2) == PollRequest(version="2020-07-01")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_preview_does_not_ask_for_the_header_unless_it_is_set_to(method: str) -> None:
    """Spec §2.2."""
    target, body = "/metadata/scheduledevents?api-version=2017-03-01", b'{"StartRequests":[]}'
    assert isinstance(ask(target, method=method, headers=(), body=body), PollRequest | ApprovalRequest)
    strict = EndpointRules(header_always=True)
    refused(ask(target, method=method, headers=(), body=body, rules=strict), 400, NO_HEADER)


@pytest.mark.parametrize("path", ["instance", "versions"])
def test_the_instance_asks_for_the_header_at_every_version(path: str) -> None:
    """Spec §2.6."""
    refused(ask(f"/metadata/{path}?api-version=2017-03-01", headers=()), 400, NO_HEADER)


@pytest.mark.parametrize(
    "target",
    [
        "/metadata/scheduledevents",
        "/metadata/scheduledevents?",
        "/metadata/scheduledevents?api-version",
        "/metadata/scheduledevents?api-version=",
        "/metadata/scheduledevents?api-version=2018-01-01",
        "/metadata/scheduledevents?api-version=2020-07-01%20",
        "/metadata/scheduledevents?api-version=latest",
        "/metadata/scheduledevents?api-version={latest}",
        "/metadata/scheduledevents?api-version=%7Blatest%7D",
        "/metadata/latest/scheduledevents",
        "/metadata/LATEST/scheduledevents/",
        "/metadata/{latest}/scheduledevents",
        "/metadata/latest/scheduledevents?api-version=2020-07-01",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_missing_or_unknown_version_is_told_the_three_newest(target: str, method: str) -> None:
    """Spec §2.4, §10."""
    refused(ask(target, method=method), 400, NO_VERSION)


def test_a_location_that_lags_behind_tells_its_own_newest() -> None:
    """Spec §3: a setting narrows the versions that a location serves."""
    body = NO_VERSION.replace(b'"2020-07-01","2019-08-01","2019-04-01"', b'"2017-08-01","2017-03-01"')
    refused(ask(rules=EndpointRules(versions=VERSIONS[:2])), 400, body)


@pytest.mark.parametrize("target", ["/metadata/instance", "/metadata/instance/compute?api-version=2020-07-01"])
def test_the_instance_tells_instance_versions(target: str) -> None:
    refused(ask(target), 400, NO_INSTANCE_VERSION)


def test_unknown_versions_can_be_served_leniently() -> None:
    lenient = EndpointRules(unknown_version=UnknownVersionPolicy.LENIENT)
    assert ask("/metadata/scheduledevents?api-version=2019-12-31", rules=lenient) == PollRequest(version="2019-08-01")
    instance = ask("/metadata/instance?api-version=2025-11-11", rules=lenient)
    assert instance == InstanceRequest(version="2025-04-07")
    refused(ask("/metadata/scheduledevents?api-version=2016-01-01", rules=lenient), 400, NO_VERSION)


@pytest.mark.parametrize("target", ["scheduledevents", "scheduledevents?api-version=latest", "latest/scheduledevents"])
@pytest.mark.parametrize("unknown", UnknownVersionPolicy)
def test_no_setting_brings_latest_or_no_version_back(target: str, unknown: UnknownVersionPolicy) -> None:
    """Spec §2.4."""
    refused(ask(f"/metadata/{target}", rules=EndpointRules(unknown_version=unknown)), 400, NO_VERSION)


def test_unknown_versions_can_be_not_found() -> None:
    body = b'{ "error": "Not found. Invalid version requested" }'
    rules = EndpointRules(unknown_version=UnknownVersionPolicy.NOT_FOUND)
    refused(ask("/metadata/scheduledevents?api-version=2018-01-01", rules=rules), 404, body)
    assert len(body) == 51


def test_the_versions_are_listed_without_a_version() -> None:
    """Spec §2.6."""
    answer = ask("/metadata/versions")
    assert isinstance(answer, HttpResponse)
    assert (answer.status, answer.headers) == (200, JSON)
    listed = ",".join(f'"{version}"' for version in INSTANCE_VERSIONS)
    assert answer.body == f'{{"apiVersions":[{listed}]}}'.encode()


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (responses.unknown_event("ABC"), 400, b'{ "error": "Bad request. Unknown EventId: ABC" }'),
        (responses.malformed_request(), 400, b'{ "error": "Bad request. The request is not HTTP" }'),
        (
            responses.request_timeout(),
            408,
            b'{ "error": "Request timeout. The request was not whole in time" }',
        ),
        (
            responses.body_too_large(),
            413,
            b'{ "error": "Content too large. A body may have at most 65536 bytes" }',
        ),
        (
            responses.header_too_large(),
            431,
            b'{ "error": "Request header fields too large. They may have at most 16384 bytes" }',
        ),
    ],
)
def test_ready_answers(answer: HttpResponse, status: int, body: bytes) -> None:
    refused(answer, status, body)


def test_an_unknown_id_cannot_break_out_of_the_error() -> None:
    body = b'{ "error": "Bad request. Unknown EventId: \\"}\\ud800\\u0000" }'
    refused(responses.unknown_event('"}\ud800\0'), 400, body)


def test_a_throttled_caller_gets_34_bytes_of_text() -> None:
    """Spec §8.5, §10."""
    answer = responses.too_many_requests()
    assert (answer.status, answer.body) == (429, b"Throttle Result: Too Many Requests")
    assert answer.headers == (("Content-Type", "text/plain; charset=utf-8"),)
    assert len(answer.body) == 34


@pytest.mark.parametrize("retry_after_s", [5, 60])
def test_a_store_out_of_reach_says_when_to_retry(retry_after_s: int) -> None:
    answer = responses.service_unavailable(retry_after_s)
    assert answer.status == 503
    assert answer.headers == (*JSON, ("Retry-After", str(retry_after_s)))
    assert str(retry_after_s).encode() in answer.body
