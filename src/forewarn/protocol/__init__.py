"""THE WIRE. What a VM and the service say to each other: the document, its versions, its bytes, and which
request gets which answer (spec §2 to §5, §10). Azure's spelling lives here and in the ARM routes only.

Everything is pure and needs only the standard library, because host and guest both stand on it. No sockets,
no clock, no knowledge of fleets, stores or the life of an event: those come in as values.
"""
