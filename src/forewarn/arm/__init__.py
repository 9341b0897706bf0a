"""AZURE'S FACE. The routes of Azure Resource Manager that concern maintenance, so that the vendor's own clients work
unchanged: discovery and sign-in, VMs and sets, user operations, approval from outside.

Azure's spelling lives here only. Never here: a decision about maintenance, a second way to do what `/forewarn/v1` does.
"""
