"""Generated calls, valid and invalid: every response fits openapi.json, and an error changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import checks
from schemathesis.core import NOT_SET
from schemathesis.core.result import Ok
from schemathesis.core.transport import Response
from schemathesis.generation import GenerationMode

from forewarn.web.api_routes import ROUTES
from forewarn.web.openapi import openapi_document
from forewarn.web.routing import API_PREFIX

SCHEMA = schemathesis.openapi.from_dict(json.loads(msgspec.json.encode(openapi_document(ROUTES))))
OPERATIONS: dict[str, Any] = {}
for _found in SCHEMA.get_all_operations():
    assert isinstance(_found, Ok), _found
    OPERATIONS[_found.ok().label] = _found.ok()
CHECKS = [checks.not_a_server_error, checks.status_code_conformance, checks.response_schema_conformance]
EXAMPLES = {GenerationMode.POSITIVE: 15, GenerationMode.NEGATIVE: 8}
RECORDING = {
    "vm": "x",
    "api_version": "2020-07-01",
    "started_at": "2026-01-05T12:00:00Z",
    "answers": [{"at_s": 0, "status": 500}],
}

# Random names would never match an existing thing.
KNOWN: dict[str, list[Any]] = {
    "name": ["db", "web-0", "lab/pool_1", "h1", "H3"],
    "thing": ["db", "h1", "web", "set:sub/lab/web"],
    "vm": ["db", "web-1", "spot"],
    "vms": [["db"], ["web-0", "web-1"], ["pool_0", "spot"], ["db", "DB"]],
    "hosts": [["h1"], ["h2", "h3"]],
    "host": ["h1", "h9"],
    "scope": ["web", "pool", "db"],
    "resource": ["/", "db", "pool", "web"],
    "principal": ["db", "bot", "oidc:ann"],
    "kind": ["gone", "reset", "duplicate", "neighbour-only", "several-at-once"],
    "path": ["/x", "/nowhere/x", f"/{'x' * 300}", "x\0"],
    "url": ["https://example.org/hook", "http://[::1", "file:///etc/passwd"],
    "older_than_s": [86400, 1e308],
    "recording": [RECORDING],
}
# No call waits, skips years of lab time, or connects to another machine.
ALWAYS: dict[str, list[Any]] = {"wait_s": [0, 0.001], "by_s": [0, 60, 1e6, -1], "validate": [False]}


def populate(api: Any) -> list[str]:
    """Creates one thing of each kind; returns their ids."""
    api.post("/access/clients", {"id": "bot"})
    return [
        "bot",
        api.restart_of("spot")[0]["request_id"],
        api.restart_of("web-2")[0]["id"],
        api.post("/rollouts", {"impact": "update", "hosts": ["h3"]})["id"],
        api.post("/replays", {"vm": "pool_0", "recording": RECORDING})["id"],
        api.post("/access/grants", {"role": "Reader", "principal": "bot", "resource": "/"})["id"],
        api.post("/webhooks", {"url": "http://127.0.0.1:1/nobody"})["id"],
        api.post("/faults", {"kind": "gone", "vm": "db"})["id"],
        api.post("/faults/storm", {"seed": 1})["id"],
    ]


def chosen(draw: Callable[[Any], Any], members: Any, ids: list[str]) -> Any:
    """These fields, some with names that exist."""
    if not isinstance(members, dict):
        return members
    known = {**KNOWN, "id": ids}
    some = {name for name in members if name in ALWAYS or (name in known and draw(st.booleans()))}
    values = {name: draw(st.sampled_from({**known, **ALWAYS}[name])) for name in sorted(some)}
    return {**members, **values}


def call(api: Any, case: Any, names: Any, query: Any, body: Any) -> Response:
    path = case.path.format_map({name: quote(str(value), safe="", errors="replace") for name, value in names.items()})
    target = f"{path}?{urlencode(query, doseq=True, errors='replace')}" if query else path
    answer = api.call(case.method, target, written(body))
    request = requests.Request(case.method, f"http://localhost{API_PREFIX}{target}").prepare()
    headers = {name: [value] for name, value in answer.headers.items()}
    return Response(answer.status, headers, answer.content, request, elapsed=0.0, verify=False)


def written(body: Any) -> bytes:
    if body is NOT_SET:
        return b""
    return body if isinstance(body, bytes) else json.dumps(body).encode()


@pytest.mark.parametrize("mode", EXAMPLES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("label", OPERATIONS)
def test_any_generated_call_is_answered_as_openapi_describes(api: Any, label: str, mode: GenerationMode) -> None:
    ids = populate(api)

    @settings(
        max_examples=EXAMPLES[mode],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode), data=st.data())
    def answered(case: Any, data: st.DataObject) -> None:
        names, query = (chosen(data.draw, part, ids) or {} for part in (case.path_parameters, case.query))
        body = chosen(data.draw, case.body, ids)
        before = api.stored()
        response = call(api, case, names, query, body)
        case.validate_response(response, checks=CHECKS)
        assert response.status_code < 400 or api.stored() == before

    answered()


def test_the_fuzz_test_calls_every_route() -> None:
    assert len(OPERATIONS) == len(ROUTES)
