"""An event is told to a program elsewhere, as a CloudEvent."""

from __future__ import annotations

import hashlib
import hmac
import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from forewarn.agent.reaction.child import facts_of
from forewarn.agent.reaction.kind import ReactionKind
from forewarn.agent.reaction.option import Raw, check_url, needed, path
from forewarn.agent.reaction.secret import NoSecret, secret_in
from forewarn.agent.reaction.telling import sentence
from forewarn.agent.reaction.web import Call, Unreached, send_patiently
from forewarn.agent.value import Case, Outcome, Phase
from forewarn.clock import read_real_time

_TYPES = {Phase.DO: "Forewarn.Agent.EventNoticed", Phase.UNDO: "Forewarn.Agent.EventGone"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    url: str
    secret_file: Path | None = None
    ca_file: Path | None = None


class Webhook:
    """Told again with the same id if nobody knows whether it was told: the receiver can see that."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def do(self, case: Case) -> Outcome:
        try:
            reply = await send_patiently(self._call(case), case)
        except (Unreached, NoSecret) as error:
            return Outcome(ok=False, text=str(error))
        return Outcome(ok=reply.ok, text=f"the receiver answered {reply.status}")

    async def undo(self, case: Case) -> Outcome:
        return await self.do(case)

    async def check(self, case: Case) -> bool | None:
        return None

    def _call(self, case: Case) -> Call:
        body = json.dumps(cloud_event(case)).encode()
        headers = {"Content-Type": "application/cloudevents+json; charset=utf-8"}
        if self._options.secret_file:
            headers |= _signature(secret_in(self._options.secret_file), body)
        return Call(url=self._options.url, method="POST", headers=headers, body=body, ca_file=self._options.ca_file)


def cloud_event(case: Case) -> dict[str, object]:
    told = f"{case.key or case.event.id}/{case.vm}/{case.step.name}/{case.phase}"
    return {
        "specversion": "1.0",
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, told)),
        "source": f"/forewarn/agent/{quote(case.vm, safe='')}",
        "type": _TYPES[case.phase],
        "subject": case.event.id or "unknown",
        "datacontenttype": "application/json",
        "data": {"Message": sentence(case), **facts_of(case)},
    }


def _signature(secret: str, body: bytes) -> dict[str, str]:
    """As the service signs its own webhooks."""
    timestamp = str(int(read_real_time()))
    digest = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {"X-Forewarn-Timestamp": timestamp, "X-Forewarn-Signature": f"sha256={digest}"}


def read_options(raw: Raw) -> Options:
    url = needed(raw, "url", '"https://host/path"')
    check_url("url", url)
    return Options(url=url, secret_file=path(raw, "secret_file"), ca_file=path(raw, "ca_file"))


WEBHOOK = ReactionKind(
    name="webhook",
    summary="tells a program elsewhere, as a CloudEvent",
    options=("url", "secret_file", "ca_file"),
    read=read_options,
    make=Webhook,
    holds=False,
)
