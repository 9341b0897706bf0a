"""/metadata/identity/oauth2/token: managed identity token requests and responses (spec §2.8).

Errors have OAuth's shape, `error` and `error_description`, because the vendor's clients read that here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import NAMESPACE_URL, uuid5

from forewarn.protocol.http_message import JSON_CONTENT_TYPE, HttpResponse, RequestTarget
from forewarn.protocol.versions import is_version_date

NO_STORE_HEADER = ("Cache-Control", "no-store")
_MAX_QUOTED_LENGTH = 100  # characters of what a caller wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """A token for `resource`. The rest names an identity; "": whichever the VM has."""

    resource: str
    client_id: str = ""
    object_id: str = ""
    resource_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedIdentity:
    """Who a VM is to others. It follows from the VM's id: one that comes back under its name is somebody else."""

    vm: str  # its key
    vm_id: str
    name: str
    resource_id: str

    @property
    def client_id(self) -> str:
        return self._guid("client")

    @property
    def object_id(self) -> str:
        return self._guid("object")

    def matches(self, ask: TokenRequest) -> bool:
        """Whether all that the ask names is this identity."""
        named = (
            (ask.client_id, self.client_id),
            (ask.object_id, self.object_id),
            (ask.resource_id, self.resource_id),
        )
        return all(not given or given.casefold() == own.casefold() for given, own in named)

    def _guid(self, of: str) -> str:
        return str(uuid5(NAMESPACE_URL, f"urn:forewarn:vm:{self.vm_id.casefold()}:{of}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedIdentityToken:
    text: str = field(repr=False)  # a secret
    not_before: float  # real time, as is the next
    expires_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongResource:
    """Instead of a token: nobody here accepts one for the resource that was named."""

    accepted: tuple[str, ...]


def read_token_request(target: RequestTarget, *, has_header: bool, is_given: bool) -> TokenRequest | HttpResponse:
    """`is_given`: tokens are given to whoever calls where this request came in."""
    if not has_header:
        return _oauth_error(400, "invalid_request", "Required metadata header not specified")
    if not is_version_date(target.parameter("api-version") or ""):
        return _oauth_error(
            400, "invalid_request", "Required api-version not specified: give a date such as 2018-02-01"
        )
    resource = target.parameter("resource")
    if not resource:
        return _oauth_error(400, "invalid_request", "Required resource not specified: name what the token is for")
    if not is_given:
        return _oauth_error(
            403,
            "access_denied",
            "No token is given on loopback, where any program of this machine can pose as the VM: "
            "ask from inside the VM, or start the service with the setting identity_on_loopback = true",
        )
    return TokenRequest(
        resource=resource,
        client_id=target.parameter("client_id") or "",
        object_id=target.parameter("object_id") or "",
        resource_id=target.parameter("msi_res_id") or target.parameter("mi_res_id") or "",
    )


def token_response(
    given: ManagedIdentityToken | WrongResource, *, ask: TokenRequest, identity: ManagedIdentity, now: float
) -> HttpResponse:
    """`now` is real time (spec §12)."""
    if isinstance(given, WrongResource):
        return _wrong_resource_error(ask.resource, given.accepted)
    left = str(max(0, int(given.expires_at - now)))
    told = {
        "access_token": given.text,
        "client_id": identity.client_id,
        "expires_in": left,
        "expires_on": str(int(given.expires_at)),
        "ext_expires_in": left,
        "not_before": str(int(given.not_before)),
        "resource": ask.resource,
        "token_type": "Bearer",
    }
    return _json_response(200, told)


def identity_not_found() -> HttpResponse:
    return _oauth_error(400, "invalid_request", "Identity not found")


def _wrong_resource_error(resource: str, accepted: Sequence[str]) -> HttpResponse:
    named = resource if len(resource) <= _MAX_QUOTED_LENGTH else f"{resource[:_MAX_QUOTED_LENGTH]}…"
    advice = f"ask for one of {', '.join(accepted)}" if accepted else "the service has no console for VMs"
    return _oauth_error(400, "invalid_resource", f"Nobody here takes a token for {named!r}: {advice}")


def _oauth_error(status: int, error: str, reason: str) -> HttpResponse:
    return _json_response(status, {"error": error, "error_description": reason})


def _json_response(status: int, told: dict[str, str]) -> HttpResponse:
    body = json.dumps(told, separators=(",", ":")).encode("ascii")
    return HttpResponse(status=status, headers=(JSON_CONTENT_TYPE, NO_STORE_HEADER), body=body)
