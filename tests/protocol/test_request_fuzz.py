"""`read_request` never raises: any request is understood or gets a response with a status of spec §10."""

from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.protocol.document import Document
from forewarn.protocol.exchange import (
    ApprovalRequest,
    EndpointRules,
    InstanceRequest,
    PollRequest,
    poll_response,
    read_request,
)
from forewarn.protocol.http_message import HttpRequest, HttpResponse
from forewarn.protocol.instance import InstanceFacts, instance_response
from forewarn.protocol.managed_identity import (
    ManagedIdentity,
    ManagedIdentityToken,
    TokenRequest,
    WrongResource,
    token_response,
)
from forewarn.protocol.versions import INSTANCE_VERSIONS, VERSIONS, UnknownVersionPolicy

ANY_TEXT = st.text(max_size=30) | st.text(st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010), max_size=5)
METHODS = st.sampled_from(["GET", "POST", "HEAD", "PUT"]) | ANY_TEXT
SEGMENTS = st.sampled_from(
    [
        *("metadata", "scheduledevents", "instance", "versions", "latest", "compute", "network", "0"),
        *("identity", "oauth2", "token", "%", "%zz", "%ff"),
    ]
)
PATHS = st.lists(SEGMENTS | ANY_TEXT, max_size=5).map(lambda steps: "/" + "/".join(steps)) | st.sampled_from(
    [
        *("/metadata/scheduledevents", "/metadata/instance", "/metadata/instance/compute/name"),
        "/metadata/identity/oauth2/token",
    ]
)
VALUES = st.sampled_from([*VERSIONS, *INSTANCE_VERSIONS, "latest", "text", "json"]) | ANY_TEXT
PARAMETERS = st.tuples(
    st.sampled_from(["api-version", "format", "extended", "resource", "client_id"]) | ANY_TEXT, VALUES
).map("=".join)
TARGETS = (
    st.tuples(
        st.sampled_from(["", "http://169.254.169.254", "http://["]),
        PATHS,
        st.lists(PARAMETERS, max_size=3).map("&".join),
    ).map(lambda parts: f"{parts[0]}{parts[1]}?{parts[2]}")
    | ANY_TEXT
)
NAMES = st.sampled_from(["metadata", "origin", "x-forwarded-for", "if-none-match", "prefer"])
HEADERS = st.lists(
    st.just(("metadata", "true"))
    | st.tuples(NAMES | ANY_TEXT, ANY_TEXT | st.sampled_from(["true", '"1-1"', "wait=5"])),
    max_size=5,
).map(tuple)
REQUESTS = st.builds(HttpRequest, method=METHODS, target=TARGETS, headers=HEADERS, body=st.binary(max_size=40))
RULES = st.builds(
    EndpointRules,
    versions=st.lists(st.sampled_from(VERSIONS), unique=True).map(tuple),
    header_always=st.booleans(),
    unknown_version=st.sampled_from(UnknownVersionPolicy),
    iso_dates=st.booleans(),
    max_wait_s=st.integers(0, 300),
    gives_tokens=st.booleans(),
)

TOKEN = ManagedIdentityToken(text="a.b.c", not_before=0, expires_at=3600)
IDENTITY = ManagedIdentity(vm="vm", vm_id="id", name="vm", resource_id="/vm")


@given(REQUESTS, st.booleans(), RULES)
@settings(max_examples=800, deadline=None)
def test_every_request_is_understood_or_gets_a_documented_status(
    request: HttpRequest, is_known_caller: bool, rules: EndpointRules
) -> None:
    answer = read_request(request, is_known_caller=is_known_caller, rules=rules)
    match answer:
        case HttpResponse():
            assert answer.status in {200, 400, 404} | (set() if rules.gives_tokens else {403})
            assert answer.head_only is (request.method == "HEAD")
        case PollRequest():
            assert answer.version in rules.versions
            answered = poll_response(answer, tag='"1-1"', document=Document(incarnation=1), rules=rules)
            assert answered.status in {200, 304}
        case ApprovalRequest():
            assert answer.version in rules.versions
        case InstanceRequest():
            assert answer.version in INSTANCE_VERSIONS
            assert instance_response(answer, InstanceFacts(name="vm")).status in {200, 400, 404}
        case TokenRequest():
            assert rules.gives_tokens
            for token, status in ((TOKEN, 200), (WrongResource(accepted=()), 400)):
                assert token_response(token, request=answer, identity=IDENTITY, now=0).status == status


@given(REQUESTS, RULES)
@settings(max_examples=100, deadline=None)
def test_an_unknown_caller_always_gets_the_same_response(request: HttpRequest, rules: EndpointRules) -> None:
    """Spec §7.4, §10: it learns nothing."""
    answer = read_request(request, is_known_caller=False, rules=rules)
    assert isinstance(answer, HttpResponse)
    assert (answer.status, answer.body) == (404, b'{ "error": "Not found" }')
