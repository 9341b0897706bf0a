"""The body of an approval: which bodies are accepted, and the errors for the others (spec §5.1, §5.2)."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.protocol.exchange import ApprovalRequest, EndpointRules, MetadataRequest, read_request
from forewarn.protocol.http_message import HttpRequest, HttpResponse
from forewarn.protocol.responses import MAX_BODY_BYTES, approval_accepted

ONE = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
TWO = "4CAEA225-0000-4000-8000-000000000002"


def post(body: bytes, *headers: tuple[str, str], version: str = "2020-07-01") -> MetadataRequest | HttpResponse:
    request = HttpRequest(
        method="POST",
        target=f"/metadata/scheduledevents?api-version={version}",
        headers=(("metadata", "true"), *headers),
        body=body,
    )
    return read_request(request, is_known_caller=True, rules=EndpointRules())


def approval_of(*event_ids: str) -> ApprovalRequest:
    return ApprovalRequest(version="2020-07-01", event_ids=event_ids)


@pytest.mark.parametrize(
    ("body", "event_ids"),
    [
        (f'{{"StartRequests":[{{"EventId":"{ONE}"}}]}}', (ONE,)),
        (f'{{"StartRequests":[{{"EventId":"{ONE}"}},{{"EventId":"{TWO}"}}]}}', (ONE, TWO)),
        (f'{{"StartRequests":[{{"EventId":"{TWO}"}},{{"EventId":"{ONE}"}}]}}', (TWO, ONE)),
        (f'{{"StartRequests":[{{"EventId":"{ONE.lower()}"}},{{"EventId":"{ONE}"}}]}}', (ONE,)),
        (f'{{"StartRequests":[{{"EventId":"{ONE}"}}],"DocumentIncarnation":"5"}}', (ONE,)),
        (f'{{"DocumentIncarnation":5,"StartRequests":[{{"EventId":"{ONE}","x":null}}]}}', (ONE,)),
        (f'{{"DocumentIncarnation":{"9" * 5000},"StartRequests":[{{"EventId":"{ONE}"}}]}}', (ONE,)),
        (f'{{"x":1,"x":2,"StartRequests":[{{"EventId":"{ONE}"}}]}}', (ONE,)),
        (f'{{\n\t"StartRequests": [\r\n\t\t{{ "EventId": "{ONE}" }}\n\t]\n}}\n', (ONE,)),
        (f'\ufeff{{"StartRequests":[{{"EventId":"{ONE}"}}]}}', (ONE,)),
        ('{"StartRequests":[]}', ()),
        ('{"StartRequests":[{"EventId":""}]}', ("",)),
        ('{"StartRequests":[{"EventId":"\\ud800"}]}', ("\ud800",)),
    ],
    ids=[
        *("one", "two", "order", "case", "string incarnation", "number incarnation", "huge number"),
        *("extra twice", "pretty", "byte order mark", "none", "empty id", "lone surrogate"),
    ],
)
def test_event_ids_are_in_upper_case_without_duplicates_and_in_order(body: str, event_ids: tuple[str, ...]) -> None:
    assert post(body.encode()) == approval_of(*event_ids)


@pytest.mark.parametrize("event_id", [ONE, ONE.lower(), "", "-", "x y", "\\u0041", "\u00e9", r"A\"B"])
@pytest.mark.parametrize("blank", ["", " ", "\r\n\t ", "\f", "\v", "\u00a0"])
def test_the_fast_path_for_the_common_body_reads_it_as_the_json_parser_does(event_id: str, blank: str) -> None:
    """An extra member, which is ignored, keeps a body off the fast path."""

    def body(*more: str) -> bytes:
        tokens = ("{", '"StartRequests"', ":", "[", "{", '"EventId"', ":", f'"{event_id}"', *more, "}", "]", "}")
        return blank.join(("", *tokens, "")).encode()

    common, other = post(body()), post(body(",", '"x"', ":", "1"))
    assert common == other or (isinstance(common, HttpResponse) and isinstance(other, HttpResponse))


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("content-type", "application/json"),),
        (("content-type", "application/x-www-form-urlencoded"),),
        (("content-type", "nonsense"),),
        (("if-none-match", "0"),),
        (("expect", "100-continue"),),
    ],
)
def test_the_content_type_of_an_approval_is_ignored(headers: tuple[tuple[str, str], ...]) -> None:
    body = json.dumps({"StartRequests": [{"EventId": ONE}]}).encode()
    assert post(body, *headers) == approval_of(ONE)


def test_every_api_version_accepts_approvals() -> None:
    """Spec §3: GET and POST may use different versions for the same event."""
    body = json.dumps({"StartRequests": [{"EventId": ONE}]}).encode()
    assert post(body, version="2019-08-01") == ApprovalRequest(version="2019-08-01", event_ids=(ONE,))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "The body is empty, it must be a JSON object with StartRequests"),
        (b" \r\n", "The body is empty, it must be a JSON object with StartRequests"),
        (b"junk", "The body is not JSON at line 1 column 1"),
        (b'{"StartRequests":\n [}', "The body is not JSON at line 2 column 3"),
        (b'{"StartRequests":[]} x', "The body is not JSON at line 1 column 22"),
        (b"StartRequests=1", "The body is not JSON at line 1 column 1"),
        (b'{"StartRequests":[],"x":NaN}', "The body is not JSON: it may not contain NaN"),
        (b'{"x":-Infinity}', "The body is not JSON: it may not contain -Infinity"),
        (b'{"StartRequests":"\xff"}', "The body is not UTF-8 at byte 18"),
        ('{"StartRequests":[]}'.encode("utf-16"), "The body is not UTF-8 at byte 0"),
        (b"[" * MAX_BODY_BYTES, "The body is nested too deeply"),
        (b'{"a":' * 10_000, "The body is nested too deeply"),
        (b"[]", "The body must be a JSON object"),
        (b'"x"', "The body must be a JSON object"),
        (b"null", "The body must be a JSON object"),
        (b"{}", "StartRequests is missing"),
        (b'{"startrequests":[]}', "StartRequests is missing"),
        (b'{"StartRequests":[],"StartRequests":[]}', "StartRequests is given twice"),
        (b'{"StartRequests":null}', "StartRequests must be a list"),
        (b'{"StartRequests":{"EventId":"A"}}', "StartRequests must be a list"),
        (b'{"StartRequests":["A"]}', "StartRequests[0] must be an object"),
        (b'{"StartRequests":[{"EventId":"A"},{}]}', "StartRequests[1].EventId is missing"),
        (b'{"StartRequests":[{"EventId":"A"},{"EventId":7}]}', "StartRequests[1].EventId must be a string"),
        (b'{"StartRequests":[{"EventId":null}]}', "StartRequests[0].EventId must be a string"),
        (b'{"StartRequests":[{"EventId":"A","EventId":"B"}]}', "StartRequests[0].EventId is given twice"),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else "",
)
def test_the_error_for_an_invalid_body_says_what_is_wrong_and_where(body: bytes, reason: str) -> None:
    answer = post(body)
    assert answer == HttpResponse(
        status=400,
        headers=(("Content-Type", "application/json; charset=utf-8"),),
        body=f'{{ "error": "Bad request. {reason}" }}'.encode(),
    )


def test_a_body_of_64_kib_is_accepted_and_one_byte_more_gets_413() -> None:
    body = json.dumps({"StartRequests": [{"EventId": ONE}]}).encode().ljust(64 * 1024)
    assert post(body) == approval_of(ONE)
    too_large = post(body + b" ")
    assert isinstance(too_large, HttpResponse)
    assert too_large.status == 413


def test_an_accepted_approval_gets_200_without_a_body() -> None:
    assert approval_accepted() == HttpResponse(status=200, headers=(), body=b"")


@given(
    st.binary(max_size=100) | st.text(alphabet='{}[]:,"StartRequestsEventId\\ud8 1.eE-', max_size=60).map(str.encode)
)
@settings(max_examples=300, deadline=None)
def test_every_body_is_an_approval_or_gets_400(body: bytes) -> None:
    answer = post(body)
    assert isinstance(answer, ApprovalRequest) or (isinstance(answer, HttpResponse) and answer.status == 400)
