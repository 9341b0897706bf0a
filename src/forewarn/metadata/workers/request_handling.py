"""Carries out requests of VMs that another process sent, with the backend of this one."""

from __future__ import annotations

from typing import TypeAlias

from forewarn.metadata import MetadataBackend
from forewarn.metadata.workers.messages import ApproveRequest, EnableRequest, WorkerRequest, WorkerTokenRequest
from forewarn.protocol.managed_identity import ManagedIdentityToken, WrongResource

# The result of a request: an event id if that event is unknown, a token, or None.
RequestResult: TypeAlias = "str | ManagedIdentityToken | WrongResource | None"


async def perform_request(backend: MetadataBackend, request: WorkerRequest) -> RequestResult:
    """Carry out a VM's request that another process sent, with this process's backend; return its result."""
    match request:
        case EnableRequest(vm=vm):
            await backend.enable(vm)
            return None
        case ApproveRequest(vm=vm, event_ids=event_ids):
            return await backend.approve(vm, event_ids)
        case WorkerTokenRequest(identity=identity, resource=resource):
            return await backend.token(identity, resource)


def vm_of_request(request: WorkerRequest) -> str:
    return request.identity.vm if isinstance(request, WorkerTokenRequest) else request.vm
