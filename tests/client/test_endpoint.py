"""The configured endpoint (spec §2.5)."""

import pytest

from forewarn.client.endpoint import Endpoint, configured_endpoint, parse_endpoint
from forewarn.errors import Rejected


@pytest.mark.parametrize(
    ("explicit", "environ", "expected"),
    [
        (None, {"SCHEDULEDEVENTSIP": "168.63.129.16"}, "http://168.63.129.16"),
        (None, {"FOREWARN_ENDPOINT": "127.0.1.1:8254", "SCHEDULEDEVENTSIP": "10.0.0.1"}, "http://127.0.1.1:8254"),
        ("http://127.0.1.2", {"FOREWARN_ENDPOINT": "127.0.1.1:8254"}, "http://127.0.1.2"),
        ("", {"SCHEDULEDEVENTSIP": "10.0.0.1"}, "http://10.0.0.1"),
    ],
    ids=["environment", "our variable first", "explicit first", "empty is not given"],
)
def test_an_explicit_endpoint_overrides_the_environment_and_our_variable_overrides_azures(
    explicit: str | None, environ: dict[str, str], expected: str
) -> None:
    assert str(configured_endpoint(explicit, environ)) == expected


@pytest.mark.parametrize("explicit", [None, ""])
def test_an_endpoint_that_is_not_configured_is_left_to_discovery(explicit: str | None) -> None:
    assert configured_endpoint(explicit, {"FOREWARN_ENDPOINT": ""}) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.1.5:8080", Endpoint(host="127.0.1.5", port=8080)),
        (
            "http://127.0.1.5:8080/metadata/scheduledevents?api-version=2020-07-01",
            Endpoint(host="127.0.1.5", port=8080),
        ),
        ("http://127.0.1.5/Metadata/", Endpoint(host="127.0.1.5")),
        ("http://[::1]:8080", Endpoint(host="::1", port=8080)),
        ("::1", Endpoint(host="::1")),
        ("  metadata.internal ", Endpoint(host="metadata.internal")),
    ],
)
def test_an_endpoint_may_be_an_address_or_a_pasted_url(text: str, expected: Endpoint) -> None:
    assert parse_endpoint(text) == expected
    assert parse_endpoint(str(expected)) == expected


@pytest.mark.parametrize(
    "text", ["https://127.0.0.1", "ftp://x", "http://", "http://a b", "http://u:p@127.0.0.1", "127.0.0.1:0",
             "127.0.0.1:99999", "127.0.0.1:x", "http://127.0.0.1/elsewhere", "http://[::1"],
)  # fmt: skip
def test_an_invalid_address_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(Rejected) as refusal:
        parse_endpoint(text)
    assert str(refusal.value) == (
        f"the endpoint {text!r} is not a plain HTTP address: write it like http://169.254.169.254 or 127.0.1.1:8080"
    )
