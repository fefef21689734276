"""Fields of what callers send, read as written: REST framework's own take a number for an id and "yes" for true."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework import serializers


class IdField(serializers.UUIDField):
    """An id as text."""

    def to_internal_value(self, data: Any) -> UUID:
        """Return the id. Raises ValidationError for what is no string, or none of a UUID."""
        if not isinstance(data, str):
            self.fail("invalid", value=data)
        return super().to_internal_value(data)


class SwitchField(serializers.BooleanField):
    """JSON's true or false."""

    def to_internal_value(self, data: Any) -> bool:
        """Return it. Raises ValidationError for anything else."""
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data
