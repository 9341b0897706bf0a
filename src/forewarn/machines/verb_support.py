"""Which verbs a hypervisor can perform: requests for other maintenance are refused at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from forewarn.core.cause import Verb
from forewarn.errors import Refused, Remedy
from forewarn.machines.interface import Hypervisor


@runtime_checkable
class LimitedHypervisor(Protocol):
    """A hypervisor that says which verbs it can perform; one without this is taken to perform all of them."""

    @property
    def supported_verbs(self) -> frozenset[Verb]:
        """The verbs that the hypervisor can perform with its settings; they do not change while it is open."""

    @property
    def verb_setting(self) -> str:
        """The setting that adds a verb, with `{verb}` in it: `[commands.{verb}]`; "" if no setting does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbSupport:
    """The verbs that the hypervisor of a service can perform, and the setting, if any, that adds others."""

    verbs: frozenset[Verb] = frozenset(Verb)  # that it can perform
    setting: str = ""  # with `{verb}` in it; "": no setting adds a verb

    @classmethod
    def of(cls, hypervisor: Hypervisor) -> VerbSupport:
        if isinstance(hypervisor, LimitedHypervisor):
            return cls(verbs=hypervisor.supported_verbs, setting=hypervisor.verb_setting)
        return cls()

    def require(self, verb: Verb) -> None:
        """Raise Refused if the hypervisor cannot perform this verb; else do nothing."""
        if verb in self.verbs:
            return
        message = f"the hypervisor of this service cannot {verb.rules.phrase or f'{verb} VMs'}"
        if self.setting:
            raise Refused(message, Remedy.ADD_VERB, setting=self.setting.format(verb=verb))
        raise Refused(message, Remedy.CHANGE_HYPERVISOR)
