"""Of several things wrong with a request, the first in the order of spec §2.7 is the one that is told."""

from itertools import product

import pytest

from forewarn.protocol.exchange import ApprovalRequest, EndpointRules, PollRequest, read_request
from forewarn.protocol.http_message import HttpRequest, HttpResponse

# In the order of the checks: what is wrong, and what its answer says.
DEFECTS = {
    "unknown caller": (404, b'{ "error": "Not found" }'),
    "verb": (400, b"InvalidHttpVerb"),
    "path": (404, b'{ "error": "Not found" }'),
    "Origin": (400, b"Origin header not allowed"),
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
    ("X-Forwarded-For", ("x-forwarded-for", "10.0.0.1")),
]


def flawed(defects: frozenset[str], *, version: str) -> HttpRequest:
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
def test_every_subset_of_defects_gets_the_answer_of_the_first(version: str) -> None:
    assert len(SUBSETS) == 512
    for defects in SUBSETS:
        request = flawed(defects, version=version)
        answer = read_request(request, known="unknown caller" not in defects, rules=EndpointRules())
        first = next((name for name in DEFECTS if name in defects), None)
        if first is None:
            assert answer == ApprovalRequest(version=version, event_ids=())
            continue
        status, text = DEFECTS[first]
        assert isinstance(answer, HttpResponse), sorted(defects)
        assert answer.status == status, sorted(defects)
        assert text in answer.body, sorted(defects)


def test_in_the_preview_a_missing_header_is_no_defect() -> None:
    """Spec §2.2, §2.7: every other check keeps its place."""
    for defects in SUBSETS:
        if "api-version" in defects:
            continue
        known = "unknown caller" not in defects
        spared = read_request(flawed(defects, version="2017-03-01"), known=known, rules=EndpointRules())
        assert spared == read_request(
            flawed(defects - {"Metadata"}, version="2017-03-01"), known=known, rules=EndpointRules()
        )


def test_the_setting_gives_the_header_its_place_in_the_preview_too() -> None:
    for defects in SUBSETS:
        known = "unknown caller" not in defects
        preview = read_request(
            flawed(defects, version="2017-03-01"), known=known, rules=EndpointRules(header_always=True)
        )
        later = read_request(flawed(defects, version="2017-08-01"), known=known, rules=EndpointRules())
        if isinstance(later, HttpResponse):
            assert preview == later
        else:
            assert preview == ApprovalRequest(version="2017-03-01", event_ids=())


def test_a_get_has_no_body_to_be_wrong() -> None:
    request = HttpRequest(
        method="GET",
        target="/metadata/scheduledevents?api-version=2020-07-01",
        headers=(("metadata", "true"),),
        body=b"junk",
    )
    assert read_request(request, known=True, rules=EndpointRules()) == PollRequest(version="2020-07-01")
