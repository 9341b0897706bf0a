"""What whoever is not signed in yet is answered: a page, also where it is a refusal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from forewarn.console.portal.frame import plain
from forewarn.console.refusal import outcome_of

_TELL_NOBODY = {"Referrer-Policy": "no-referrer"}

Answer = Callable[[Request], Awaitable[Response]]


def answering(answer: Answer) -> Answer:
    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is left to read it
        except Exception as error:
            return not_in(error)

    return endpoint


def not_in(error: Exception) -> Response:
    status, sentence = outcome_of(error)
    return plain("plain.html", status=status, title="Not signed in", sentence=sentence)


def go_on(to: str, title: str) -> Response:
    """To a page of ours, by a page of ours: a browser that came from elsewhere sends no cookie before that."""
    response = plain("sign-in-go-on.html", title=title, to=to)
    response.headers.update(_TELL_NOBODY)
    return response
