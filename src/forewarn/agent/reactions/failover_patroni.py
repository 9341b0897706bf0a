"""A PostgreSQL primary under Patroni hands over to a replica that the event does not hit."""

from __future__ import annotations

from dataclasses import dataclass

from forewarn.agent.reaction.kind import BadOption, ReactionKind
from forewarn.agent.reaction.memory import recall, remember
from forewarn.agent.reaction.option import Raw, flag, path, text, url
from forewarn.agent.reaction.patience import spare_s, until
from forewarn.agent.reaction.patroni_api import Api, Cluster
from forewarn.agent.reaction.secret import NoSecret
from forewarn.agent.reaction.web import Unreached
from forewarn.agent.value import Case, Outcome
from forewarn.client import lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    api: Api
    candidate: str = ""  # "": whom Patroni thinks best
    return_leadership: bool = False


class FailoverPatroni:
    """That the leadership was ours is remembered before it is given away; only then is it ever taken back."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._api = options.api

    async def do(self, case: Case) -> Outcome:
        try:
            cluster = await self._api.cluster()
            if not _leads(cluster) and "led" not in recall(case):
                return Outcome(ok=True, text=f"nothing to hand over: {_name_of_leader(cluster)} leads")
            if not _leads(cluster):
                return await self._settled(case)
            ready = await until(case, self._cluster_with_heirs, every_s=0.5)
            if ready is None:
                return Outcome(ok=False, text=f"{cluster.own} leads, and no replica runs that could take over")
            remember(case, {"led": cluster.own})
            return await self._hand_over(case, cluster.own, self._candidate(case, ready))
        except (Unreached, NoSecret) as error:
            return Outcome(ok=False, text=str(error))

    async def _cluster_with_heirs(self) -> Cluster | None:
        """A replica that is just starting is waited for."""
        cluster = await self._api.cluster()
        return cluster if cluster.replicas else None

    def _candidate(self, case: Case, cluster: Cluster) -> str:
        """Whom the event hits as well would have to hand over again: somebody else is named, if there is anybody."""
        if self._options.candidate:
            return self._options.candidate
        able = [member.name for member in cluster.replicas]
        spared = [name for name in able if not lists(case.event, name)]
        if cluster.is_paused:
            return (spared or able)[0]
        return spared[0] if spared and len(spared) < len(able) else ""

    async def _hand_over(self, case: Case, leader: str, candidate: str) -> Outcome:
        """Patroni answers when it is over, or with a refusal, or not at all: then the cluster is looked at."""
        try:
            reply = await self._api.switch_over(leader, candidate, max(case.left_s() - spare_s(case), 0.1))
        except Unreached:
            return await self._settled(case)
        if not reply.ok and reply.status != 503:
            return Outcome(ok=False, text=f"Patroni refuses the switchover: {reply.brief}")
        return await self._settled(case)

    async def _settled(self, case: Case) -> Outcome:
        """Until somebody else leads, and this one follows."""
        if not await until(case, self._is_settled, every_s=0.5):
            return Outcome(ok=False, text="no other leader runs with this one as its replica when the time is over")
        name = _name_of_leader(await self._api.cluster())
        remember(case, {"successor": name})
        return Outcome(ok=True, text=f"{name} leads now", notes=recall(case))

    async def _is_settled(self) -> bool:
        try:
            cluster = await self._api.cluster()
        except Unreached:
            return False
        leader, me = cluster.leader, cluster.me
        return bool(leader and leader.runs and leader.name != cluster.own and me and me.runs)

    async def undo(self, case: Case) -> Outcome:
        found = recall(case)
        if not self._options.return_leadership or "led" not in found:
            return Outcome(ok=True, text="nothing to undo: whoever leads may go on")
        try:
            return await self._take_back(case, found)
        except (Unreached, NoSecret) as error:
            return Outcome(ok=False, text=str(error))

    async def _take_back(self, case: Case, found: dict[str, str]) -> Outcome:
        if not await until(case, self._is_fit, every_s=0.5):
            return Outcome(ok=False, text=f"{found['led']} is no running member of a cluster with a leader")
        cluster = await self._api.cluster()
        leader = _name_of_leader(cluster)
        if leader == cluster.own:
            return Outcome(ok=True, text=f"{leader} leads again")
        if leader != found.get("successor", leader):
            return Outcome(ok=True, text=f"{leader} leads, which is somebody else's doing")
        reply = await self._api.switch_over(leader, cluster.own, max(case.left_s() - spare_s(case), 0.1))
        if not reply.ok:
            return Outcome(ok=False, text=f"Patroni refuses the switchover: {reply.brief}")
        if await until(case, self._is_leader, every_s=0.5):
            return Outcome(ok=True, text=f"{cluster.own} leads again")
        return Outcome(ok=False, text=f"{cluster.own} does not lead when the time is over")

    async def _is_fit(self) -> bool:
        """After a reboot it takes a while until Patroni and PostgreSQL are there."""
        try:
            cluster = await self._api.cluster()
        except Unreached:
            return False
        return bool(cluster.leader and cluster.leader.runs and cluster.me and cluster.me.runs)

    async def _is_leader(self) -> bool:
        return _leads(await self._api.cluster())

    async def check(self, case: Case) -> bool | None:
        try:
            return not _leads(await self._api.cluster()) and await self._is_settled()
        except Unreached:
            return None


def _leads(cluster: Cluster) -> bool:
    return cluster.leader is not None and cluster.leader.name == cluster.own


def _name_of_leader(cluster: Cluster) -> str:
    return cluster.leader.name if cluster.leader else "nobody"


def read_options(raw: Raw) -> Options:
    api = Api(
        url=url(raw, "url", "http://127.0.0.1:8008"),
        user=text(raw, "user"),
        password_file=path(raw, "password_file"),
        ca_file=path(raw, "ca_file"),
    )
    if bool(api.user) != (api.password_file is not None):
        raise BadOption("user", "user and password_file go together", "write both, or neither")
    return Options(
        api=api,
        candidate=text(raw, "candidate"),
        return_leadership=flag(raw, "return_leadership", default=False),
    )


FAILOVER_PATRONI = ReactionKind(
    name="failover-patroni",
    summary="hands the leadership of a Patroni cluster over, if it is here",
    options=("url", "user", "password_file", "ca_file", "candidate", "return_leadership"),
    read=read_options,
    make=FailoverPatroni,
)
