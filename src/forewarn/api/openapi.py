"""The API described in OpenAPI 3.1, written from the route table and the signatures of its handlers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from forewarn import __version__
from forewarn.console.over import Over, everything, listing, named_event, named_vm, signed_in, vms_asked_for
from forewarn.console.refusal import Refusal
from forewarn.console.route import PREFIX, RouteLine

_NAME = re.compile(r"\{(\w+)(?::\w+)?\}")
_REFS = "#/components/schemas/{name}"
_JSON = "application/json"

Schema = dict[str, Any]


def document(lines: Sequence[RouteLine]) -> Schema:
    schemas = _Schemas(lines)
    paths: dict[str, Schema] = defaultdict(dict)
    for line in lines:
        paths[plain(line.path)][line.method.lower()] = _operation(line, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "forewarn",
            "version": __version__,
            "description": "Instants are POSIX seconds in lab time, spans are seconds. Members not named are refused.",
        },
        "servers": [{"url": PREFIX}],
        "security": [{"bearer": []}],
        "paths": dict(paths),
        "components": {
            "schemas": schemas.components,
            "responses": {"Refusal": _answer("Refused, and nothing was changed.", schemas.of(Refusal))},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
    }


class _Schemas:
    def __init__(self, lines: Iterable[RouteLine]) -> None:
        signatures = [line.signature for line in lines]
        found = [Refusal, *(kind for of in signatures for kind in (of.asked, of.query, of.answer) if kind is not None)]
        self._kinds = list({str(kind): kind for kind in found}.values())
        self._schemas, self.components = msgspec.json.schema_components(self._kinds, ref_template=_REFS)

    def of(self, kind: Any) -> Schema:
        return self._schemas[self._kinds.index(kind)]

    def members_of(self, kind: type[msgspec.Struct]) -> dict[str, Schema]:
        members: dict[str, Schema] = self.components[kind.__name__]["properties"]
        return members


def plain(path: str) -> str:
    """A path as OpenAPI writes it: `{name}`, also where a name may hold a slash."""
    return _NAME.sub(r"{\1}", path)


def needed(line: RouteLine) -> str:
    """The right, and over what, as people say it."""
    return _NEEDED[line.over].format(right=line.right)


_NEEDED: dict[Over, str] = {
    everything: "{right} over everything",
    listing: "{right} over anything: it shows what the caller may read",
    named_vm: "{right} over the VM",
    named_event: "{right} over each VM that the event hits",
    vms_asked_for: "{right} over each VM",
    signed_in: "none: whoever is signed in may",
}


def _operation(line: RouteLine, schemas: _Schemas) -> Schema:
    signature = line.signature
    operation: Schema = {
        "operationId": f"{line.handler.__module__.rpartition('.')[2]}.{line.handler.__name__}",
        "summary": signature.summary,
        "description": f"Right needed: {needed(line)}.",
        "x-forewarn-right": line.right,
        "x-forewarn-over": line.over.__name__,
        "parameters": [*_path_parameters(line), *_query_parameters(line, schemas)],
        "responses": {
            str(line.status): _answer("Done.", schemas.of(signature.answer)),
            "4XX": {"$ref": "#/components/responses/Refusal"},
            "503": {"$ref": "#/components/responses/Refusal"},
        },
    }
    if signature.asked is not None:
        operation["requestBody"] = {
            "required": bool(schemas.components[signature.asked.__name__]["required"]),
            "content": {_JSON: {"schema": schemas.of(signature.asked)}},
        }
    return operation


def _path_parameters(line: RouteLine) -> list[Schema]:
    names = _NAME.findall(line.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(line: RouteLine, schemas: _Schemas) -> list[Schema]:
    if line.signature.query is None:
        return []
    members = schemas.members_of(line.signature.query)
    return [{"name": name, "in": "query", "schema": _given(schema)} for name, schema in members.items()]


def _given(schema: Schema) -> Schema:
    """A parameter is left out instead of being null."""
    *sorts, last = schema.get("anyOf", [{}])
    return sorts[0] if last == {"type": "null"} and len(sorts) == 1 else schema


def _answer(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {_JSON: {"schema": schema}}}
