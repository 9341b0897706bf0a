"""Every error response byte for byte (spec §10), and the requests that pass each check (spec §2)."""

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


def read(
    target: str = EVENTS,
    *more: tuple[str, str],
    method: str = "GET",
    known: bool = True,
    headers: tuple[tuple[str, str], ...] = METADATA,
    body: bytes = b"",
    rules: EndpointRules | None = None,
) -> MetadataRequest | HttpResponse:
    request = HttpRequest(method=method, target=target, headers=(*headers, *more), body=body)
    return exchange.read_request(request, is_known_caller=known, rules=rules or EndpointRules())


def assert_refused(response: MetadataRequest | HttpResponse, status: int, body: bytes) -> None:
    assert response == HttpResponse(status=status, headers=JSON, body=body)


def test_an_unknown_caller_gets_404() -> None:
    """Spec §10."""
    assert_refused(read(known=False), 404, NOT_FOUND)
    assert_refused(read("/anything", known=False, method="PUT"), 404, NOT_FOUND)


def test_a_head_of_an_unknown_caller_gets_no_body() -> None:
    response = read(known=False, method="HEAD")
    assert response == HttpResponse(status=404, headers=JSON, body=NOT_FOUND, head_only=True)


@pytest.mark.parametrize(
    ("method", "length"),
    [("PUT", 322), ("HEAD", 323), ("DELETE", 325), ("PATCH", 324), ("OPTIONS", 326), ("get", 322)],
)
@pytest.mark.parametrize("target", [EVENTS, "/", "*", "/metadata/instance?api-version=2021-02-01"])
def test_other_methods_than_get_and_post_get_an_xml_error(method: str, length: int, target: str) -> None:
    """Spec §10: 322 bytes for PUT, 323 for HEAD, which gets its headers only."""
    response = read(target, method=method, headers=())
    assert isinstance(response, HttpResponse)
    assert response.status == 400
    assert response.headers == (("Content-Type", "text/xml; charset=utf-8"),)
    assert response.body == WRONG_VERB % method.encode()
    assert len(response.body) == length
    assert response.head_only is (method == "HEAD")


def test_the_method_is_escaped_in_the_xml_error() -> None:
    response = read(method="<b>&\ud800")
    assert isinstance(response, HttpResponse)
    assert b"'&lt;b&gt;&amp;?' is not" in response.body


@pytest.mark.parametrize(
    "target",
    [
        "",
        "/",
        "*",
        "host:80",
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
    assert_refused(read(target + "?api-version=2020-07-01", method=method), 404, NOT_FOUND)


@pytest.mark.parametrize("target", ["/metadata", "/metadata/", "/Metadata", "/metadata?api-version=2020-07-01"])
def test_the_root_without_a_version_of_the_instance_lists_the_newest_three(target: str) -> None:
    """Spec §10, as captured from Azure at `GET /metadata`."""
    assert_refused(read(target), 400, NO_INSTANCE_VERSION)
    assert_refused(read(target, headers=()), 400, NO_HEADER)


def test_the_root_with_a_version_of_the_instance_is_not_found() -> None:
    assert_refused(read("/metadata/?api-version=2025-04-07"), 404, NOT_FOUND)


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
def test_the_path_is_matched_without_case_and_decoded(path: str) -> None:
    """Spec §2.1; a client behind a proxy sends an absolute URL."""
    assert read(path + "?api-version=2020-07-01") == PollRequest(version="2020-07-01")


@pytest.mark.parametrize("path", ["", "versions", "instance", "instance/compute/name"])
def test_a_post_to_a_read_only_path_is_an_unsupported_method(path: str) -> None:
    response = read(f"/metadata/{path}?api-version=2021-02-01", method="POST", headers=())
    assert isinstance(response, HttpResponse)
    assert (response.status, response.body) == (400, WRONG_VERB % b"POST")


@pytest.mark.parametrize("value", ["null", "http://evil.example", ""])
def test_a_request_with_an_origin_header_is_refused(value: str) -> None:
    """Spec §2.2."""
    assert_refused(read(EVENTS, ("origin", value)), 400, b'{ "error": "Bad request. Origin header not allowed" }')


@pytest.mark.parametrize("target", [EVENTS, "/metadata/scheduledevents?api-version=2017-03-01", "/metadata/versions"])
@pytest.mark.parametrize("value", ["cross-site", "same-site", " Cross-Site "])
def test_a_request_of_a_web_page_of_another_origin_is_refused(target: str, value: str) -> None:
    """Spec §2.2: a page can send a GET without Origin, to the preview without a header of its own."""
    body = b'{ "error": "Bad request. Cross-site request not allowed" }'
    assert_refused(read(target, ("sec-fetch-site", value)), 400, body)


@pytest.mark.parametrize(
    "header", [("sec-fetch-site", "none"), ("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors")]
)
def test_a_request_of_a_person_or_of_nodes_fetch_is_served(header: tuple[str, str]) -> None:
    """Spec §2.2."""
    assert read(EVENTS, header) == PollRequest(version="2020-07-01")


@pytest.mark.parametrize("value", ["10.0.0.1", ""])
def test_a_forwarded_request_is_refused_even_if_the_header_is_empty(value: str) -> None:
    """Spec §2.3."""
    body = b'{ "error": "Bad request. X-Forwarded-For header not allowed" }'
    assert_refused(read(EVENTS, ("x-forwarded-for", value)), 400, body)


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
def test_a_duplicate_parameter_is_refused_by_name_without_case(query: str, name: str) -> None:
    """Spec §2.3."""
    body = f'{{ "error": "Bad request. Duplicate query parameter: {name}" }}'.encode()
    assert_refused(read(f"/metadata/scheduledevents?{query}"), 400, body)


def test_empty_parameters_of_a_query_are_ignored() -> None:
    assert read("/metadata/scheduledevents?&&api-version=2020-07-01&&") == PollRequest(version="2020-07-01")


@pytest.mark.parametrize("value", ["true", "True", "TRUE", " true "])
def test_the_metadata_header_is_true_in_any_case(value: str) -> None:
    """Spec §2.2."""
    assert read(headers=(("metadata", value),)) == PollRequest(version="2020-07-01")


@pytest.mark.parametrize("values", [(), ("false",), ("",), ("1",), ("true, true",), ("true", "false")])
@pytest.mark.parametrize("version", [*VERSIONS[1:], "2018-01-01", "latest", ""])
def test_a_request_without_the_header_gets_400_since_2017_08_01(values: tuple[str, ...], version: str) -> None:
    """Spec §2.2."""
    headers = tuple(("metadata", value) for value in values)
    assert_refused(read(f"/metadata/scheduledevents?api-version={version}", headers=headers), 400, NO_HEADER)
    assert len(NO_HEADER) == 68


def test_the_metadata_header_may_be_repeated_if_all_values_are_true() -> None:
    assert read(headers=METADATA * 2) == PollRequest(version="2020-07-01")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_preview_requires_the_header_only_if_a_setting_says_so(method: str) -> None:
    """Spec §2.2."""
    target, body = "/metadata/scheduledevents?api-version=2017-03-01", b'{"StartRequests":[]}'
    assert isinstance(read(target, method=method, headers=(), body=body), PollRequest | ApprovalRequest)
    strict = EndpointRules(header_always=True)
    assert_refused(read(target, method=method, headers=(), body=body, rules=strict), 400, NO_HEADER)


@pytest.mark.parametrize("path", ["instance", "versions"])
def test_instance_metadata_requires_the_header_in_every_version(path: str) -> None:
    """Spec §2.6."""
    assert_refused(read(f"/metadata/{path}?api-version=2017-03-01", headers=()), 400, NO_HEADER)


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
def test_the_error_for_a_missing_or_unknown_version_lists_the_newest_three(target: str, method: str) -> None:
    """Spec §2.4, §10."""
    assert_refused(read(target, method=method), 400, NO_VERSION)


def test_the_error_lists_the_newest_versions_of_the_vms_location() -> None:
    """Spec §3: a setting limits the versions that a location serves."""
    body = NO_VERSION.replace(b'"2020-07-01","2019-08-01","2019-04-01"', b'"2017-08-01","2017-03-01"')
    assert_refused(read(rules=EndpointRules(versions=VERSIONS[:2])), 400, body)


@pytest.mark.parametrize("target", ["/metadata/instance", "/metadata/instance/compute?api-version=2020-07-01"])
def test_the_error_for_instance_metadata_lists_instance_versions(target: str) -> None:
    assert_refused(read(target), 400, NO_INSTANCE_VERSION)


def test_unknown_versions_can_be_served_leniently() -> None:
    lenient = EndpointRules(unknown_version=UnknownVersionPolicy.LENIENT)
    assert read("/metadata/scheduledevents?api-version=2019-12-31", rules=lenient) == PollRequest(version="2019-08-01")
    instance = read("/metadata/instance?api-version=2025-11-11", rules=lenient)
    assert instance == InstanceRequest(version="2025-04-07")
    assert_refused(read("/metadata/scheduledevents?api-version=2016-01-01", rules=lenient), 400, NO_VERSION)


@pytest.mark.parametrize("target", ["scheduledevents", "scheduledevents?api-version=latest", "latest/scheduledevents"])
@pytest.mark.parametrize("policy", UnknownVersionPolicy)
def test_no_policy_serves_latest_or_a_missing_version(target: str, policy: UnknownVersionPolicy) -> None:
    """Spec §2.4."""
    assert_refused(read(f"/metadata/{target}", rules=EndpointRules(unknown_version=policy)), 400, NO_VERSION)


def test_unknown_versions_can_get_404() -> None:
    body = b'{ "error": "Not found. Invalid version requested" }'
    rules = EndpointRules(unknown_version=UnknownVersionPolicy.NOT_FOUND)
    assert_refused(read("/metadata/scheduledevents?api-version=2018-01-01", rules=rules), 404, body)
    assert len(body) == 51


def test_metadata_versions_needs_no_api_version() -> None:
    """Spec §2.6."""
    response = read("/metadata/versions")
    assert isinstance(response, HttpResponse)
    assert (response.status, response.headers) == (200, JSON)
    listed = ",".join(f'"{version}"' for version in INSTANCE_VERSIONS)
    assert response.body == f'{{"apiVersions":[{listed}]}}'.encode()


@pytest.mark.parametrize(
    ("response", "status", "body"),
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
def test_the_errors_that_need_state_have_these_bytes(response: HttpResponse, status: int, body: bytes) -> None:
    assert_refused(response, status, body)


def test_an_unknown_event_id_is_escaped_in_the_error() -> None:
    body = b'{ "error": "Bad request. Unknown EventId: \\"}\\ud800\\u0000" }'
    assert_refused(responses.unknown_event('"}\ud800\0'), 400, body)


def test_a_rate_limited_caller_gets_34_bytes_of_text() -> None:
    """Spec §8.5, §10."""
    response = responses.too_many_requests()
    assert (response.status, response.body) == (429, b"Throttle Result: Too Many Requests")
    assert response.headers == (("Content-Type", "text/plain; charset=utf-8"),)
    assert len(response.body) == 34


@pytest.mark.parametrize("retry_after_s", [5, 60])
def test_the_503_of_an_unavailable_store_has_retry_after(retry_after_s: int) -> None:
    response = responses.service_unavailable(retry_after_s)
    assert response.status == 503
    assert response.headers == (*JSON, ("Retry-After", str(retry_after_s)))
    assert str(retry_after_s).encode() in response.body
