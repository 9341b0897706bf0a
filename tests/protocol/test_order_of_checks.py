"""A request with several defects gets the error of the first check in the order of spec §2.7."""

from itertools import product

import pytest

from forewarn.protocol.exchange import ApprovalRequest, EndpointRules, PollRequest, read_request
from forewarn.protocol.http_message import HttpRequest, HttpResponse

# In the order of the checks: the defect, and the status and text of its response.
DEFECTS = {
    "unknown caller": (404, b'{ "error": "Not found" }'),
    "verb": (400, b"InvalidHttpVerb"),
    "path": (404, b'{ "error": "Not found" }'),
    "Origin": (400, b"Origin header not allowed"),
    "Sec-Fetch-Site": (400, b"Cross-site request not allowed"),
    "X-Forwarded-For": (400, b"X-Forwarded-For header not allowed"),
    "repeated parameter": (400, b"Duplicate query parameter: a"),
    "Metadata": (400, b"Required metadata header not specified"),
    "api-version": (400, b"newest-versions"),
    "body": (400, b"StartRequests is missing"),
}
SUBSETS = [
    frozenset(name for name, wrong in zip(DEFECTS, chosen, strict=True) if wrong)
    for chosen in product([False, True], repeat=len(DEFECTS))
]
HEADERS = [
    ("Origin", ("origin", "http://evil.example")),
    ("Sec-Fetch-Site", ("sec-fetch-site", "cross-site")),
    ("X-Forwarded-For", ("x-forwarded-for", "10.0.0.1")),
]


def request_with(defects: frozenset[str], *, version: str) -> HttpRequest:
    path = "/metadata/nothing" if "path" in defects else "/metadata/scheduledevents"
    query = f"api-version={'1999-01-01' if 'api-version' in defects else version}"
    headers = [header for name, header in HEADERS if name in defects]
    return HttpRequest(
        method="PUT" if "verb" in defects else "POST",
        target=f"{path}?{query}{'&a=1&a=2' if 'repeated parameter' in defects else ''}",
        headers=(*headers, ("metadata", "false" if "Metadata" in defects else "true")),
        body=b"{}" if "body" in defects else b'{"StartRequests":[]}',
    )


@pytest.mark.parametrize("version", ["2017-08-01", "2020-07-01"])
def test_every_subset_of_defects_gets_the_error_of_the_first_check(version: str) -> None:
    assert len(SUBSETS) == 1024
    for defects in SUBSETS:
        request = request_with(defects, version=version)
        response = read_request(request, is_known_caller="unknown caller" not in defects, rules=EndpointRules())
        first = next((name for name in DEFECTS if name in defects), None)
        if first is None:
            assert response == ApprovalRequest(version=version, event_ids=())
            continue
        status, text = DEFECTS[first]
        assert isinstance(response, HttpResponse), sorted(defects)
        assert response.status == status, sorted(defects)
        assert text in response.body, sorted(defects)


def test_the_preview_does_not_check_the_header() -> None:
    """Spec §2.2, §2.7: the other checks keep their order."""
    for defects in SUBSETS:
        if "api-version" in defects:
            continue
        is_known = "unknown caller" not in defects
        without_header = read_request(
            request_with(defects, version="2017-03-01"), is_known_caller=is_known, rules=EndpointRules()
        )
        assert without_header == read_request(
            request_with(defects - {"Metadata"}, version="2017-03-01"), is_known_caller=is_known, rules=EndpointRules()
        )


def test_the_setting_header_always_adds_the_header_check_to_the_preview() -> None:
    for defects in SUBSETS:
        is_known = "unknown caller" not in defects
        preview = read_request(
            request_with(defects, version="2017-03-01"),
            is_known_caller=is_known,
            rules=EndpointRules(header_always=True),
        )
        later = read_request(
            request_with(defects, version="2017-08-01"), is_known_caller=is_known, rules=EndpointRules()
        )
        if isinstance(later, HttpResponse):
            assert preview == later
        else:
            assert preview == ApprovalRequest(version="2017-03-01", event_ids=())


def test_the_body_of_a_get_is_ignored() -> None:
    request = HttpRequest(
        method="GET",
        target="/metadata/scheduledevents?api-version=2020-07-01",
        headers=(("metadata", "true"),),
        body=b"junk",
    )
    assert read_request(request, is_known_caller=True, rules=EndpointRules()) == PollRequest(version="2020-07-01")
