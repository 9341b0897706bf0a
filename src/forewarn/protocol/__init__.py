"""The wire format between a VM and the service: document, api-versions, requests and responses.

Spec §2 to §5 and §10. Pure, standard library only, because host and guest both import it: no sockets, no clock,
nothing about fleets, stores or the lifecycle of an event. Azure's spelling is here and in `forewarn.web.arm` only.
Start reading at `exchange` (request → response) and `document`.
"""
