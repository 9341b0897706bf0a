"""A cookie of one service. Browsers tell cookies apart by host and not by port, so its name says whose it is."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

_SHORT = 8


class Cookie:
    """Never sent along from other sites, never shown to scripts; over TLS, only over TLS and by this host alone."""

    def __init__(self, word: str, tenant_id: str, *, lasts_s: int) -> None:
        self._name = f"{word}-{tenant_id[:_SHORT]}"
        self._lasts_s = lasts_s

    def read(self, request: Request) -> str:
        return request.cookies.get(self._name_over(request), "")

    def put(self, request: Request, response: Response, text: str) -> None:
        self._set(request, response, text, self._lasts_s)

    def take_back(self, request: Request, response: Response) -> None:
        self._set(request, response, "", 0)

    def _set(self, request: Request, response: Response, text: str, lasts_s: int) -> None:
        response.set_cookie(
            self._name_over(request),
            text,
            max_age=lasts_s,
            path="/",
            secure=_is_secure(request),
            httponly=True,
            samesite="strict",
        )

    def _name_over(self, request: Request) -> str:
        return f"__Host-{self._name}" if _is_secure(request) else self._name


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https"
