"""forewarn: advance notice of maintenance for virtual machines, in the contract of Azure Scheduled Events.

`pip install forewarn` is the guest's side and needs nothing but Python; the service comes with `forewarn[server]`.
"""

__version__ = "0.1.0"
