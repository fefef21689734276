"""The ``Idempotency-Key`` in the OpenAPI document: on each POST that runs once under one."""

from __future__ import annotations

from typing import Any, Literal

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter

from portal.api.openapi_parameters import error_responses

KEY_PARAMETER = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="Your name for this change, 1 to 255 printable ASCII characters. Sent again within 24 hours, the "
    "change is not made again: the first response is repeated, with `idempotent-replayed: true`.",
)


class IdempotentSchema(AutoSchema):
    """Describes an operation, and its key if it has one."""

    def get_override_parameters(self) -> list[Any]:
        """Return the parameters that are the same for every view."""
        parameters = super().get_override_parameters()
        return [*parameters, KEY_PARAMETER] if self._has_key() else parameters

    def _get_response_bodies(self, direction: Literal["request", "response"] = "response") -> Any:
        """Return the responses, with those to a key that cannot run its change."""
        bodies = super()._get_response_bodies(direction)
        if direction == "response" and self._has_key():
            for code, response in error_responses(409, 422).items():
                described = self._get_response_for_code(response, str(code))  # type: ignore[no-untyped-call]
                bodies.setdefault(str(code), described)
        return bodies

    def _has_key(self) -> bool:
        return self.method == "POST" and not getattr(self.view, "without_key", "")
