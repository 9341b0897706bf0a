"""The simulated hypervisor: no VMs, but a ledger that shows what would have happened to them, and when."""

from __future__ import annotations

from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.errors import Unavailable
from forewarn.hypervisor.behaviour import Behaviour, Fail, Lie
from forewarn.hypervisor.ledger import Effect, Ledger
from forewarn.hypervisor.seam import Done, Later

USUAL_S: dict[Verb, float] = {
    Verb.FREEZE: 9.0,  # spec §6.4
    Verb.MIGRATE: 5.0,  # spec §6.4
    Verb.REBOOT: 30.0,
    Verb.REDEPLOY: 120.0,
    Verb.EVICT: 10.0,
    Verb.DELETE: 10.0,
    Verb.POWER_OFF: 15.0,
    Verb.START: 20.0,
    Verb.DEALLOCATE: 15.0,
    Verb.REAPPLY: 5.0,
    Verb.REIMAGE: 60.0,
}


class Simulated:
    """Performs on lab time. An act behaves as the rules said when it began; closing it closes its ledger."""

    def __init__(self, ledger: Ledger, behaviour: Behaviour = Behaviour()) -> None:  # noqa: B008 (frozen)
        self._ledger = ledger
        self._behaviour = behaviour

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def set_behaviour(self, behaviour: Behaviour) -> None:
        """For acts that begin from now on."""
        self._behaviour = behaviour

    def has_begun(self, act_id: str) -> bool:
        return self._ledger.find(act_id) is not None

    async def perform(self, act: Act, now: float) -> Done | Later:
        answer = await self._ledger.together(lambda: self._write_down(act, now))
        if answer is None:
            raise Unavailable(f"the hypervisor of VM {act.name!r} does not answer for act {act.id!r}")
        return answer

    def _write_down(self, act: Act, now: float) -> Done | Later | None:
        """None: there is no answer this time."""
        missed = self._ledger.count_perform(act.id) <= self._behaviour.misses(act)
        return None if missed else self._answer(act, now)

    def _answer(self, act: Act, now: float) -> Done | Later:
        effect = self._ledger.find(act.id)
        if effect is None:
            if fail := self._behaviour.first(Fail, act):
                return Done(ok=False, note=fail.note)
            effect = self._effect(act, now)
            if self._behaviour.first(Lie, act):
                return Done(ok=True, note=_note(effect))
            self._ledger.begin(effect)
        if now < effect.ends_at:
            return Later(at=effect.ends_at)
        if not effect.ended:
            self._ledger.end(act.id)
        return Done(ok=True, note=_note(effect))

    def _effect(self, act: Act, now: float) -> Effect:
        usual_s = float(act.duration_s) if act.duration_s >= 0 else USUAL_S[act.verb]
        return Effect(
            act_id=act.id,
            vm=act.vm,
            verb=act.verb,
            event_id=act.event_id,
            begun_at=now,
            ends_at=now + self._behaviour.duration_s(act, usual_s),
            from_host=act.from_host,
            to_host=act.to_host,
        )

    async def close(self) -> None:
        await self._ledger.settle()
        self._ledger.close()


def _note(effect: Effect) -> str:
    place = f", now on {effect.to_host!r}" if effect.to_host else ""
    return f"{effect.verb} took {effect.ends_at - effect.begun_at:g} s{place}"
