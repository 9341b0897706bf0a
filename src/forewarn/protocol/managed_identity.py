"""/metadata/identity/oauth2/token: managed identity token requests and responses (spec §2.8).

Errors have OAuth's shape, `error` and `error_description`, because Azure's clients read that here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import NAMESPACE_URL, uuid5

from forewarn.protocol.http_message import JSON_CONTENT_TYPE, HttpResponse, RequestTarget
from forewarn.protocol.versions import is_version_date

NO_STORE_HEADER = ("Cache-Control", "no-store")
_MAX_QUOTED_LENGTH = 100  # characters of a request that an error repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """A VM's request for a managed identity token for `resource`; the other fields name an identity ("": any)."""

    resource: str  # the URI of the service that shall accept the token
    client_id: str = ""  # of the identity, a GUID
    object_id: str = ""  # of the identity, a GUID
    resource_id: str = ""  # the resource id of the identity; a system-assigned identity has that of its VM


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedIdentity:
    """The system-assigned identity of a VM: a client id and an object id, derived from the VM's id.

    A VM that is created again under the same name has another id, and so another identity.
    """

    vm: str  # the VM's key: subscription, resource group and name
    vm_id: str  # the GUID from which the ids are derived
    name: str  # the VM's name
    resource_id: str  # the VM's Azure resource id, which is the identity's too

    @property
    def client_id(self) -> str:
        """The GUID, in lower case, that names this identity in token requests; derived from `vm_id`."""
        return self._guid("client")

    @property
    def object_id(self) -> str:
        """The GUID, in lower case, of the identity's object in the directory; derived from `vm_id`."""
        return self._guid("object")

    def matches(self, request: TokenRequest) -> bool:
        """Return whether every id that the request names is this identity's; True if it names none."""
        pairs = (
            (request.client_id, self.client_id),
            (request.object_id, self.object_id),
            (request.resource_id, self.resource_id),
        )
        return all(not requested or requested.casefold() == own.casefold() for requested, own in pairs)

    def _guid(self, role: str) -> str:
        return str(uuid5(NAMESPACE_URL, f"urn:forewarn:vm:{self.vm_id.casefold()}:{role}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedIdentityToken:
    """An access token for a managed identity, and when it is valid (real time, POSIX seconds)."""

    text: str = field(repr=False)  # the token itself, a secret
    not_before: float  # it is valid from then on
    expires_at: float  # it is valid before then


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongResource:
    """Returned instead of a token: the service accepts tokens for the resources in `accepted` only."""

    accepted: tuple[str, ...]  # URIs; (): none, so VMs get no tokens


def read_token_request(
    target: RequestTarget, *, has_header: bool, has_foreign_host: bool, tokens_allowed: bool
) -> TokenRequest | HttpResponse:
    """Read a token request from its query; return the error response if it is invalid or not allowed.

    `tokens_allowed` says that this listener identifies VMs reliably. Does not check that the identity exists.
    """
    if not has_header:
        return _oauth_error(400, "invalid_request", "Required metadata header not specified")
    if not is_version_date(target.parameter("api-version") or ""):
        return _oauth_error(
            400, "invalid_request", "Required api-version not specified: give a date such as 2018-02-01"
        )
    resource = target.parameter("resource")
    if not resource:
        return _oauth_error(400, "invalid_request", "Required resource not specified: name what the token is for")
    if has_foreign_host:
        return _oauth_error(
            403,
            "access_denied",
            "No token is given to a request for a host name, which may be the name of a web page's host: "
            "ask for it by address, such as 169.254.169.254",
        )
    if not tokens_allowed:
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
    token: ManagedIdentityToken | WrongResource, *, request: TokenRequest, identity: ManagedIdentity, now: float
) -> HttpResponse:
    """Build the JSON response to a token request: 200 with the token, 400 for a WrongResource."""
    if isinstance(token, WrongResource):
        return _wrong_resource_error(request.resource, token.accepted)
    remaining_s = str(max(0, int(token.expires_at - now)))
    fields = {
        "access_token": token.text,
        "client_id": identity.client_id,
        "expires_in": remaining_s,
        "expires_on": str(int(token.expires_at)),
        "ext_expires_in": remaining_s,
        "not_before": str(int(token.not_before)),
        "resource": request.resource,
        "token_type": "Bearer",
    }
    return _json_response(200, fields)


def identity_not_found() -> HttpResponse:
    """Return a 400 with an OAuth error as JSON: the request names an identity that this VM does not have."""
    return _oauth_error(400, "invalid_request", "Identity not found")


def _wrong_resource_error(resource: str, accepted: Sequence[str]) -> HttpResponse:
    quoted = resource if len(resource) <= _MAX_QUOTED_LENGTH else f"{resource[:_MAX_QUOTED_LENGTH]}…"
    advice = f"ask for one of {', '.join(accepted)}" if accepted else "the service has no API for VMs"
    return _oauth_error(400, "invalid_resource", f"Nobody here takes a token for {quoted!r}: {advice}")


def _oauth_error(status: int, error: str, reason: str) -> HttpResponse:
    return _json_response(status, {"error": error, "error_description": reason})


def _json_response(status: int, fields: dict[str, str]) -> HttpResponse:
    body = json.dumps(fields, separators=(",", ":")).encode("ascii")
    return HttpResponse(status=status, headers=(JSON_CONTENT_TYPE, NO_STORE_HEADER), body=body)
