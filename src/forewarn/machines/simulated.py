"""The simulated hypervisor: records in a ledger what would have happened to VMs, on lab time.

Rules from the settings make it depart from the ideal, per VM name and verb: `{vm = "web-*", verb = "reboot", then =
"fail"}`. Without `vm` or `verb` a rule matches all; of several rules with the same `then`, the first match applies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, TypeVar

import msgspec

from forewarn.base.duration import exact_duration_text
from forewarn.core.cause import Verb
from forewarn.core.event import Act
from forewarn.errors import Rejected, Unavailable
from forewarn.machines.interface import ActDone, ActUnderWay
from forewarn.machines.ledger import Effect, EffectLedger
from forewarn.machines.moves import MoveHandover, MoveStep, StepReport, release_of, step_act


class _BaseRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="then"):
    """A rule applies to VMs with a matching name and, if given, to one verb."""

    vm: str = "*"  # a pattern for the VM's name, compared without case
    verb: Verb | None = None

    def matches(self, act: Act) -> bool:
        return self.verb in (None, act.verb) and fnmatchcase(act.name.casefold(), self.vm.casefold())


class DurationRule(_BaseRule, frozen=True, kw_only=True, tag="take"):
    """Makes acts that match take this long, instead of the requested or usual time."""

    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)]  # lab time


class SlowRule(_BaseRule, frozen=True, kw_only=True, tag="slow"):
    """Makes acts that match take `factor` times as long as otherwise, even with a DurationRule."""

    factor: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 10.0  # below 1: faster


class FailRule(_BaseRule, frozen=True, kw_only=True, tag="fail"):
    """Makes acts that match fail at once and for good, without effect."""

    note: str = "the simulated hypervisor was told to fail"  # the reason that the history shows


class UnreachableRule(_BaseRule, frozen=True, kw_only=True, tag="unavailable"):
    """Makes the first `times` calls of `perform` for each act that matches raise Unavailable, without effect."""

    times: Annotated[int, msgspec.Meta(ge=1)] = 1


class FalseSuccessRule(_BaseRule, frozen=True, kw_only=True, tag="lie"):
    """Makes acts that match report success at once, although they have no effect. A FailRule takes precedence."""


BehaviourRule = DurationRule | SlowRule | FailRule | UnreachableRule | FalseSuccessRule
_RuleT = TypeVar("_RuleT", DurationRule, SlowRule, FailRule, UnreachableRule, FalseSuccessRule)


class SimulatedBehaviour(msgspec.Struct, frozen=True):
    """The rules that make the simulated hypervisor misbehave. Of each class the first rule that matches counts."""

    rules: tuple[BehaviourRule, ...] = ()  # in the order of the settings

    @classmethod
    def from_rules(cls, rows: Sequence[Mapping[str, object]]) -> SimulatedBehaviour:
        """Return the behaviour that these rules of the settings describe, one mapping per rule."""
        if not isinstance(rows, list | tuple):
            raise Rejected(f"hypervisor rules {rows!r} are not a list: give a list of tables, one per rule")
        return cls(rules=tuple(_parse_rule(row) for row in rows))

    def first_match(self, kind: type[_RuleT], act: Act) -> _RuleT | None:
        """Return the first rule of this class whose VM name pattern and verb match the act; None without one."""
        return next((rule for rule in self.rules if isinstance(rule, kind) and rule.matches(act)), None)

    def duration_s(self, act: Act, usual_s: float) -> float:
        """Return how long this act takes by the rules."""
        duration_rule, slow_rule = self.first_match(DurationRule, act), self.first_match(SlowRule, act)
        return (duration_rule.seconds if duration_rule else usual_s) * (slow_rule.factor if slow_rule else 1.0)

    def unreachable_attempts(self, act: Act) -> int:
        """Return how many of the first calls of `perform` for this act must raise Unavailable; 0: none."""
        unreachable_rule = self.first_match(UnreachableRule, act)
        return unreachable_rule.times if unreachable_rule else 0


def _parse_rule(row: Mapping[str, object]) -> BehaviourRule:
    try:
        rule: BehaviourRule = msgspec.convert(row, BehaviourRule)
    except msgspec.ValidationError as error:
        raise Rejected(
            f"hypervisor rule {row!r} is not understood ({error}): give then = take (with seconds),"
            " slow (factor), fail (note), unavailable (times) or lie; for some acts only, vm = a name pattern"
            f" and verb = one of {', '.join(Verb)}"
        ) from None
    return rule


class SimulatedHypervisor:
    """Performs acts only in its ledger, on lab time: no real machine is touched. It owns the ledger."""

    def __init__(self, ledger: EffectLedger, behaviour: SimulatedBehaviour = SimulatedBehaviour()) -> None:
        self._ledger = ledger
        self._behaviour = behaviour

    @property
    def ledger(self) -> EffectLedger:
        """The ledger in which the hypervisor records effects and outcomes; `close` closes it."""
        return self._ledger

    def set_behaviour(self, behaviour: SimulatedBehaviour) -> None:
        """Use these rules for acts that begin from now on; unreachable rules apply to all acts at once."""
        self._behaviour = behaviour

    def has_begun(self, act_id: str) -> bool:
        """Return whether this act was performed here: it has taken effect, is under way, or ended by a rule."""
        return self._ledger.find(act_id) is not None or self._ledger.find_outcome(act_id) is not None

    async def perform(self, act: Act, now: float) -> ActDone | ActUnderWay:
        answer = await self._ledger.write_in_group(lambda: self._perform_in_ledger(act, now))
        if answer is None:
            raise Unavailable(f"the hypervisor of VM {act.name!r} does not answer for act {act.id!r}")
        return answer

    def _perform_in_ledger(self, act: Act, now: float) -> ActDone | ActUnderWay | None:
        """The outcome, or None if a rule makes the hypervisor unreachable this time."""
        missed = self._ledger.count_perform(act.id) <= self._behaviour.unreachable_attempts(act)
        return None if missed else self._perform_reachable(act, now)

    def _perform_reachable(self, act: Act, now: float) -> ActDone | ActUnderWay:
        effect = self._ledger.find(act.id)
        if effect is None:
            if (outcome := self._outcome_without_effect(act, now)) is not None:
                return outcome
            effect = self._new_effect(act, now)
            self._ledger.record_effect(effect)
        if now < effect.ends_at:
            return ActUnderWay(at=effect.ends_at)
        if not effect.ended:
            self._ledger.mark_ended(act.id)
        return ActDone(ok=True, note=_outcome_text(effect))

    def _outcome_without_effect(self, act: Act, now: float) -> ActDone | None:
        if (recorded := self._ledger.find_outcome(act.id)) is not None:
            return recorded
        if fail_rule := self._behaviour.first_match(FailRule, act):
            outcome = ActDone(ok=False, note=fail_rule.note)
        elif self._behaviour.first_match(FalseSuccessRule, act):
            outcome = ActDone(ok=True, note=_outcome_text(self._new_effect(act, now)))
        else:
            return None
        self._ledger.record_outcome(act.id, outcome, now)
        return outcome

    async def perform_step(self, act: Act, step: MoveStep, given: MoveHandover, now: float) -> StepReport:
        # RELEASE takes as long as the act, and rules apply to it. WITHDRAW succeeds, but if the effect of the release
        # has begun and the VM was not taken back, it reports that release instead. FENCE always fails.
        report = await self._ledger.write_in_group(lambda: self._step_in_ledger(act, step, now))
        if report is None:
            raise Unavailable(f"the hypervisor of VM {act.name!r} does not answer for act {act.id!r}")
        return report

    def _step_in_ledger(self, act: Act, step: MoveStep, now: float) -> StepReport | None:
        match step:
            case MoveStep.RELEASE | MoveStep.WITHDRAW if self._has_returned(act):
                return StepReport.of(ActDone(step is MoveStep.WITHDRAW, f"{act.name} was taken back"))
            case MoveStep.RELEASE:
                answer = self._perform_in_ledger(step_act(act, step), now)
                return None if answer is None else self._release_report(act, answer)
            case MoveStep.WITHDRAW:
                return self._withdraw(act, now)
            case MoveStep.ACTIVATE:
                return StepReport.of(self._activate(act, now))
            case MoveStep.UNDO:
                if self._ledger.find(act.id) is not None:
                    return StepReport.of(ActDone(False, f"{act.name} has arrived on {act.to_host}"))
                self._ledger.record_outcome(step_act(act, step).id, ActDone(True), now)
            case MoveStep.FENCE:
                return StepReport.of(ActDone(False, "the simulated hypervisor fences no hosts"))
            case _:
                self._ledger.record_outcome(step_act(act, step).id, ActDone(True), now)
        return StepReport.of(ActDone(True))

    def _has_returned(self, act: Act) -> bool:
        return self._ledger.find_outcome(step_act(act, MoveStep.RETURN).id) is not None

    def _release_report(self, act: Act, answer: ActDone | ActUnderWay) -> StepReport:
        is_released = isinstance(answer, ActDone) and answer.ok
        return StepReport.of(answer, MoveHandover(release=release_of(act)) if is_released else MoveHandover())

    def _withdraw(self, act: Act, now: float) -> StepReport:
        """Refuse the release from now on, or return how it is going if it has begun."""
        release = step_act(act, MoveStep.RELEASE)
        if self._ledger.find(release.id) is not None:
            return self._release_report(act, self._perform_reachable(release, now))
        self._ledger.record_outcome(release.id, ActDone(False, f"{act.name} was not released"), now)
        return StepReport.of(ActDone(True))

    def _activate(self, act: Act, now: float) -> ActDone:
        if self._ledger.find_outcome(step_act(act, MoveStep.UNDO).id) is not None:
            return ActDone(False, f"what {act.to_host} had prepared for {act.name} was undone")
        if self._ledger.find(act.id) is None:
            self._ledger.record_effect(msgspec.structs.replace(self._new_effect(act, now), ends_at=now, ended=True))
        return ActDone(True)

    def _new_effect(self, act: Act, now: float) -> Effect:
        usual_s = float(act.duration_s) if act.duration_s >= 0 else act.verb.rules.usual_duration_s
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
        await self._ledger.wait_until_written()
        self._ledger.close()


def _outcome_text(effect: Effect) -> str:
    place = f", now on {effect.to_host!r}" if effect.to_host else ""
    return f"{effect.verb} took {exact_duration_text(effect.ends_at - effect.begun_at)}{place}"
