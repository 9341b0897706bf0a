"""Conformance suites: pytest classes that check any implementation of `Store` or `Hypervisor`. Public.

Subclass `StoreConformance` or `HypervisorConformance` in a test module and define how to open your implementation.
May import pytest, `service` and everything below it. Start with `store` or `hypervisor`.
"""
