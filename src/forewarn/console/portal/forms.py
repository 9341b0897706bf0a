"""Everything one can ask for in the portal, by the names of the forms."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from forewarn.console.portal.formline import Form
from forewarn.console.portal.host_forms import HOST_FORMS
from forewarn.console.portal.lab_forms import LAB_FORMS
from forewarn.console.portal.vm_forms import EVENT_FORMS, VM_FORMS

FORMS: Mapping[str, Form] = MappingProxyType(
    {form.name: form for form in (*VM_FORMS, *EVENT_FORMS, *HOST_FORMS, *LAB_FORMS)}
)
