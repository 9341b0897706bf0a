"""Asks the gate before an approval: a command (exit status 0 is yes, 1 is no) or a webhook (2xx with {"approve": true}
or false). Anything else is silence, and is asked again.
"""

from __future__ import annotations

import json

from forewarn.agent.reaction.child import facts_of, status_of
from forewarn.agent.reaction.web import Call, Unreached, send
from forewarn.agent.value import Case, Gate

ANSWERS = {0: "yes", 1: "no"}


async def ask(gate: Gate, case: Case) -> tuple[str, str]:
    """The answer ("": silence) and what to say of it."""
    return await (_ask_command(gate, case) if gate.command else _ask_webhook(gate, case))


async def _ask_command(gate: Gate, case: Case) -> tuple[str, str]:
    try:
        status = await status_of(gate.command, case, log="gate")
    except TimeoutError:
        return "", f"{gate.command[0]!r} gave no answer within {gate.timeout_s:g} s"
    except OSError as error:
        return "", f"{gate.command[0]!r} cannot be run: {error.strerror}"
    return ANSWERS.get(status, ""), f"exit status {status}"


async def _ask_webhook(gate: Gate, case: Case) -> tuple[str, str]:
    body = json.dumps(facts_of(case)).encode()
    call = Call(url=gate.url, method="POST", headers={"Content-Type": "application/json"}, body=body)
    try:
        reply = await send(call, within_s=gate.timeout_s)
    except Unreached as error:
        return "", str(error)
    said = reply.json.get("approve") if reply.ok else None
    return {True: "yes", False: "no"}.get(said, "") if isinstance(said, bool) else "", f"answer {reply.brief}"
