"""The VM leaves a load balancer's pool by a call of that one's API, and comes back by another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forewarn.agent.reaction.errand import Errand, Wait, read_errand, read_wait, within
from forewarn.agent.reaction.kind import BadOption, ReactionKind
from forewarn.agent.reaction.memory import recall, remember
from forewarn.agent.reaction.option import Raw, path
from forewarn.agent.reaction.patience import until
from forewarn.agent.reaction.secret import NoSecret
from forewarn.agent.reaction.web import Unreached, send, send_patiently
from forewarn.agent.value import Case, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    leave: Errand
    back: Errand | None = None
    wait: Wait | None = None  # after leaving
    wait_back: Wait | None = None
    ca_file: Path | None = None


class LeavePool:
    """Coming back is asked for whenever leaving was tried: nobody knows what became of a call without an answer."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def do(self, case: Case) -> Outcome:
        remember(case, {"left": "tried"})
        return await self._run(self._options.leave, self._options.wait, case, "left the pool")

    async def undo(self, case: Case) -> Outcome:
        if self._options.back is None or "left" not in recall(case):
            return Outcome(ok=True, text="nothing to undo")
        return await self._run(self._options.back, self._options.wait_back, case, "back in the pool")

    async def check(self, case: Case) -> bool | None:
        if self._options.wait is None:
            return None
        try:
            return await self._is_met(self._options.wait, case)
        except NoSecret:
            return None

    async def _run(self, errand: Errand, wait: Wait | None, case: Case, text: str) -> Outcome:
        try:
            reply = await send_patiently(errand.call(case, self._options.ca_file), case)
            if reply.status not in errand.expect:
                return Outcome(ok=False, text=f"the answer to {errand.method} was {reply.brief}")
            if wait and not await until(case, lambda: self._is_met(wait, case), wait.every_s):
                return Outcome(ok=False, text=f"{text}, but what is waited for is not so when the time is over")
        except (Unreached, NoSecret) as error:
            return Outcome(ok=False, text=str(error))
        return Outcome(ok=True, text=text)

    async def _is_met(self, wait: Wait, case: Case) -> bool:
        try:
            return wait.is_met(await send(wait.errand.call(case, self._options.ca_file)))
        except Unreached:
            return False


def read_options(raw: Raw) -> Options:
    if "leave" not in raw:
        raise BadOption("", "leave is missing", 'write leave = { method = "DELETE", url = "https://…/$vm" }')
    return Options(
        leave=within(raw, "leave", read_errand),
        back=within(raw, "back", read_errand) if "back" in raw else None,
        wait=within(raw, "wait", read_wait) if "wait" in raw else None,
        wait_back=within(raw, "wait_back", read_wait) if "wait_back" in raw else None,
        ca_file=path(raw, "ca_file"),
    )


LEAVE_POOL = ReactionKind(
    name="leave-pool",
    summary="leaves a load balancer's pool by HTTP calls, and comes back",
    options=("leave", "back", "wait", "wait_back", "ca_file"),
    read=read_options,
    make=LeavePool,
)
