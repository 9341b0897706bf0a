"""openapi.json and docs/reference/api.md follow from the route table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forewarn.core.access import Right
from forewarn.web.api_routes import ROUTES
from forewarn.web.context import RequestContext
from forewarn.web.openapi import openapi_document, openapi_path
from forewarn.web.routing import ApiRoute, everything, handler_signature
from tools.docs.api_reference import api_reference_markdown

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
DESCRIBED: dict[str, Any] = json.loads(msgspec.json.encode(openapi_document(ROUTES)))


def operations() -> dict[tuple[str, str], Any]:
    return {(m.upper(), path): found for path, methods in DESCRIBED["paths"].items() for m, found in methods.items()}


def test_the_page_about_the_api_is_up_to_date() -> None:
    assert PAGE.read_text() == api_reference_markdown(), "run `make docs`"


def test_every_route_is_described_with_its_right() -> None:
    found = {key: one["x-forewarn-right"] for key, one in operations().items()}
    assert found == {(line.method, openapi_path(line.path)): line.right for line in ROUTES}
    assert all(one["summary"].endswith(".") and one["description"] for one in operations().values())


def test_every_text_number_and_list_of_a_body_or_query_has_limits() -> None:
    given = [
        (f"{method} {path}", schema)
        for (method, path), one in operations().items()
        for schema in (
            *(content["schema"] for content in one.get("requestBody", {}).get("content", {}).values()),
            *(parameter["schema"] for parameter in one.get("parameters", ()) if parameter["in"] == "query"),
        )
    ]
    assert len(given) > 40
    assert {found for where, schema in given for found in unlimited(schema, where)} == set()


def unlimited(schema: Any, where: str) -> Iterator[str]:
    """Yields the places in a schema where a value of any length or size is accepted."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield from unlimited(DESCRIBED["components"]["schemas"][name], name)
    for option in schema.get("anyOf", ()):
        yield from unlimited(option, where)
    for name, part in schema.get("properties", {}).items():
        yield from unlimited(part, f"{where}.{name}")
    wanted: dict[str, list[str]] = {
        "string": ["format"] if schema.get("format") == "date-time" else ["maxLength"],
        "integer": ["minimum", "maximum"],
        "number": ["minimum", "maximum"],
        "array": ["maxItems"],
        "object": ["properties"] if "properties" in schema else ["maxProperties", "additionalProperties"],
    }
    present = {name.replace("exclusiveM", "m") for name in schema}
    if "enum" not in schema and not set(wanted.get(schema.get("type", ""), ())) <= present:
        yield where
    for part in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(part, dict):
            yield from unlimited(part, f"{where}[]")


NUMBERS = {
    "speed",
    "share",
    "shares",
    "value",
    "parameters",
    "default",
    "minimum",
    "maximum",
}  # neither time nor duration


def test_every_time_is_text_and_every_other_number_a_duration_or_a_known_figure() -> None:
    bodies = [one.get("properties", {}) for one in DESCRIBED["components"]["schemas"].values()]
    fields = [(name, json.dumps(schema)) for properties in bodies for name, schema in properties.items()]
    times = {name for name, schema in fields if '"date-time"' in schema}
    numbers = {name for name, schema in fields if '"number"' in schema}
    assert {"now", "not_before", "until", "published_at", "deadline", "starts"} <= times
    assert {name for name in numbers - NUMBERS if not name.endswith(("_s", "_s_ago"))} == set()
    assert {name for name, _ in fields if name.endswith("_at")} <= times


def test_every_operation_has_an_id_of_its_own() -> None:
    ids = [one["operationId"] for one in operations().values()]
    assert len(set(ids)) == len(ids) == len(ROUTES)


def test_every_path_name_is_a_parameter_and_every_reference_resolves() -> None:
    for (_, path), one in operations().items():
        named = [found["name"] for found in one["parameters"] if found["in"] == "path"]
        assert re.findall(r"\{(\w+)\}", path) == named
    references = set(re.findall(r"'#/components/(\w+)/(\w+)'", str(DESCRIBED)))
    assert references
    assert all(name in DESCRIBED["components"][sort] for sort, name in references)


def test_bodies_and_responses_follow_from_the_handlers_signature() -> None:
    asking = operations()["POST", "/requests"]
    assert asking["requestBody"] == {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/NewMaintenanceRequest"}}},
    }
    shown = asking["responses"]["202"]["content"]["application/json"]["schema"]
    assert shown == {"$ref": "#/components/schemas/ReceiptView"}
    history = {found["name"]: found["schema"] for found in operations()["GET", "/history"]["parameters"]}
    assert history["after"] == {"type": "integer", "minimum": 0, "maximum": 2**62}
    assert history["limit"]["default"] == 1000


def test_the_openapi_document_requires_a_bearer_token() -> None:
    assert DESCRIBED["security"] == [{"bearer": []}]
    assert DESCRIBED["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


def test_the_openapi_document_is_served_to_any_authenticated_caller(api: Any) -> None:
    assert api.holding("Reader").get("/openapi.json") == DESCRIBED
    assert api.without_token().refused("GET", "/openapi.json")[:2] == (401, "Unauthenticated")


def test_a_handler_with_other_parameters_fails_when_the_app_is_built() -> None:
    async def handler(context: RequestContext, thing: str) -> None: ...

    with pytest.raises(TypeError, match="a handler takes context, call, and body or query"):
        handler_signature(handler)
    assert ApiRoute("GET", "/x", handler, Right.READ).resources is everything
