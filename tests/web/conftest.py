"""Fixtures: the operator's API over a control plane in virtual time."""

from tests.support.operator_api import api, api_of, asleep  # noqa: F401
