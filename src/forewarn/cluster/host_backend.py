"""The `MetadataBackend` of a host node: sends what VMs ask for to the active node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from forewarn.base.clock import Clock
from forewarn.cluster.bus import Bus, NoAnswer, Subjects, request_repeatedly
from forewarn.cluster.messages import (
    HostScope,
    NodeDenied,
    RecordPosition,
    VmCall,
    VmCallReply,
    decode_from_active,
    encode_bus_message,
)
from forewarn.errors import Rejected, Unavailable
from forewarn.metadata.workers.messages import (
    ApproveRequest,
    EnableRequest,
    RequestDone,
    RequestFailed,
    TokenDenied,
    TokenGranted,
    WorkerRequest,
    WorkerTokenRequest,
)
from forewarn.protocol.managed_identity import ManagedIdentity, ManagedIdentityToken, WrongResource

CALL_TIMEOUT_S = 5.0


class HostBackend:
    """The `MetadataBackend` of a host node: sends what VMs ask for to the active control node."""

    # A call is repeated for 5 s, then it raises Unavailable: it may have taken effect, which does no harm when the VM
    # repeats it. `show` gets the scopes that come with a reply, before the VM gets its answer, so that it sees what it
    # caused.

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        host: str,
        node_id: str,
        *,
        clock: Clock,
        show: Callable[[Sequence[HostScope], RecordPosition], None],
        on_denied: Callable[[NodeDenied], None],
    ) -> None:
        self._bus, self._subject, self._node_id = bus, subjects.ask(host), node_id
        self._show, self._on_denied = show, on_denied
        self._ids = count(1)
        self._clock = clock

    def now(self) -> float:
        return self._clock.now()

    async def enable(self, vm: str) -> None:
        await self._call(EnableRequest(next(self._ids), vm))

    async def approve(self, vm: str, event_ids: tuple[str, ...]) -> str | None:
        unknown = await self._call(ApproveRequest(next(self._ids), vm, event_ids))
        return unknown.unknown if isinstance(unknown, RequestDone) else None

    async def token(self, identity: ManagedIdentity, resource: str) -> ManagedIdentityToken | WrongResource:
        reply = await self._call(WorkerTokenRequest(next(self._ids), identity, resource))
        if isinstance(reply, TokenGranted):
            return reply.token
        assert isinstance(reply, TokenDenied)
        return WrongResource(accepted=reply.accepted)

    async def _call(self, request: WorkerRequest) -> RequestDone | TokenGranted | TokenDenied:
        payload = encode_bus_message(VmCall(self._node_id, request))
        try:
            answer = decode_from_active(
                await request_repeatedly(self._bus, self._subject, payload, within_s=CALL_TIMEOUT_S)
            )
        except (NoAnswer, Rejected) as error:
            raise Unavailable("the service does not answer: try again later") from error
        if isinstance(answer, NodeDenied):
            self._on_denied(answer)
        if not isinstance(answer, VmCallReply):
            raise Unavailable("the service refuses calls of this node now: try again later")
        self._show(answer.scopes, answer.record)
        if isinstance(answer.reply, RequestFailed):
            raise answer.reply.to_error()
        return answer.reply
