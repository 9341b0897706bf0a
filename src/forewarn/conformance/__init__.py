"""Conformance suites: what every store and every hypervisor must do, as pytest classes. Public.

Subclass `StoreConformance` or `HypervisorConformance` in a test module and say how yours is opened. May import
pytest, `service` and everything below it. Start with `store` or `hypervisor`.
"""
