"""Fixtures: the operator's API over a control plane in virtual time."""

from tests.support import operator_api

api, api_of, asleep = operator_api.api, operator_api.api_of, operator_api.asleep  # fixtures
