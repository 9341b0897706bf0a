"""Generated reads by any caller are answered or refused, never with a 500."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.core.access import Role
from forewarn.web.arm import discovery, resources

ROUTES = [route for route in (*discovery.ROUTES, *resources.ROUTES) if route.method == "GET"]
KNOWN = ["sub", "lab", "LAB", "web", "web-0", "db", "pool", "0", "pool_1", "none"]
NAMES = st.sampled_from(KNOWN) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
QUERIES = st.dictionaries(
    st.sampled_from(["api-version", "$expand", "$filter", "$skiptoken", "statusOnly", "$top"]) | st.text(max_size=5),
    st.sampled_from(["instanceView", "true", "2024-11-01", "AAAA"]) | st.text(max_size=30),
    max_size=3,
)
GRANTS = st.lists(
    st.sampled_from(["/", "/subscriptions/sub", "/subscriptions/sub/resourceGroups/lab"]) | st.just("/subscriptions/x"),
    max_size=2,
)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
@given(data=st.data(), query=QUERIES, grants=GRANTS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_generated_read_is_answered_without_a_500(
    arm: Any, route: Any, data: Any, query: dict[str, str], grants: list[str]
) -> None:
    path = re.sub(r"\{\w+\}", lambda _: quote(data.draw(NAMES), safe=""), route.path)
    before = arm.stored()
    answer = arm.holding(Role.READER, *grants).call("GET", f"{path}?{urlencode(query)}")
    assert arm.stored() == before
    assert answer.status in (200, 400, 403, 404, 405, 409), (path, query, answer.content)
    if answer.status != 200:
        assert answer.error[2]
