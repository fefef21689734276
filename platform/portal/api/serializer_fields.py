"""Strict fields for request bodies: REST framework's own accept a number as an id and "yes" as true."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework import serializers

from tenants import cost_centres


class IdField(serializers.UUIDField):
    """A UUID, as a string only."""

    def to_internal_value(self, data: Any) -> UUID:
        """Return the id. Raises ValidationError unless ``data`` is a string with a UUID."""
        if not isinstance(data, str):
            self.fail("invalid", value=data)
        return super().to_internal_value(data)


class SwitchField(serializers.BooleanField):
    """JSON's true or false only."""

    def to_internal_value(self, data: Any) -> bool:
        """Return the value. Raises ValidationError unless ``data`` is a boolean."""
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


def cost_centre_field(help_text: str) -> serializers.CharField:
    """Return the optional field of a cost centre, which may be empty."""
    return serializers.CharField(max_length=cost_centres.LONGEST, required=False, allow_blank=True, help_text=help_text)
