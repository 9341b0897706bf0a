"""Describes the API in OpenAPI 3.1, from the route table and the signatures of its handlers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from forewarn import __version__
from forewarn.base.times import time_schema
from forewarn.web.api_errors import CONFIRM_HEADER, ConfirmationResponse, ErrorResponse
from forewarn.web.request_keys import IDEMPOTENCY_KEY_HEADER, MAX_KEY_LENGTH
from forewarn.web.requests import vms_asked_for
from forewarn.web.routing import (
    API_PREFIX,
    ApiRoute,
    ResourceSelector,
    everything,
    listing,
    named_event,
    named_vm,
    signed_in,
)

_PATH_PARAM = re.compile(r"\{(\w+)(?::\w+)?\}")
_REF_TEMPLATE = "#/components/schemas/{name}"
_JSON_TYPE = "application/json"

JsonSchema = dict[str, Any]
_CONFIRM_PARAMETER: JsonSchema = {
    "name": CONFIRM_HEADER,
    "in": "header",
    "description": "With `ask`, a service that is no lab changes nothing and answers 428 with its preview if it "
    "interrupts VMs at once, or if something is lost for good. Send it again without this header to confirm it.",
    "schema": {"type": "string", "enum": ["ask"]},
}
_RIGHT_TEXTS: dict[ResourceSelector, str] = {
    everything: "{right} over everything",
    listing: "{right} over anything: the response shows what the caller may read",
    named_vm: "{right} over the VM",
    named_event: "{right} over each VM of the event",
    vms_asked_for: "{right} over each VM",
    signed_in: "none: any authenticated caller may",
}


def openapi_document(routes: Sequence[ApiRoute]) -> JsonSchema:
    """Return the OpenAPI 3.1 document of these routes, as a JSON object."""
    schemas = _SchemaRegistry(routes)
    paths: dict[str, JsonSchema] = defaultdict(dict)
    known = {route.path for route in routes}
    for route in routes:
        operation = paths[openapi_path(route.path)][route.method.lower()] = _operation(route, schemas)
        if route.method != "GET" and f"{route.path}/preview" in known:
            operation["parameters"].append(_CONFIRM_PARAMETER)
            operation["responses"]["428"] = {"$ref": "#/components/responses/Confirmation"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "forewarn",
            "version": __version__,
            "description": "Times are ISO 8601 text in UTC, by the service's clock. Durations are seconds. "
            "Unknown fields are rejected.",
        },
        "servers": [{"url": API_PREFIX}],
        "security": [{"bearer": []}],
        "paths": dict(paths),
        "components": {
            "schemas": schemas.components,
            "responses": {
                "Refusal": _json_response("An error; nothing was changed.", schemas.schema_of(ErrorResponse)),
                "Confirmation": _json_response(
                    "A person has to confirm it; nothing was changed.", schemas.schema_of(ConfirmationResponse)
                ),
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
    }


class _SchemaRegistry:
    """The JSON schemas of all bodies, queries and responses."""

    def __init__(self, routes: Iterable[ApiRoute]) -> None:
        signatures = [route.signature for route in routes]
        types = [
            ErrorResponse,
            ConfirmationResponse,
            *(found for s in signatures for found in (s.body, s.query, s.response_type) if found is not None),
        ]
        self._types = list({str(one): one for one in types}.values())
        self._schemas, self.components = msgspec.json.schema_components(
            self._types, ref_template=_REF_TEMPLATE, schema_hook=time_schema
        )

    def schema_of(self, type_: Any) -> JsonSchema:
        return self._schemas[self._types.index(type_)]

    def properties_of(self, type_: type[msgspec.Struct]) -> dict[str, JsonSchema]:
        properties: dict[str, JsonSchema] = self.components[type_.__name__]["properties"]
        return properties


def openapi_path(path: str) -> str:
    """Return a route's path in OpenAPI's syntax: starlette's `{name:path}` becomes `{name}`."""
    return _PATH_PARAM.sub(r"{\1}", path)


def required_right_text(route: ApiRoute) -> str:
    """Return in words which right a route needs, and over what, such as `operate over the VM`."""
    return _RIGHT_TEXTS[route.resources].format(right=route.right)


def _operation(route: ApiRoute, schemas: _SchemaRegistry) -> JsonSchema:
    signature = route.signature
    operation: JsonSchema = {
        "operationId": f"{route.handler.__module__.rpartition('.')[2]}.{route.handler.__name__}",
        "summary": signature.summary,
        "description": f"Right needed: {required_right_text(route)}.",
        "x-forewarn-right": route.right,
        "x-forewarn-over": route.resources.__name__,
        "parameters": [*_path_parameters(route), *_query_parameters(route, schemas), *_header_parameters(route)],
        "responses": {
            str(route.status): _json_response("Done.", schemas.schema_of(signature.response_type)),
            "4XX": {"$ref": "#/components/responses/Refusal"},
            "503": {"$ref": "#/components/responses/Refusal"},
        },
    }
    if signature.body is not None:
        operation["requestBody"] = {
            "required": bool(schemas.components[signature.body.__name__]["required"]),
            "content": {_JSON_TYPE: {"schema": schemas.schema_of(signature.body)}},
        }
    return operation


def _path_parameters(route: ApiRoute) -> list[JsonSchema]:
    names = _PATH_PARAM.findall(route.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(route: ApiRoute, schemas: _SchemaRegistry) -> list[JsonSchema]:
    if route.signature.query is None:
        return []
    properties = schemas.properties_of(route.signature.query)
    return [{"name": name, "in": "query", "schema": _without_null(schema)} for name, schema in properties.items()]


def _header_parameters(route: ApiRoute) -> list[JsonSchema]:
    if route.show_repeated is None:
        return []
    description = (
        "A new key for each new request. A repeated call of the same caller with the same key creates no second "
        "request: the response shows the first one. The same key with another path or body is a 400. The key is known "
        "as long as the request is stored."
    )
    schema = {"type": "string", "minLength": 1, "maxLength": MAX_KEY_LENGTH, "pattern": "^[ -~]+$"}
    return [{"name": IDEMPOTENCY_KEY_HEADER, "in": "header", "description": description, "schema": schema}]


def _without_null(schema: JsonSchema) -> JsonSchema:
    """The schema without the null type: a query parameter is left out, never null."""
    *types, last = schema.get("anyOf", [{}])
    return types[0] if last == {"type": "null"} and len(types) == 1 else schema


def _json_response(description: str, schema: JsonSchema) -> JsonSchema:
    return {"description": description, "content": {_JSON_TYPE: {"schema": schema}}}
