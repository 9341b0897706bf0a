"""Advance notice of maintenance for virtual machines, in the contract of Azure Scheduled Events.

`pip install forewarn` installs the guest side and needs only Python; `forewarn[server]` adds the service.
"""

__version__ = "0.1.0"
