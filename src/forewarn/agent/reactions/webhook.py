"""Reaction `webhook`: posts the event to a URL as a CloudEvent."""

from __future__ import annotations

import hashlib
import hmac
import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from forewarn.agent.model import StepContext, StepOutcome, StepPhase
from forewarn.agent.reactions.http_client import HttpCall, HttpCallFailed, send_with_retries
from forewarn.agent.reactions.options import ReactionKind, SecretUnavailable, read_secret
from forewarn.agent.reactions.step_context import event_facts, event_sentence
from forewarn.base.clock import read_real_time
from forewarn.base.tomlfile import RawTable, check_url, read_path, read_required_text

_CLOUD_EVENT_TYPES = {StepPhase.DO: "Forewarn.Agent.EventNoticed", StepPhase.UNDO: "Forewarn.Agent.EventGone"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    url: str  # receives the POST
    secret_file: Path | None = None  # file with the key of the signature (HMAC-SHA256); None: not signed
    ca_file: Path | None = None  # None: the system's CAs


class WebhookReaction:
    """The reaction `webhook`: posts the event to a URL when it is announced and when it is gone."""

    # A repeated message has the same id, so that the receiver can recognize it.

    def __init__(self, options: WebhookOptions) -> None:
        self._options = options

    async def do(self, context: StepContext) -> StepOutcome:
        try:
            reply = await send_with_retries(self._http_call(context), context)
        except (HttpCallFailed, SecretUnavailable) as error:
            return StepOutcome(ok=False, text=str(error))
        return StepOutcome(ok=reply.ok, text=f"the receiver answered {reply.status}")

    async def undo(self, context: StepContext) -> StepOutcome:
        return await self.do(context)

    async def check(self, context: StepContext) -> bool | None:
        return None

    def _http_call(self, context: StepContext) -> HttpCall:
        body = json.dumps(_cloud_event(context)).encode()
        headers = {"Content-Type": "application/cloudevents+json; charset=utf-8"}
        if self._options.secret_file:
            headers |= _signature_headers(read_secret(self._options.secret_file), body)
        return HttpCall(url=self._options.url, method="POST", headers=headers, body=body, ca_file=self._options.ca_file)


def _cloud_event(context: StepContext) -> dict[str, object]:
    """The CloudEvent (1.0) for this step and phase; its id depends only on event, VM, step and phase."""
    identity = f"{context.key or context.event.id}/{context.vm}/{context.step.name}/{context.phase}"
    return {
        "specversion": "1.0",
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, identity)),
        "source": f"/forewarn/agent/{quote(context.vm, safe='')}",
        "type": _CLOUD_EVENT_TYPES[context.phase],
        "subject": context.event.id or "unknown",
        "datacontenttype": "application/json",
        "data": {"Message": event_sentence(context), **event_facts(context)},
    }


def _signature_headers(secret: str, body: bytes) -> dict[str, str]:
    """Signs the body as the service signs its own webhooks."""
    timestamp = str(int(read_real_time()))
    digest = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {"X-Forewarn-Timestamp": timestamp, "X-Forewarn-Signature": f"sha256={digest}"}


def _read_options(raw: RawTable) -> WebhookOptions:
    url = read_required_text(raw, "url", '"https://host/path"')
    check_url("url", url)
    return WebhookOptions(url=url, secret_file=read_path(raw, "secret_file"), ca_file=read_path(raw, "ca_file"))


WEBHOOK_REACTION = ReactionKind(
    name="webhook",
    summary="posts the event to a URL, as a CloudEvent",
    options=("url", "secret_file", "ca_file"),
    read=_read_options,
    make=WebhookReaction,
    shared_by_events=False,
)
