"""WHO MAY. Keys, certificates, secrets and tokens: proof of who is asking, and of who answers.

Real time comes in as an argument (spec §12); randomness is drawn here. Never here: which role allows what (that is
`core.access`), the store, HTTP of ours.
"""
