"""THE OPERATOR'S FACE. Our API under `/forewarn/v1/`: what people and their tools ask of a running service.

Reads a request, calls control or the store, shows the answer. Never here: a decision about maintenance (control and
the core take those), SQL, what VMs are told (that is metadata's).
"""
